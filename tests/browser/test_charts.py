"""Charts: zoom, pan, a selected range and the way back, for all charts of a page; what they save."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.axe import axe
from tests.browser.conftest import WAIT_MS, Stage, settled, shot, watched

COUNT = 900
END_S = 1_767_225_600  # 2026-01-01 00:00:00 UTC
WHOLE = (float(END_S - COUNT + 1) - 0.5, END_S + 0.5)

MODULE = 'import(new URL("bind.js", document.querySelector("script[type=module]").src))'
VIEWS = MODULE.replace("bind.js", "time_view.js")
# Values that the test knows, in two charts of a page that gets no others.
FILL = f"""async ([kind, count, end_s]) => {{
    const {{chartAt}} = await {MODULE};
    const wave = (phase) => Array.from({{length: count}}, (_, at) => 100 + 20 * Math.sin((at + phase) / 40));
    const candle = () => [wave(0), wave(0).map((one) => one + 3), wave(0).map((one) => one - 3), wave(3), wave(9)];
    for (const id of ["records", "bytes"]) {{
        const candles = kind === "candle" && id === "records";
        chartAt(id).update({{
            kind: candles ? "candle" : "line", step_s: 1, end_us: end_s * 1e6, summary: "known values",
            names: candles ? ["open", "high", "low", "close", "volume"] : ["in", "out"],
            values: candles ? candle() : [wave(0), wave(20)], marks: [[(end_s - 30) * 1e6, "a broker started"]],
        }});
        chartAt(id).draw();
    }}
}}"""
RANGE = f"""async (id) => {{
    const {{chartAt}} = await {MODULE};
    const {{from_us, to_us}} = chartAt(id).range;
    return [from_us / 1e6, to_us / 1e6];
}}"""
APPEND = f"""async (id) => {{
    const {{chartAt}} = await {MODULE};
    const chart = chartAt(id);
    const values = chart.data.values.map((line) => [...line.slice(1), 100]);
    chart.update({{values, end_us: chart.data.end_us + 1e6}});
}}"""
ZOOMS = f"""async () => {{
    const {{chartAt}} = await {MODULE};
    const chart = chartAt("records");
    const {{showAll, show, zoomed}} = await {VIEWS};
    const {{extent}} = chart;
    const costs = [];
    show(extent, extent);
    for (let at = 0; at < 60; at += 1) {{
        await new Promise(requestAnimationFrame);
        const next = zoomed(chart.range, extent, 1e6, extent.from_us + 5e9, at < 30 ? 0.95 : 1 / 0.95);
        show(next, extent, {{goesOn: true}});
        chart.draw();
        costs.push(chart.cost_ms);
    }}
    showAll();
    return costs.sort((one, other) => one - other);
}}"""


class Charts:
    """Two charts of an overview, which a user looks at."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.figure = page.locator("[data-chart=records]")
        self.canvas = self.figure.locator("canvas:not(.over)")

    async def fill(self, kind: Literal["line", "candle"] = "line", count: int = COUNT) -> None:
        await self.page.evaluate(FILL, [kind, count, END_S])

    async def range(self, chart: str = "records") -> tuple[float, float]:
        from_s, to_s = await self.page.evaluate(RANGE, chart)
        return from_s, to_s

    async def span(self) -> float:
        from_s, to_s = await self.range()
        return to_s - from_s

    async def spans(self, wanted: Callable[[float], bool]) -> None:
        """Until the range is so long: a wheel turns later."""
        async with asyncio.timeout(WAIT_MS / 1000):
            while not wanted(await self.span()):
                pass

    def tool(self, name: str) -> Locator:
        return self.figure.locator(f'[data-tool="{name}"]')

    async def at(self, share: float) -> tuple[float, float]:
        """A place on the canvas, from the left to the right."""
        box = await self.canvas.bounding_box()
        assert box is not None
        return box["x"] + box["width"] * share, box["y"] + box["height"] / 2

    async def drag(self, start: float, end: float) -> None:
        mouse = self.page.mouse
        await mouse.move(*await self.at(start))
        await mouse.down()
        await mouse.move(*await self.at((start + end) / 2))
        await mouse.move(*await self.at(end))
        await mouse.up()


@asynccontextmanager
async def charts_of(page: Page, stage: Stage, kind: Literal["line", "candle"] = "line") -> AsyncIterator[Charts]:
    await settled(page, stage.at("/"))
    await page.keyboard.press("Space")
    charts = Charts(page)
    await charts.fill(kind)
    await charts.canvas.scroll_into_view_if_needed()
    yield charts


async def test_a_dragged_range_is_shown_by_all_charts_and_left_again(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage) as charts:
        assert await charts.range() == WHOLE
        await expect(charts.tool("back")).to_be_disabled()
        await charts.drag(0.3, 0.6)
        from_s, to_s = await charts.range()
        assert WHOLE[0] < from_s < to_s < WHOLE[1]
        assert 0.2 * COUNT < to_s - from_s < 0.4 * COUNT
        assert await charts.range("bytes") == (from_s, to_s)
        await shot(page, "chart-range")
        await charts.drag(0.3, 0.6)
        assert await charts.span() < 0.4 * (to_s - from_s)
        await charts.tool("back").click()
        assert await charts.range() == (from_s, to_s)
        await charts.tool("back").click()
        assert await charts.range() == WHOLE
        await expect(charts.tool("back")).to_be_disabled()
        await charts.drag(0.3, 0.6)
        await charts.canvas.dblclick()
        assert await charts.range() == WHOLE == await charts.range("bytes")


async def test_the_wheel_scrolls_over_figures_and_zooms_with_ctrl(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage) as charts:
        await page.mouse.move(*await charts.at(0.5))
        await page.mouse.wheel(0, -200)
        assert await charts.range() == WHOLE
        await page.mouse.move(*await charts.at(0.5))
        await page.keyboard.down("Control")
        await page.mouse.wheel(0, -50)
        await page.keyboard.up("Control")
        await charts.spans(lambda found: found < COUNT / 1.4)
        from_s, to_s = await charts.range()
        assert WHOLE[0] < from_s and to_s < WHOLE[1]  # what the pointer is at stays


async def test_candles_are_zoomed_by_the_wheel_and_panned_by_the_pointer(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage, "candle") as charts:
        newest = await charts.range()
        assert newest[1] == WHOLE[1] and 30 <= newest[1] - newest[0] < 300  # wide enough to be seen as candles
        assert await charts.range("bytes") == newest
        await charts.drag(0.2, 0.5)
        from_s, to_s = await charts.range()
        assert to_s - from_s == pytest.approx(newest[1] - newest[0])
        assert to_s < newest[1]
        await page.evaluate(APPEND, "records")
        assert await charts.range() == (from_s, to_s), "the past stays where it is"
        await charts.drag(0.5, 0.1)
        await page.evaluate(APPEND, "records")
        assert (await charts.range())[1] == END_S + 2.5, "at its end the chart follows the newest value"
        await page.mouse.move(*await charts.at(0.5))
        span = await charts.span()
        await page.mouse.wheel(0, -200)
        await charts.spans(lambda found: found < span * 0.9)
        await page.mouse.wheel(0, 5000)
        await charts.spans(lambda found: found == COUNT)
        await shot(page, "chart-candles")


async def test_everything_is_done_by_keys_too(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage) as charts:
        await charts.canvas.focus()
        await page.keyboard.press("+")
        assert await charts.span() == pytest.approx(0.7 * COUNT)
        assert (await charts.range())[1] == WHOLE[1], "the newest value stays"
        await page.keyboard.press("PageUp")
        assert (await charts.range())[0] == WHOLE[0]
        await page.keyboard.press("Home")
        await expect(charts.figure.locator("[data-readout] time")).to_have_text("2025-12-31 23:45:01 UTC")
        await page.keyboard.press("ArrowRight")
        await expect(charts.figure.locator("[data-readout] time")).to_have_text("2025-12-31 23:45:02 UTC")
        await page.keyboard.press("-")
        await page.keyboard.press("Backspace")
        await page.keyboard.press("Backspace")
        assert (await charts.range())[1] == WHOLE[1]
        await page.keyboard.press("0")
        assert await charts.range() == WHOLE


async def test_a_range_is_chosen_by_its_ends(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage) as charts:
        await charts.tool("range").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("From").fill("2025-12-31T23:50:00")
        await dialog.get_by_label("To", exact=True).fill("2026-12-31T23:55:00")
        await expect(dialog.get_by_role("status").nth(1)).to_contain_text("to 2026-01-01 00:00:00 UTC")
        await dialog.get_by_label("To", exact=True).fill("2025-12-31T23:55:00")
        await dialog.get_by_role("button", name="Show").click()
        await expect(dialog).to_have_count(0)
        assert await charts.range() == (END_S - 600, END_S - 300)


async def test_times_are_local_where_wanted_and_stay_so(browser: Browser, stage: Stage) -> None:
    async with watched(browser, timezone_id="Asia/Kolkata") as found:
        page = await found.context.new_page()
        async with charts_of(page, stage) as charts:
            readout = charts.figure.locator("[data-readout] time")
            await charts.canvas.focus()
            await page.keyboard.press("End")
            await expect(readout).to_have_text("2026-01-01 00:00:00 UTC")
            await charts.tool("zone").click()
            await charts.canvas.focus()
            await page.keyboard.press("End")
            await expect(readout).to_have_text("2026-01-01 05:30:00 +05:30")
        async with charts_of(page, stage) as charts:
            await expect(charts.tool("zone")).to_have_text("Local")


async def test_a_chart_is_saved_as_a_picture_and_as_csv(page: Page, stage: Stage, tmp_path: Path) -> None:
    async with charts_of(page, stage) as charts:
        await charts.drag(0.3, 0.6)
        from_s, to_s = await charts.range()
        async with page.expect_download() as saved:
            await charts.tool("csv").click()
        file = await saved.value
        assert file.suggested_filename == "records.csv"
        await file.save_as(tmp_path / "records.csv")
        head, *rows = (tmp_path / "records.csv").read_text().splitlines()
        assert head == "time,in,out"
        assert len(rows) in {int(to_s - from_s), int(to_s - from_s) + 1}
        assert re.fullmatch(r"2025-12-31T23:\d\d:\d\d\.000Z,[\d.]+,[\d.]+", rows[0])
        async with page.expect_download() as saved:
            await charts.tool("picture").click()
        picture = await saved.value
        assert picture.suggested_filename == "records.png"
        await picture.save_as(tmp_path / "records.png")
        assert (tmp_path / "records.png").read_bytes().startswith(b"\x89PNG")


async def test_a_chart_fills_the_screen_and_leaves_it(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage) as charts:
        small = await charts.canvas.evaluate("canvas => canvas.clientHeight")
        await charts.tool("full").click()
        await page.wait_for_function("document.fullscreenElement?.dataset.chart === 'records'")
        await page.wait_for_function(
            "(small) => document.querySelector('[data-chart=records] canvas').clientHeight > 2 * small", arg=small
        )
        await charts.tool("full").click()
        await page.wait_for_function("!document.fullscreenElement")


async def test_events_in_the_range_are_named_below(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage) as charts:
        events = charts.figure.locator("[data-marks]")
        await expect(events).to_have_text("▾ 23:59:30 a broker started")
        await charts.drag(0.2, 0.5)
        await expect(events).to_be_hidden()


async def test_where_nothing_is_known_a_chart_says_so_in_a_word(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage) as charts:
        await page.evaluate(
            f"""async (end_s) => {{
                const {{chartAt}} = await {MODULE};
                const none = Array(200).fill(null);
                chartAt("records").update({{values: [[1, ...none], [2, ...none]], end_us: end_s * 1e6}});
                chartAt("records").draw();
            }}""",
            END_S,
        )
        await page.mouse.move(*await charts.at(0.6))
        readout = charts.figure.locator("[data-readout]")
        await expect(readout).to_contain_text("no data")
        await expect(readout).not_to_contain_text("–")


async def test_fingers_pan_and_pinch(browser: Browser, stage: Stage) -> None:
    async with watched(browser, has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844}) as found:
        page = await found.context.new_page()
        async with charts_of(page, stage) as charts:
            session = await found.context.new_cdp_session(page)

            async def touch(kind: str, *shares: float) -> None:
                points = [dict(zip(("x", "y"), await charts.at(share), strict=True)) for share in shares]
                await session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

            await touch("touchStart", 0.4, 0.6)
            for apart in (0.15, 0.2, 0.3):
                await touch("touchMove", 0.5 - apart, 0.5 + apart)
            await touch("touchEnd")
            from_s, to_s = await charts.range()
            assert 0.2 * COUNT < to_s - from_s < 0.5 * COUNT
            await touch("touchStart", 0.5)
            for share in (0.55, 0.6, 0.7):
                await touch("touchMove", share)
            await touch("touchEnd")
            assert (await charts.range())[0] < from_s
            assert await charts.span() == pytest.approx(to_s - from_s)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_ten_thousand_points_are_zoomed_within_a_frame(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage, "candle") as charts:
        for kind in ("candle", "line"):
            await charts.fill(kind, 10_000)
            costs: list[float] = await page.evaluate(ZOOMS)
            print(f"\n10,000 points, {kind}: {costs[len(costs) // 2]:.1f} ms a frame, at most {costs[-1]:.1f}")
            # Others may have the machine while most of them are drawn, but not while all are.
            assert costs[0] < 1000 / 60


async def test_the_tools_pass_axe(page: Page, stage: Stage) -> None:
    async with charts_of(page, stage) as charts:
        await charts.figure.hover()
        await axe(page)
