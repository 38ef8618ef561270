"""The page of quotes: older candles as one pans, indicators, several charts, the watchlist, the tape."""

from __future__ import annotations

import asyncio
import math
import re
import time
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.axe import axe
from tests.browser.conftest import WAIT_MS, Stage, live, shot, watched
from tests.browser.test_quotes import Feed, feeding, row

MODULES = 'new URL(name, document.querySelector("script[type=module]").src)'
RANGE = f"""async () => {{
    const load = (name) => import({MODULES});
    const {{chartAt}} = await load("bind.js");
    const chart = chartAt("price");
    if (!chart?.shown) return null;
    const close = chart.data.values[3];
    const start_s = chart.extent.from_us / 1e6 + 0.5;
    return {{
        from_s: chart.range.from_us / 1e6, to_s: chart.range.to_us / 1e6, count: chart.count,
        closes: Object.fromEntries(close.map((value, at) => [Math.round(start_s) + at - 1, value])),
        names: chart.data.names, spreads: chartAt("spread").data.values[0].filter((value) => value !== null).length,
    }};
}}"""
MADE = """() => {
    const closes = Array.from({length: 40}, (_, at) => 100 + ((at * 7) % 11) + at / 10);
    closes[7] = null;
    const lines = [closes, closes.map((v) => v === null ? null : v + 1), closes.map((v) => v === null ? null : v - 1),
                   closes, closes.map((v, at) => v === null ? null : 10 + at)];
    return lines;
}"""


def closes() -> list[float | None]:
    return [None if at == 7 else 100 + at * 7 % 11 + at / 10 for at in range(40)]


async def in_store(page: Page, script: str) -> Any:
    return await page.evaluate(f"async () => {{ {LOAD} const made = ({MADE})(); {script} }}")


LOAD = f"""
    const load = (name) => import({MODULES});
    const {{CandleStore}} = await load("candle_store.js");
"""
PUT = """
    const names = ["open", "high", "low", "close", "volume"];
    const part = (from, to) => ({names, values: made.map((line) => line.slice(from, to)), end_us: (1000 + to) * 1e6});
    const store = new CandleStore(1);
    store.choose(["vwap", "sma", "ema", "bollinger", "volatility"]);
    const line = (key, which = 0) => store.indicators.get(key).lines[which];
    const computed = () => [...store.indicators.values()].reduce((sum, each) => sum + each.computed, 0);
"""


async def test_indicators_are_what_is_counted_out(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/about"))
    found = await in_store(
        page,
        PUT + 'store.put(part(0, 40), null);'
        'return {sma: line("sma"), ema: line("ema"), upper: line("bollinger", 0), lower: line("bollinger", 1),'
        ' volatility: line("volatility"), vwap: line("vwap")};',
    )  # fmt: skip
    known = [at for at, close in enumerate(closes()) if close is not None]
    prices = [close for close in closes() if close is not None]
    expected: dict[str, dict[int, float]] = {name: {} for name in found}
    average = None
    for count, at in enumerate(known, 1):
        if count < 20:
            continue
        last = prices[count - 20 : count]
        mean = math.fsum(last) / 20
        deviation = math.sqrt(math.fsum((price - mean) ** 2 for price in last) / 20)
        average = mean if average is None else average + 2 / 21 * (last[-1] - average)
        expected["sma"][at], expected["ema"][at] = mean, average
        expected["upper"][at], expected["lower"][at] = mean + 2 * deviation, mean - 2 * deviation
        if count > 20:
            returns = [math.log(prices[one] / prices[one - 1]) for one in range(count - 20, count)]
            expected["volatility"][at] = 100 * math.sqrt(math.fsum(change**2 for change in returns))
    for name, values in found.items():
        # Values begin with enough candles; a step without a candle has none.
        assert {at: value for at, value in enumerate(values) if value is not None} == pytest.approx(expected[name]), (
            name
        )
        assert len(values) == 40
    assert not expected["vwap"] and min(expected["sma"]) == 20 and min(expected["volatility"]) == 21


async def test_vwap_weighs_prices_with_their_volume(page: Page, stage: Stage) -> None:
    await page.goto(stage.at("/about"))
    values = await in_store(
        page,
        PUT + "const twice = made.map((line) => [...line, ...line]);"
        + "store.put({names, values: twice, end_us: 1080e6}, null); return line('vwap');",
    )  # fmt: skip
    rows = [(close, 10 + at % 40) for at, close in enumerate(closes() * 2) if close is not None]
    places = [at for at, close in enumerate(closes() * 2) if close is not None]
    expected = {}
    for count in range(60, len(rows) + 1):
        last = rows[count - 60 : count]
        expected[places[count - 1]] = math.fsum(p * v for p, v in last) / sum(v for _, v in last)
    assert {at: value for at, value in enumerate(values) if value is not None} == pytest.approx(expected)


async def test_a_new_candle_costs_one_value_of_each_indicator(page: Page, stage: Stage) -> None:
    """In steps, with a candle that forms, and with older ones in front, they come to the same as at once."""
    await page.goto(stage.at("/about"))
    found = await in_store(
        page,
        PUT
        + """
        store.put(part(10, 30), [1, 2, 0, 1.5, 3]);
        const before = computed();
        store.put(part(10, 30), [1, 2, 0, 1.75, 3]);
        const again = computed() - before;
        store.put(part(11, 31), null);
        const next = computed() - before - again;
        for (let to = 32; to <= 40; to += 1) store.put(part(to - 20, to), made.map((line) => line[to] ?? 1));
        store.put(part(20, 40), null);
        const page = (from, to, begins) => ({start_us: (1000 + from) * 1e6, open: made[0].slice(from, to),
            spread: [], high: made[1].slice(from, to), low: made[2].slice(from, to), close: made[3].slice(from, to),
            volume: made[4].slice(from, to), begins});
        store.putBefore(page(4, 10, ""));
        const reached = store.reached;
        store.putBefore(page(0, 4, "the log begins there"));
        const {names: shown, values, end_us} = store.chart();
        return {again, next, reached, begins: store.begins, end_us, shown, closes: values[3],
            sma: line("sma"), ema: line("ema"), volatility: line("volatility")};
        """,
    )
    assert (found["reached"], found["begins"], found["end_us"]) == (1004, "the log begins there", 1_040e6)
    assert found["closes"] == closes()
    assert found["again"] <= 4 and found["next"] <= 4  # of four indicators that have enough candles
    assert found["shown"][5:] == ["VWAP 60", "SMA 20", "EMA 20", "Bollinger upper", "Bollinger lower"]
    at_once = await in_store(
        page, PUT + 'store.put(part(0, 40), null); return ["sma", "ema", "volatility"].map((key) => line(key));'
    )
    assert [found["sma"], found["ema"], found["volatility"]] == at_once


async def drawn(page: Page) -> dict[str, Any]:
    """What the first chart shows, once it does."""
    async with asyncio.timeout(WAIT_MS / 1000):
        while (found := await page.evaluate(RANGE)) is None:
            pass
    assert isinstance(found, dict)
    return found


async def drag(page: Page, share: float) -> None:
    """Pans the first chart by a share of its width."""
    box = await page.locator('[data-chart="price"] canvas').first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] * 0.1, y)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * (0.1 + share / 2), y)
    await page.mouse.move(box["x"] + box["width"] * (0.1 + share), y)
    await page.mouse.up()


async def long_past(feed: Feed, seconds: int) -> dict[int, float]:
    """A quote in the middle of each second; the closes by their second."""
    now_s = int(time.time())
    prices = {}
    for ago in range(seconds, 0, -1):
        price = round(200 + ago * 7 % 11 / 10 + ago / 1_000, 3)
        await feed.quote("AAPL", price, size=1, ago_s=time.time() - (now_s - ago + 0.5))
        prices[now_s - ago] = price
    await feed.quote("MSFT", 424.0)
    await feed.now("AAPL", 201.0)
    return prices


async def test_older_candles_load_as_one_pans(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        prices = await long_past(feed, 700)
        await page.goto(stage.at(f"{feed.at}&symbol=AAPL"))
        await live(page)
        await expect(page.locator("#price-summary")).to_contain_text("AAPL")
        begins = page.locator("[data-pane] [data-begins]").first
        before = await drawn(page)
        assert 0 < before["count"] < 300
        await drag(page, 0.8)
        panned = await drawn(page)
        span = before["to_s"] - before["from_s"]
        assert panned["to_s"] - panned["from_s"] == pytest.approx(span)
        async with asyncio.timeout(WAIT_MS / 1000):
            while "log begins" not in await begins.inner_text():
                at = await drawn(page)
                await drag(page, 0.8)
                moved = await drawn(page)
                assert moved["from_s"] <= at["from_s"]  # no jump, while pages come
        found = await drawn(page)
        assert found["to_s"] - found["from_s"] == pytest.approx(span)
        known = {int(second): close for second, close in found["closes"].items() if close is not None}
        assert {second: known.get(second) for second in prices} == prices
        assert found["spreads"] >= len(prices)
        await expect(begins).to_contain_text("the log begins there")
        await shot(page, "quotes-begin")


async def test_a_page_of_an_earlier_symbol_is_not_shown(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await long_past(feed, 400)
        frames: list[str] = []
        page.on("websocket", lambda socket: socket.on("framesent", lambda sent: frames.append(str(sent))))
        await page.goto(stage.at(f"{feed.at}&symbol=AAPL"))
        await live(page)
        await drawn(page)
        async with asyncio.timeout(WAIT_MS / 1000):
            while not any('"channel":"candles"' in sent for sent in frames):
                await drag(page, 0.8)
        await row(page, "MSFT").click()
        await expect(page.locator("#price-summary")).to_contain_text("MSFT")
        found = await drawn(page)
        known = {close for close in found["closes"].values() if close is not None}
        assert known <= {424.0}
        opened = [re.search(r'"id":"(\d+)"', sent) for sent in frames if '"channel":"candles"' in sent]
        closed = [sent for sent in frames if '"unsubscribe"' in sent]
        assert opened and all(one is not None and any(f'"id":"{one[1]}"' in sent for sent in closed) for one in opened)


async def test_indicators_are_switched_and_stay_so(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 120)
        await page.goto(stage.at(feed.at))
        await live(page)
        legend = page.locator('[data-chart="price"] .legend')
        await expect(legend).not_to_contain_text("SMA")
        await page.locator(".indicators summary").click()
        for name in ("SMA", "Bollinger", "Volatility"):
            await page.get_by_role("checkbox", name=name).check()
        await expect(legend).to_contain_text("SMA 20")
        await expect(legend).to_contain_text("Bollinger upper")
        await expect(page.locator("#volatility-summary")).to_contain_text("%")
        await page.reload()
        await live(page)
        await expect(legend).to_contain_text("Bollinger lower")
        await expect(page.locator('[data-chart="volatility"]')).to_be_visible()
        await page.locator(".indicators summary").click()
        await page.get_by_role("checkbox", name="SMA").uncheck()
        await expect(legend).not_to_contain_text("SMA")
        await shot(page, "quotes-indicators")
        await axe(page)


async def test_several_charts_have_each_a_symbol(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        for symbol, price in (("AAPL", 227.5), ("MSFT", 424.0), ("NVDA", 132.0)):
            await feed.past(symbol, price, 60)
        await page.goto(stage.at(feed.at))
        await live(page)
        await expect(page.locator('[data-chart="price-2"]')).to_be_hidden()
        await page.get_by_role("navigation", name="Charts side by side").get_by_role("link", name="2").click()
        await expect(page.locator("#price-2-summary")).to_contain_text("MSFT")
        box = page.get_by_label("Symbol of chart 2")
        await box.fill("nvda")
        await box.press("Enter")
        await expect(page.locator("#price-2-summary")).to_contain_text("NVDA")
        await expect(page).to_have_url(re.compile("also=NVDA"))
        await expect(page.locator("#price-summary")).to_contain_text("AAPL")
        await box.fill("nothing")
        await box.press("Enter")
        await expect(page.get_by_text("No quotes of nothing here.")).to_be_visible()
        await shot(page, "quotes-panes")
        await axe(page)


async def test_the_watchlist_is_chosen_stored_and_in_the_address(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        for symbol, price in (("AAPL", 227.5), ("MSFT", 424.0), ("NVDA", 132.0)):
            await feed.past(symbol, price, 5)
        await page.goto(stage.at(f"{feed.at}&symbol=MSFT"))
        await live(page)
        await page.get_by_role("button", name="Remove from list").click()
        await expect(row(page, "MSFT")).to_be_hidden()
        await expect(page).to_have_url(re.compile("symbols=AAPL%2CNVDA"))
        await expect(page.get_by_text("2 of 3 symbols")).to_be_visible()
        await page.goto(stage.at(feed.at))
        await live(page)
        await expect(row(page, "MSFT")).to_be_hidden()
        await expect(page).to_have_url(re.compile("symbols=AAPL%2CNVDA"))
        await page.get_by_label("Symbol to add to the watchlist").fill("msft")
        await page.get_by_role("button", name="Add", exact=True).click()
        await expect(row(page, "MSFT")).to_be_visible()
        await page.goto(stage.at(f"{feed.at}&symbols=NVDA"))  # a link from elsewhere
        await live(page)
        await expect(row(page, "AAPL")).to_be_hidden()
        await expect(row(page, "NVDA")).to_be_visible()
        await page.get_by_role("button", name="All", exact=True).click()
        await expect(row(page, "AAPL")).to_be_visible()
        await page.get_by_role("columnheader", name="Change").get_by_role("link").click()
        await expect(page).to_have_url(re.compile("sort=-percent"))


async def test_trades_are_told_with_their_side_and_bad_prints_as_such(page: Page, stage: Stage) -> None:
    async with feeding(stage) as feed:
        await feed.past("AAPL", 227.5, 80)
        await page.goto(stage.at(feed.at))
        await live(page)
        tape = page.locator('[data-table="tape"] tbody tr')
        await expect(tape).to_have_count(30)  # of eighty
        await expect(page.locator('[data-field="spread"]').first).to_contain_text("bp")
        await feed.trade("AAPL", 228.5, bid=228.4, ask=228.5, size=70)
        await expect(tape.first).to_contain_text("buy")
        await feed.trade("AAPL", 331.0, bid=228.4, ask=228.5, size=7)
        await expect(tape.first).to_contain_text("◇ 331.00")
        await expect(page.locator(".price").first).to_have_text("228.50")
        await expect(page.get_by_text("1 price left out, far from bid and ask")).to_be_visible()
        await expect(tape).to_have_count(30)


async def test_all_of_it_fits_a_narrow_screen(browser: Browser, stage: Stage) -> None:
    async with feeding(stage) as feed:
        for symbol, price in (("AAPL", 227.5), ("MSFT", 424.0)):
            await feed.past(symbol, price, 100)
        async with watched(browser, color_scheme="dark", viewport={"width": 390, "height": 844}) as found:
            page = await found.context.new_page()
            await page.goto(stage.at(f"{feed.at}&panes=2&symbols=AAPL"))
            await live(page)
            await expect(page.locator("#price-2-summary")).to_contain_text("MSFT")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await page.locator(".indicators summary").click()
            await page.get_by_role("checkbox", name="Volatility").check()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await shot(page, "quotes-panes-390")
            await axe(page)
