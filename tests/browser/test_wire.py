"""What changed, as Python tells it, put by the browser into what it had, is what Python has."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from playwright.async_api import Page

from comet_web.delta import delta
from tests.browser.conftest import Stage
from tests.property.test_web_delta import documents, late

APPLIED = """async (pairs) => {
    const {apply} = await import(new URL("wire.js", document.querySelector("script[type=module]").src));
    const kept = (document) => JSON.stringify(document);
    return pairs.map(([before, change]) => {
        const had = kept(before);
        const after = apply(before, change);
        return kept(before) === had ? after : "it changed what it was given";
    });
}"""


def pairs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = [late()]

    @settings(max_examples=200, database=None, suppress_health_check=list(HealthCheck))
    @given(documents, documents)
    def gather(before: dict[str, Any], after: dict[str, Any]) -> None:
        found.append((before, after))

    gather()
    return found


async def test_what_changed_makes_the_same_document_in_the_browser(page: Page, stage: Stage) -> None:
    wanted = pairs()
    await page.goto(stage.at("/about"))
    applied = await page.evaluate(APPLIED, [[before, delta(before, after)] for before, after in wanted])
    for (before, after), found in zip(wanted, applied, strict=True):
        assert found == after, before
