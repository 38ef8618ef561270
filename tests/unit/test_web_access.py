"""What the page of access says: rules, keys that end, quotas, and answers."""

from __future__ import annotations

import json
from dataclasses import replace

from comet.wire.expiry import DAY_US
from comet_web import facts, render
from comet_web.components.navigation import NAV
from comet_web.document import DASH, Table
from comet_web.facts import Access, AccessRule, GrantedRole, IssuedKey, PrincipalQuota, Question
from comet_web.health import ending, judged
from comet_web.page_request import ADMIN, VIEWER, PageRequest
from comet_web.pages import PAGES
from comet_web.views import access as access_view

NOW = 1_795_298_240_000_000
READ = AccessRule("client:billing", ("read",), "topic", "invoices", author="client:admin", added_us=NOW - 60_000_000)
DENY = AccessRule("*", ("delete", "write"), "topic", "*", deny=True)
KEYS = (
    IssuedKey("0a", "client:admin", in_file=True),
    IssuedKey("1b", "client:billing", "client:admin", NOW - DAY_US, NOW + 3 * DAY_US),
    IssuedKey("2c", "client:feed", "client:admin", NOW - DAY_US, NOW + DAY_US),
    IssuedKey("3d", "client:feed", "client:admin", NOW - DAY_US, NOW + 90 * DAY_US),
    IssuedKey("4e", "client:old", "client:admin", NOW - DAY_US, NOW - DAY_US),
)
QUOTAS = (PrincipalQuota("*", requests=200), PrincipalQuota("client:feed", bytes_in=5_000_000, author="client:admin"))
ROLES = (
    GrantedRole("role:ops", "client:feed", "client:admin", NOW - 60_000_000),
    GrantedRole("role:finance", "client:billing"),
    GrantedRole("role:finance", "client:ann", "client:admin", NOW - DAY_US),
)
ACCESS = Access(NOW, True, ("client:admin", "client:gateway"), (READ, DENY), ROLES, True, KEYS, QUOTAS)
PAGE = PageRequest("/access", now_us=NOW)


def cell(table: Table, row: str, column: str) -> tuple[str, str]:
    at = [one.key for one in table.columns].index(column)
    found = next(one for one in table.rows if one.key == row).cells[at]
    return found.text, found.tone


def test_a_row_of_a_rule_is_the_request_that_removes_it() -> None:
    table = access_view.view(ACCESS, PAGE).tables["rules"]
    assert [row.cells[0].text for row in table.rows] == ["*", "client:billing"]
    assert [json.loads(row.key) for row in table.rows] == [
        {"principal": "*", "operations": ["delete", "write"], "kind": "topic", "name": "*", "deny": True},
        {"principal": "client:billing", "operations": ["read"], "kind": "topic", "name": "invoices", "deny": False},
    ]
    assert [row.cells[1].text for row in table.rows] == ["deny", "allow"]
    assert cell(table, access_view.rule_key(READ), "author") == ("client:admin", "")
    assert cell(table, access_view.rule_key(DENY), "added") == (DASH, "muted"), "unknown is a dash"


def test_the_filter_matches_all_of_a_rule() -> None:
    for part, names in (("invoices", ["client:billing"]), ("deny", ["*"]), ("write", ["*"]), ("nothing", [])):
        asked = replace(PAGE, query={"filter": part}, matches=lambda text, part=part: part in text)  # type: ignore[misc]
        table = access_view.view(ACCESS, asked).tables["rules"]
        assert [row.cells[0].text for row in table.rows] == names


def test_the_page_says_whether_rules_are_enforced() -> None:
    enforced = access_view.view(ACCESS, PAGE).fields["enforced"]
    assert (enforced.text, enforced.tone) == (
        "Rules are enforced. Superusers may do everything: client:admin, client:gateway.",
        "good",
    )
    loose = access_view.view(replace(ACCESS, enforced=False, superusers=(), keys_taken=False), PAGE)
    assert loose.fields["enforced"].text.startswith("Rules are not enforced: the broker that answers has no superusers")
    assert loose.fields["enforced"].tone == "warn"
    assert "no setting access_keys" in loose.fields["keys_taken"].text
    assert not access_view.view(ACCESS, PAGE).fields["keys_taken"].text


def test_a_row_of_a_member_is_the_request_that_revokes_its_role() -> None:
    audit = AccessRule("role:ops", ("describe",), "cluster", "*")
    read = replace(audit, operations=("read",), kind="topic")
    table = access_view.view(replace(ACCESS, rules=(READ, audit, read)), PAGE).tables["roles"]
    assert [json.loads(row.key) for row in table.rows] == [
        {"role": "role:finance", "principal": "client:billing"},
        {"role": "role:finance", "principal": "client:ann"},
        {"role": "role:ops", "principal": "client:feed"},
    ]
    ops, billing = access_view.role_key(ROLES[0]), access_view.role_key(ROLES[1])
    assert cell(table, ops, "rules") == ("2", "")
    assert cell(table, billing, "rules") == ("none", "warn"), "the role allows nothing"
    assert (cell(table, ops, "author"), cell(table, billing, "author")) == (("client:admin", ""), (DASH, ""))
    assert cell(table, billing, "granted") == (DASH, "muted"), "unknown is a dash"
    assert table.rows[2].label == "role:ops of client:feed"


def test_keys_that_expire_within_two_weeks_are_marked_and_expired_ones_are_red() -> None:
    table = access_view.view(ACCESS, PAGE).tables["keys"]
    assert [cell(table, key, "expires") for key in ("0a", "1b", "2c", "3d", "4e")] == [
        ("never", "muted"),
        ("expires in 3 days, on 2026-11-24", "warn"),
        ("expires in 1 day, on 2026-11-22", "warn"),
        ("expires in 90 days, on 2027-02-19", ""),
        ("expired on 2026-11-20", "bad"),
    ]
    assert cell(table, "0a", "author") == ("the brokers' file", "muted")
    last = access_view.view(replace(ACCESS, keys=(replace(KEYS[1], expires_us=NOW + 14 * DAY_US + 1),)), PAGE)
    assert cell(last.tables["keys"], "1b", "expires")[1] == ""


def test_a_key_that_a_later_one_replaces_is_no_worry() -> None:
    for keys in (KEYS, KEYS[::-1]):
        assert sorted(key.id for key in ending(keys, NOW)) == ["1b", "4e"]
    health = judged(facts.Cluster(NOW, controller=1, keys=KEYS))
    assert (health.word, health.tone) == ("At risk", "warn")
    assert [(one.tone, one.href) for one in health.reasons] == [("warn", "/access"), ("warn", "/access")]
    assert health.reasons[0].text == (
        "Access key 1b of client:billing expires in 3 days, on 2026-11-24, and no other replaces it. Create one: "
        "comet key create client:billing; or revoke it"
    )
    assert judged(facts.Cluster(NOW, controller=1, keys=(KEYS[0], KEYS[2], KEYS[3]))).word == "Healthy"


def test_a_quota_says_where_it_has_no_limit() -> None:
    table = access_view.view(ACCESS, PAGE).tables["quotas"]
    assert cell(table, "*", "bytes_in") == ("no limit", "muted")
    assert cell(table, "*", "requests") == ("200", "")
    assert cell(table, "client:feed", "bytes_in") == ("5.00 MB", "")


def test_an_answer_names_the_rule_that_decides() -> None:
    question = Question("client:billing", "read", "topic", "invoices", (), True, "allowed by a rule", READ)
    found = access_view.view(replace(ACCESS, question=question), PAGE).fields
    assert (found["answer"].text, found["answer"].tone) == ("Yes: client:billing may read topic invoices", "good")
    assert found["why"].text == "Reason: allowed by a rule"
    assert found["deciding"].text == ("Deciding rule: allow client:billing read topic invoices, added by client:admin")
    question = Question("user:ann", "read", "topic", "invoices", ("role:a", "role:b"), False, "no rule allows it")
    found = access_view.view(replace(ACCESS, question=question), PAGE).fields
    assert found["answer"].text == "No: user:ann with role:a, role:b may not read topic invoices"
    question = Question("client:x", "alter", "cluster", "*", (), False, "no rule allows it")
    found = access_view.view(replace(ACCESS, question=question), PAGE).fields
    assert (found["answer"].text, found["answer"].tone) == ("No: client:x may not alter the cluster", "bad")
    assert not found["deciding"].text
    wrong = access_view.view(replace(ACCESS, question=replace(question, problem="Name the topic")), PAGE).fields
    assert (wrong["answer"].text, wrong["why"].text) == ("Name the topic", "")
    assert not access_view.view(ACCESS, PAGE).fields["answer"].text


def _html(request: PageRequest, access: Access) -> str:
    page = next(page for page in PAGES if page.name == "access")
    return render.page(
        page.template, doc=access_view.view(access, request), page=page, request=request, root="", static="/s",
        cluster_name="", nav=NAV, csrf="c", csv="/access.csv", acts="{}",
    )  # fmt: skip


def test_markup_in_rules_stays_text() -> None:
    hostile = "<b>&\"'</b>"
    rule = AccessRule(hostile, ("read",), "topic", hostile, author=hostile)
    key = IssuedKey("1b", hostile, hostile)
    roles = (GrantedRole(hostile, hostile, hostile),)
    found = replace(
        ACCESS, superusers=(hostile,), rules=(rule,), roles=roles, keys=(key,), quotas=(PrincipalQuota(hostile),)
    )
    question = Question(hostile, "read", "topic", hostile, (hostile,), False, hostile, rule)
    asked = replace(PAGE, query={"principal": hostile, "name": hostile, "roles": hostile})
    html = _html(asked, replace(found, question=question))
    assert "<b>" not in html and "&lt;b&gt;" in html
    assert " style=" not in html and " onclick" not in html


def test_entries_of_the_navigation_are_for_their_roles() -> None:
    for role, shown in ((VIEWER, False), (ADMIN, True)):
        html = _html(replace(PAGE, role=role, open=False), ACCESS)
        assert ('href="/access" data-go' in html) is shown
        assert ('href="/audit" data-go' in html) is shown
        assert 'href="/topics" data-go' in html
