"""axe-core on a page: no finding that keeps somebody from using it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from playwright.async_api import Page

_SCRIPT = (files("axe_playwright_python") / "axe.min.js").read_text()
_GRAVE = ("serious", "critical")
_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
BY_LOOKS = ("color-contrast", "target-size", "scrollable-region-focusable")  # rules that colours and widths matter to


async def axe(page: Page, *, rules: Sequence[str] = ()) -> None:
    """Asserts that there is none, of all that the page shows now; by these `rules` only, where there are some. The
    policy of the pages lets no script in; what a test evaluates is not subject to it."""
    await page.evaluate(_SCRIPT)
    only = {"type": "rule", "values": list(rules)} if rules else {"type": "tag", "values": _TAGS}
    found = await page.evaluate(
        "only => axe.run(document, {runOnly: only, resultTypes: ['violations']}).then(result => result.violations)",
        only,
    )
    grave = [
        f"{one['impact']} {one['id']}: {one['help']}: {node['html'][:200]} ({node['failureSummary'][:200]})"
        for one in found
        if one["impact"] in _GRAVE
        for node in one["nodes"]
    ]
    assert not grave, "\n".join(grave)
