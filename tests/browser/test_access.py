"""The pages of access and of the audit log in a real browser, before a broker with rules."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Route, expect

import comet
from tests.browser.axe import axe
from tests.browser.conftest import Watched, live, settled, shot, watched
from tests.integration.secured_gateway import Secured, secured
from tests.integration.test_access_keys import ME, TOPIC

NARROW = {"width": 360, "height": 740}


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    async with secured(tmp_path_factory.mktemp("access")) as found:
        yield found


async def log_in(page: Page, guarded: Secured, role: str, path: str) -> None:
    await page.goto(guarded.gateway.url + path)
    await page.get_by_label("Token").fill(guarded.tokens[role])
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(guarded.gateway.url + path)


async def open_page(page: Page, guarded: Secured, path: str) -> None:
    await log_in(page, guarded, "admin", path)
    await live(page)


def rows(page: Page, table: str) -> Locator:
    return page.locator(f"[data-table={table}] tbody tr")


def asked(page: Page, name: str) -> Locator:
    return page.locator(f"[data-question] [name={name}]")


async def test_a_rule_is_added_explained_and_removed(page: Page, guarded: Secured) -> None:
    await open_page(page, guarded, "/access")
    await expect(page.get_by_text("Rules are enforced. Superusers may do everything: client:admin.")).to_be_visible()
    await page.get_by_role("button", name="Add rule").first.click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Principal").fill("client:ann")
    await dialog.get_by_label("Name", exact=True).fill("quotes-*")
    await dialog.get_by_label("write").check()
    await axe(page)
    await shot(page, "access-add-rule")
    await dialog.get_by_role("button", name="Add rule").click()
    await expect(page.locator("#toasts")).to_contain_text("Rule added.")
    mine = rows(page, "rules").filter(has_text="client:ann")
    await expect(mine).to_have_count(1)
    await expect(mine).to_contain_text("allow")
    await expect(mine).to_contain_text("quotes-*")
    await expect(mine).to_contain_text("client:admin")

    await asked(page, "principal").fill("ann")
    await asked(page, "name").fill("quotes-eu")
    await page.get_by_role("button", name="Explain").click()
    answer = page.get_by_role("status").filter(has_text="client:ann may")
    await expect(answer).to_contain_text("Yes: client:ann may read topic quotes-eu")
    await expect(answer).to_contain_text(re.compile("Deciding rule: allow client:ann [a-z,]+ topic quotes-"))
    await asked(page, "operation").select_option("delete")
    await page.get_by_role("button", name="Explain").click()
    await expect(answer).to_contain_text("No: client:ann may not delete topic quotes-eu")
    await expect(page).to_have_url(re.compile("operation=delete"))
    await asked(page, "kind").select_option("cluster")
    await expect(asked(page, "name")).to_be_hidden()
    await axe(page)

    await mine.get_by_role("checkbox").check()
    await expect(page.get_by_text("1 selected")).to_be_visible()
    await page.get_by_role("button", name="Remove").first.click()
    await expect(dialog).to_contain_text("allow client:ann")
    await dialog.get_by_role("button", name="Remove rule").click()
    await expect(page.locator("#toasts")).to_contain_text("1 rule removed.")
    await expect(mine).to_have_count(0)
    assert not (await guarded.broker.admin.access.list_rules(principal="client:ann")).rules


async def test_a_refused_act_says_why_and_can_be_corrected(context: Watched, page: Page, guarded: Secured) -> None:
    context.expected = ("status of 422",)
    await open_page(page, guarded, "/access")
    await page.get_by_role("button", name="Add rule").first.click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Principal").fill("client:eve")
    await dialog.get_by_label("Name", exact=True).fill("x")
    await dialog.get_by_label("read").uncheck()
    await dialog.get_by_role("button", name="Add rule").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("operations")
    await dialog.get_by_label("describe").check()
    await dialog.get_by_role("button", name="Add rule").click()
    await expect(rows(page, "rules").filter(has_text="client:eve")).to_have_count(1)


async def test_a_role_is_granted_explained_and_revoked(page: Page, guarded: Secured) -> None:
    access = guarded.broker.admin.access
    await access.add_rule("role:finance", ["read"], comet.ResourceKind.TOPIC, "ledger")
    await open_page(page, guarded, "/access")
    members, dialog = rows(page, "roles"), page.get_by_role("dialog")
    for role, principal in (("role:finance", "client:ann"), ("role:idle/1", "client:ann")):
        await page.get_by_role("button", name="Grant role").click()
        await dialog.get_by_label("Role").fill(role)
        await dialog.get_by_label("Principal").fill(principal)
        await axe(page)
        await dialog.get_by_role("button", name="Grant role").click()
        await expect(members.filter(has_text=role)).to_contain_text(principal)
    await expect(page.locator("#toasts")).to_contain_text("Role granted.")
    await expect(members.filter(has_text="role:finance")).to_contain_text("client:admin")
    await expect(members.filter(has_text="role:idle/1").locator('td[data-tone="warn"]')).to_have_text("none")
    await page.get_by_role("button", name="Grant role").click()
    await dialog.get_by_label("Role").fill("role:finance")
    await dialog.get_by_label("Principal").fill("client:ann")
    await dialog.get_by_role("button", name="Grant role").click()
    await expect(page.locator("#toasts")).to_contain_text("The principal had the role before.")

    answer = page.get_by_role("status").filter(has_text=" read topic ledger")
    for principal, roles, text in (
        ("ann", "", "Yes: client:ann may read topic ledger"),
        ("user:bob", "", "No: user:bob may not read topic ledger"),
        ("user:bob", "ops, role:finance", "Yes: user:bob with role:ops, role:finance may read topic ledger"),
    ):
        await asked(page, "principal").fill(principal)
        await asked(page, "name").fill("ledger")
        await asked(page, "roles").fill(roles)
        await page.get_by_role("button", name="Explain").click()
        await expect(answer).to_contain_text(text)
    await expect(page).to_have_url(re.compile("roles=ops"))
    await page.reload()
    await expect(asked(page, "roles")).to_have_value("ops, role:finance")

    await live(page)
    for one in await members.all():
        await one.get_by_role("checkbox").check()
    await page.locator("[data-chosen=roles]").get_by_role("button", name="Revoke").click()
    await expect(dialog).to_contain_text("role:finance of client:ann")
    await dialog.get_by_role("button", name="Revoke 2 roles").click()
    await expect(page.locator("#toasts")).to_contain_text("2 roles revoked.")
    await expect(page.get_by_text("No roles are granted")).to_be_visible()
    assert not (await access.list_roles()).members


async def test_a_retry_removes_the_rules_that_are_left(context: Watched, page: Page, guarded: Secured) -> None:
    context.expected = ("status of 503",)
    await open_page(page, guarded, "/access")
    dialog, mine = page.get_by_role("dialog"), rows(page, "rules").filter(has_text="client:twice")
    for name in ("one", "two"):
        await page.get_by_role("button", name="Add rule").first.click()
        await dialog.get_by_label("Principal").fill("client:twice")
        await dialog.get_by_label("Effect").select_option("deny")
        await dialog.get_by_label("Name", exact=True).fill(name)
        await dialog.get_by_role("button", name="Add rule").click()
        await expect(mine.filter(has_text=name)).to_contain_text("deny")
    asked: list[str] = []

    async def fail_second(route: Route) -> None:
        asked.append(json.loads(route.request.post_data or "")["name"])
        await (route.fulfill(status=503, json={"title": "Away"}) if len(asked) == 2 else route.continue_())

    await page.route("**/v1/rules/remove", fail_second)
    for one in await mine.all():
        await one.get_by_role("checkbox").check()
    await page.get_by_role("button", name="Remove").first.click()
    await dialog.get_by_role("button", name="Remove 2 rules").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Away")
    await dialog.get_by_role("button", name="Remove 2 rules").click()
    await expect(page.locator("#toasts")).to_contain_text("2 rules removed.")
    assert len(asked) == 3 and asked[1] == asked[2] != asked[0]
    assert not (await guarded.broker.admin.access.list_rules(principal="client:twice")).rules


async def test_the_filters_of_events_follow_the_history(page: Page, guarded: Secured) -> None:
    await open_page(page, guarded, "/audit?event=admin&page=2")
    await page.evaluate("history.pushState({}, '', '/audit?event=denied&principal=eve')")
    await page.go_back()
    event = page.locator("select[name=event]")
    await expect(event).to_have_value("admin")
    await page.go_forward()
    await expect(event).to_have_value("denied")
    await expect(page.locator("input[name=principal]:visible")).to_have_value("eve")
    await page.go_back()
    await expect(event).to_have_value("admin")
    await page.locator("select[name=outcome]").select_option("failed")
    await expect(page).to_have_url(re.compile("outcome=failed"))
    assert "page=" not in page.url, "a filter begins at the first page"


async def test_a_key_is_created_shown_once_and_revoked(page: Page, guarded: Secured) -> None:
    await open_page(page, guarded, "/access")
    await page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Principal").fill(ME)
    await dialog.get_by_label("Days until it expires").fill("5")
    await dialog.get_by_role("button", name="Create key").click()
    await expect(dialog).to_contain_text("It is not shown again.")
    text = await dialog.locator("[data-secret]").inner_text()
    await axe(page)
    await dialog.get_by_role("button", name="Close").click()
    assert text.split("_", 2)[2] not in await page.content(), "the secret is gone"
    key_id = text.split("_")[1]
    row = rows(page, "keys").filter(has_text=key_id)
    await expect(row).to_contain_text(ME)
    await expect(row.locator('td[data-tone="warn"]')).to_contain_text("expires in 4 days")
    async with comet.Admin(guarded.broker.bootstrap(guarded.broker.write("made.key", text))) as theirs:
        await theirs.list_topics()

    await row.get_by_role("checkbox").check()
    await page.get_by_role("button", name="Revoke").click()
    revoke = dialog.get_by_role("button", name="Revoke key")
    await expect(revoke).to_be_disabled()
    await dialog.get_by_label(f"Type {key_id} to confirm").fill(key_id)
    await revoke.click()
    await expect(page.locator("#toasts")).to_contain_text(f"Key {key_id} revoked.")
    await expect(row).to_have_count(0)
    assert not (await guarded.broker.admin.access.list_access_keys(principal=ME)).keys


async def test_a_quota_is_set_changed_and_removed(page: Page, guarded: Secured) -> None:
    await open_page(page, guarded, "/access")
    await page.get_by_role("button", name="Set quota").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Principal").fill("*")
    await dialog.get_by_label("Bytes in per second").fill("5000000")
    await dialog.get_by_role("button", name="Set quota").click()
    row = rows(page, "quotas")
    await expect(row).to_contain_text("5.00 MB")
    await expect(row).to_contain_text("no limit")
    await row.get_by_role("checkbox").check()
    await page.get_by_role("button", name="Change").click()
    await expect(dialog.get_by_label("Bytes in per second")).to_have_value("5000000")
    await dialog.get_by_label("Requests per second").fill("321")
    await dialog.get_by_role("button", name="Set quota").click()
    await expect(row).to_contain_text("321")
    (quota,) = (await guarded.broker.admin.access.list_quotas()).quotas
    assert (quota.bytes_in, quota.requests) == (5_000_000, 321)
    await page.locator("[data-chosen=quotas]").get_by_role("button", name="Remove").click()
    await dialog.get_by_role("button", name="Remove quota").click()
    await expect(row).to_have_count(0)
    await expect(page.get_by_text("No quotas")).to_be_visible()


async def test_events_appear_on_an_open_page_newest_first(page: Page, guarded: Secured) -> None:
    file, _ = await guarded.broker.key("audited.key", "client:audited")
    await open_page(page, guarded, "/audit")
    async with comet.Admin(guarded.broker.bootstrap(file)) as theirs:
        with pytest.raises(comet.CometError):
            await theirs.delete_topic(TOPIC)
    denied = rows(page, "events").filter(has_text="client:audited").filter(has_text="Denied")
    await expect(denied).to_have_count(1)
    await expect(denied).to_contain_text("delete")
    await expect(denied).to_contain_text(f"topic {TOPIC}")
    await guarded.broker.admin.access.add_rule("client:audited", ["read"], comet.ResourceKind.TOPIC, TOPIC)
    first = rows(page, "events").first
    await expect(first).to_contain_text("AddRule")
    await expect(page.get_by_role("button", name="List changed")).to_be_hidden()
    await axe(page)


async def test_rows_stand_still_under_the_pointer(page: Page, guarded: Secured) -> None:
    await open_page(page, guarded, "/audit?event=admin")
    first = rows(page, "events").first
    await first.hover()
    shown = await first.get_attribute("data-key")
    await guarded.broker.admin.access.add_rule("client:still", ["read"], comet.ResourceKind.TOPIC, TOPIC)
    await expect(page.get_by_role("button", name="List changed")).to_be_visible()
    assert await first.get_attribute("data-key") == shown
    await page.get_by_role("button", name="List changed").click()
    await expect(first).not_to_have_attribute("data-key", shown or "")


async def test_events_are_filtered_by_principal_kind_and_outcome(page: Page, guarded: Secured) -> None:
    await guarded.broker.admin.access.add_rule("client:seen", ["read"], comet.ResourceKind.TOPIC, TOPIC)
    with pytest.raises(comet.TopicExists):
        await guarded.broker.admin.create_topic(TOPIC)
    await open_page(page, guarded, "/audit")
    events = rows(page, "events")
    await expect(events.filter(has_text="TOPIC_EXISTS").first).to_be_visible()
    await page.locator("[name=outcome]").select_option("failed")
    await page.locator("[name=event]").select_option("admin")
    await expect(events.filter(has_text="AddRule")).to_have_count(0)
    await expect(events.filter(has_text="TOPIC_EXISTS").first).to_be_visible()
    await expect(page).to_have_url(re.compile("outcome=failed"))
    await page.locator("[name=principal]").fill("nothing")
    await expect(page.get_by_text("No events")).to_be_visible()
    await page.get_by_role("link", name="Clear", exact=True).click()
    await expect(events.filter(has_text="AddRule").first).to_be_visible()
    assert "outcome" not in page.url
    await page.get_by_label("Filter Events").fill("client:seen")
    await expect(events).to_have_count(1)


async def test_the_record_of_an_event_is_a_link_away(page: Page, guarded: Secured) -> None:
    await guarded.broker.admin.access.add_rule("client:linked", ["read"], comet.ResourceKind.TOPIC, TOPIC)
    await open_page(page, guarded, "/audit")
    await rows(page, "events").filter(has_text="client:linked").get_by_role("link").first.click()
    await expect(page).to_have_url(re.compile("/topics/__audit/records"))
    await expect(page.get_by_role("dialog")).to_contain_text("AddRule")


async def test_a_viewer_sees_neither_page_nor_entry(browser: Browser, guarded: Secured) -> None:
    async with watched(browser) as found:
        found.expected = ("status of 403",)
        page = await found.context.new_page()
        await log_in(page, guarded, "viewer", "/topics")
        await live(page)
        await expect(page.get_by_role("link", name="Topics", exact=True)).to_be_visible()
        for name, path in (("Access", "/access"), ("Audit log", "/audit")):
            await expect(page.get_by_role("link", name=name)).to_have_count(0)
            answer = await page.goto(guarded.gateway.url + path)
            assert answer is not None and answer.status == 403
            await expect(page.get_by_role("main")).to_contain_text("This needs the role admin; viewer has viewer")
        await page.goto(guarded.gateway.url + "/topics/__audit/records")
        await expect(page.get_by_role("main")).to_contain_text("opic '__audit' needs the role admin")
        await settled(page, guarded.gateway.url + "/topics")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_contain_text("Brokers")
        await expect(page.get_by_role("dialog")).not_to_contain_text("Audit log")


async def test_a_viewer_cannot_act_past_the_page(browser: Browser, guarded: Secured) -> None:
    async with watched(browser) as found:
        found.expected = ("status of 403",)
        page = await found.context.new_page()
        await log_in(page, guarded, "viewer", "/topics")
        await live(page)
        told = await page.evaluate(
            """async (body) => {
              const csrf = document.querySelector("meta[name=csrf]").content;
              const headers = {"content-type": "application/json", "x-comet-csrf": csrf};
              const answer = await fetch("/v1/rules", {method: "POST", headers, body});
              return [answer.status, (await answer.json()).code];
            }""",
            json.dumps({"principal": "client:mallory", "operations": ["read"], "kind": "topic", "name": "*"}),
        )
        assert told == [403, "FORBIDDEN"]
    assert not (await guarded.broker.admin.access.list_rules(principal="client:mallory")).rules


async def test_both_pages_are_usable_in_both_themes_and_narrow(browser: Browser, guarded: Secured) -> None:
    access = guarded.broker.admin.access
    await access.add_rule("client:wide", ["read", "write"], comet.ResourceKind.TOPIC, "a-long-name-*")
    await access.add_rule("role:finance", ["read"], comet.ResourceKind.TOPIC, "a-long-name-*")
    await access.grant_role("role:finance", "client:wide")
    await access.grant_role("role:auditors", "client:wide")
    for scheme, size in (("light", None), ("dark", None), ("light", NARROW), ("dark", NARROW)):
        settings: dict[str, object] = {"color_scheme": scheme, **({"viewport": size} if size else {})}
        async with watched(browser, **settings) as found:
            page = await found.context.new_page()
            await open_page(page, guarded, "/access?principal=wide&operation=read&kind=topic&name=a-long-name-1")
            await expect(page.get_by_text("Yes: client:wide may read")).to_be_visible()
            for name in ("access", "audit"):
                if name == "audit":
                    await settled(page, f"{guarded.gateway.url}/audit")
                    await expect(rows(page, "events").first).to_be_visible()
                width = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert width <= 0, f"{name} is wider than the window by {width}"
                await axe(page)
                await shot(page, f"{name}-{scheme}{'-narrow' if size else ''}")
