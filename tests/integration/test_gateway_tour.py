"""The pages of docs/gateway and their examples do what they say, and their tables are the code's."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
import pytest

import comet.sync
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.dashboard.sources import Sources
from comet_gateway.dashboard.subscriptions import SubscribableDashboard
from comet_gateway.http.auth import UNRESTRICTED
from comet_gateway.push.frames import ClientFrame, GroupTerms, Pong, ServerFrame, Subscribe
from comet_gateway.push.session import PushSession, SendFrame
from comet_gateway.push.sse import SseQuery
from tests.integration.gateway_tour import FOLDER, ROOT, Up, plain, play, steps, tables, up

PAGES = ("index.md", "rest.md", "streams.md", "running.md", "alerts.md")
TEXT = "\n".join((FOLDER / page).read_text() for page in PAGES)
PAGE = "http://localhost:8000"
TIMEOUT_S = 60


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("curl") is None, reason="the tour is made of calls of curl")
def test_the_tour_prints_what_the_document_says(tmp_path: Path) -> None:
    tour = steps(TEXT)
    assert tour
    with up() as there:
        printed = play(tour, there, tmp_path)
    for step, now in zip(tour, printed, strict=True):
        found, wanted = plain(now).splitlines(), plain(step.printed).splitlines()
        if "gateway_websockets.py" in step.commands:  # the receipt comes when it comes
            found, wanted = sorted(found), sorted(wanted)
        assert found == wanted, step.commands


@pytest.fixture(scope="module")
def there() -> Iterator[Up]:
    with up() as found:
        with comet.sync.Admin(found.broker) as admin:
            admin.create_topic("quotes")
        yield found


@pytest.fixture
def open_to_pages() -> Iterator[Up]:
    """`comet up` as the tour starts it for a page of another origin."""
    asked = re.search(r"^\$ comet up (--origins \S+)$", TEXT, re.MULTILINE)
    assert asked
    with up(*asked[1].split()) as there:
        yield there


def test_the_page_of_the_browser_gets_what_it_reads(open_to_pages: Up) -> None:
    page = (ROOT / "examples/browser.html").read_text()
    assert len(page.splitlines()) <= 20
    topics = f"{open_to_pages.gateway}/v1/topics"
    httpx.post(topics, json={"name": "quotes"}, timeout=TIMEOUT_S).raise_for_status()
    quote = {"key": "EURUSD", "value": {"bid": 1.08}}
    httpx.post(f"{topics}/quotes/records", json=quote, timeout=TIMEOUT_S).raise_for_status()
    found = re.search(r"/stream\?([^`]*)`", page)
    assert found
    url = f"{topics}/quotes/stream?{found[1]}"
    seen: dict[str, str] = {}
    with httpx.stream(
        "GET", url, headers={"origin": PAGE, "sec-fetch-site": "cross-site"}, timeout=TIMEOUT_S
    ) as answer:
        assert answer.status_code == httpx.codes.OK
        assert answer.headers["access-control-allow-origin"] == PAGE
        name = ""
        for line in answer.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                seen[name] = value
            if "snapshot" in seen:
                break
    assert '"recovered"' in seen["subscribed"]
    assert '"key":"EURUSD"' in seen["snapshot"]
    for name in ("subscribed", "snapshot"):
        assert f'"{name}"' in page


@pytest.mark.skipif(shutil.which("node") is None, reason="checks the grammar of a script with node")
def test_the_script_of_the_page_is_one(tmp_path: Path) -> None:
    found = re.search(r"<script>(.*)</script>", (ROOT / "examples/browser.html").read_text(), re.DOTALL)
    assert found
    (tmp_path / "page.mjs").write_text(found[1])
    subprocess.run(["node", "--check", str(tmp_path / "page.mjs")], check=True, timeout=TIMEOUT_S)


def test_the_examples_write_and_follow(there: Up) -> None:
    def run(name: str, *arguments: str) -> list[str]:
        command = [sys.executable, str(ROOT / "examples" / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        assert not done.stderr
        return done.stdout.splitlines()

    lines = run("gateway_httpx.py", there.gateway)
    assert [line.split(":")[0] for line in lines] == ["written"] * 3 + ["newest"] + ["followed"] * 3
    socket = there.gateway.replace("http", "ws", 1) + "/v1/ws"
    ends = httpx.get(f"{there.gateway}/v1/topics/quotes/offsets?at=latest", timeout=TIMEOUT_S).json()
    count = 1 + sum(int(one["offset"]) for one in ends["partitions"])
    lines = run("gateway_websockets.py", socket, str(count))
    assert any(line.startswith("written: [{") for line in lines)
    assert any("151.2" in line for line in lines)
    lines = run("gateway_page.py", socket, "/topics?filter=quotes", "3")  # the page, and two changes
    assert all(line.startswith("topics: quotes | ") for line in lines) and lines, lines
    assert run("gateway_page.py", socket, "/nowhere", "1") == ["problem: page '/nowhere' does not exist"]


def test_it_is_embedded_as_shown(there: Up) -> None:
    found = re.search(r"^## Embedding it\n.*?```python\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(found[1].replace("localhost:9092", there.broker), names)

    async def ask() -> None:
        transport = httpx.ASGITransport(names["app"])
        async with (
            names["app"].router.lifespan_context(names["app"]),
            httpx.AsyncClient(transport=transport, base_url="http://localhost/comet/v1/topics/quotes") as http,
        ):
            written = (await http.post("/records", json={"value": "embedded"})).json()["results"][0]
            path = f"/partitions/{written['partition']}/records"
            records = (await http.get(path, params={"offset": written["offset"]})).json()["records"]
            assert records[0]["value"] == "embedded"

    asyncio.run(ask())


def rows(heading: str, first: str = "") -> list[list[str]]:
    """The cells of the first table below a heading, or of that whose first column is called so."""
    table = rf"((?:\| {first}[^\n]*\n)(?:\|[^\n]*\n)+)"
    found = re.search(rf"^#+ {re.escape(heading)}\n.*?\n{table}", TEXT, re.MULTILINE | re.DOTALL)
    assert found, heading
    _, _, *body = found[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def test_there_are_no_other_pages() -> None:
    assert {page.name for page in FOLDER.iterdir()} == set(PAGES)


def test_its_tables_are_the_codes() -> None:
    for (_, heading), wanted in tables().items():
        assert [tuple(cells) for cells in rows(heading)] == wanted, (
            f"{heading}: python -m tests.integration.gateway_tour"
        )


def test_the_metrics_that_are_named_are_those_there_are(there: Up) -> None:
    shown = httpx.get(f"{there.gateway}/metrics", timeout=TIMEOUT_S).text
    named = {cells[0].strip("`").removesuffix("_total") for cells in rows("Operations")}
    assert named == set(re.findall(r"^# TYPE (\w+?)(?:_total)? ", shown, re.MULTILINE))


def test_every_frame_is_described() -> None:
    for union in (ClientFrame, ServerFrame):
        for frame in union.__args__:
            assert f"`{frame.__struct_config__.tag}`" in TEXT, frame


def test_every_frame_that_is_shown_is_one() -> None:
    shown = [line for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    assert len(shown) > 10
    sources = cast(Sources, SimpleNamespace(config=GatewayConfig()))
    session = PushSession(Limits(), UNRESTRICTED, SubscribableDashboard(sources, is_open=True))
    for line in shown:
        said = [action for action in session.take(line, now_us=1_800_000_000_000_000) if isinstance(action, SendFrame)]
        assert [type(one.frame) for one in said] == ([Pong] if "ping" in line else []), said


def test_every_option_is_in_the_table_with_its_default() -> None:
    found = {name: cells[1] for cells in rows("Following", "option") for name in re.findall(r"`(\w+)`", cells[0])}
    said = {
        field.encode_name: field.default
        for field in msgspec.structs.fields(SseQuery)
        if field.default not in (None, msgspec.NODEFAULT)
    }
    assert {name: found[name] for name in said} == {name: str(default) for name, default in said.items()}
    subscription = {field.encode_name for field in msgspec.structs.fields(Subscribe)}
    elsewhere = {"id", "topic", "topics", "pattern", "cursors", "group", "replay", "page", "channel", "params"}
    assert subscription - elsewhere <= found.keys()
    assert {field.encode_name for field in msgspec.structs.fields(SseQuery)} <= found.keys()
    group = {cells[0].strip("`"): cells[1] for cells in rows("Groups over the socket")}
    assert group.keys() == {field.encode_name for field in msgspec.structs.fields(GroupTerms)}
    for field in msgspec.structs.fields(GroupTerms):
        if field.default is not msgspec.NODEFAULT:
            assert group[field.encode_name] == str(field.default).lower(), field.name
