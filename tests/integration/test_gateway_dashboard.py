"""Pages as answers, with a broker behind them: HTML, CSV, the files that they load, and pages of what went wrong."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import zstandard

import comet
from comet_gateway import GatewayConfig, create_app
from comet_gateway.http.auth import new_token
from comet_web import render
from comet_web.pages import PAGES
from tests.integration.live_gateway import PATIENCE_S, Gateway, live_gateway
from tests.integration.test_gateway_mounted import mounted

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8", "accept-encoding": "identity"}
PARTS = {"topic": "quotes", "group": "engine", "broker": "1", "schedule": "report"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with live_gateway({"quotes": 3, "orders.eu": 1}) as found:
        async with comet.Admin(found.broker) as admin, comet.Producer(found.broker) as producer:
            await producer.send_many("quotes", [b"1", b"2", b"3"])
            await producer.flush()
            await admin.commit_offsets("engine", {comet.TopicPartition("quotes", 0): 0})
        yield found


pytestmark = pytest.mark.asyncio(loop_scope="module")


ADDRESSES = [re.sub(r"{(\w+)(:path)?}", lambda found: PARTS[found[1]], page.path) for page in PAGES]


async def get(gateway: Gateway, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url, headers=BROWSER, timeout=PATIENCE_S) as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize("path", ADDRESSES)
async def test_every_page_is_there_before_any_script_runs(gateway: Gateway, path: str) -> None:
    answer = await get(gateway, path)
    # Of what is named in the path there may be none, which is a page, too.
    assert answer.status_code in (200, 404), answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<h1" in answer.text
    assert f"/static/{render.version()}/" in answer.text


async def test_a_page_shows_what_there_is(gateway: Gateway) -> None:
    text = (await get(gateway, "/topics")).text
    assert "orders.eu" in text
    assert 'href="/topics/quotes"' in text
    filtered = (await get(gateway, "/topics?filter=ORD")).text
    assert "orders.eu" in filtered
    assert 'href="/topics/quotes"' not in filtered
    wrong = await get(gateway, "/topics?filter=((")
    assert wrong.status_code == 200  # the page says beside the filter why it is none


@pytest.mark.parametrize("path", [page.csv for page in PAGES if page.csv and "{" not in page.csv])
async def test_every_table_is_there_as_csv(gateway: Gateway, path: str) -> None:
    answer = await get(gateway, path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    head, *rows = csv.reader(StringIO(answer.text))
    assert all(len(row) == len(head) for row in rows)


async def test_csv_is_filtered_and_sorted_as_the_page_is(gateway: Gateway) -> None:
    head, *everything = csv.reader(StringIO((await get(gateway, "/topics.csv?sort=-partitions")).text))
    assert [(row[0], row[head.index("Partitions")]) for row in everything] == [("quotes", "3"), ("orders.eu", "1")]
    found = list(csv.reader(StringIO((await get(gateway, "/topics.csv?filter=orders")).text)))
    assert [row[0] for row in found[1:]] == ["orders.eu"]
    wrong = await get(gateway, "/topics.csv?filter=((", accept="*/*")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "VALIDATION")


async def test_a_person_sees_a_page_of_what_went_wrong_and_a_program_a_document(gateway: Gateway) -> None:
    for path, status in (("/topics/none", 404), ("/nowhere", 404), ("/groups/none", 404), ("/brokers/77", 404)):
        seen = await get(gateway, path)
        assert seen.status_code == status
        assert seen.headers["content-type"] == "text/html; charset=utf-8"
        assert seen.headers["x-request-id"] in seen.text
        told = await get(gateway, path, accept="application/json")
        assert told.status_code == status
        assert told.headers["content-type"] == "application/problem+json"
        assert told.json()["request_id"] == told.headers["x-request-id"]
    api = await get(gateway, "/v1/topics/none")  # of the API it is a document, whoever asks
    assert api.headers["content-type"] == "application/problem+json"


async def test_markup_in_an_address_stays_text(gateway: Gateway) -> None:
    for path in ("/topics/%3Cscript%3E", "/%3Cb%3E", "/topics?filter=%3Cscript%3Ealert(1)", "/groups/%22%3E%3Cb%3E"):
        text = (await get(gateway, path)).text
        assert "<script>" not in text
        assert "<b>" not in text


async def test_files_are_kept_for_ever_under_the_address_of_their_version(gateway: Gateway) -> None:
    for path, body in render.static().items():
        answer = await get(gateway, f"/static/{render.version()}/{path}")
        assert answer.content == body
        assert answer.headers["content-type"] == render.CONTENT_TYPES[Path(path).suffix]
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["vary"] == "accept-encoding"
    old = await get(gateway, "/static/0ld/css/base.css")  # a page that was loaded before the gateway was upgraded
    assert old.content == render.static()["css/base.css"]
    assert old.headers["cache-control"] == "no-cache"
    for none in ("css/none.css", "../pages.py", "..%2fpages.py", "%2e%2e/pages.py", "", "/etc/passwd"):
        assert (await get(gateway, f"/static/x/{none}")).status_code == 404, none


async def test_files_come_compressed_as_the_browser_likes_it(gateway: Gateway) -> None:
    path, body = f"/static/{render.version()}/css/base.css", render.static()["css/base.css"]
    async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as client:
        for encoding, unpacked in (
            ("gzip", gzip.decompress),
            ("zstd", lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
        ):
            async with client.stream("GET", path, headers={"accept-encoding": encoding}) as answer:
                packed = b"".join([part async for part in answer.aiter_raw()])
            assert answer.headers["content-encoding"] == encoding
            assert len(packed) == int(answer.headers["content-length"]) < len(body) / 2
            assert unpacked(packed) == body


async def test_what_a_page_loads_is_small(gateway: Gateway) -> None:
    """All scripts and styles of all pages together, and so more than any page loads."""
    async with httpx.AsyncClient(
        base_url=gateway.url, headers={"accept-encoding": "zstd"}, timeout=PATIENCE_S
    ) as client:
        total = 0
        for path in render.static():
            async with client.stream("GET", f"/static/{render.version()}/{path}") as answer:
                total += sum([len(part) async for part in answer.aiter_raw()])
    assert total < 170_000


async def test_nobody_changes_anything_by_asking_in_another_way(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as client:
        for path in ("/topics", "/topics.csv", "/static/x/css/base.css"):
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                answer = await client.request(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD"), (method, path)
            assert (await client.head(path)).status_code == 200


async def test_it_can_be_left_out() -> None:
    transport = httpx.ASGITransport(create_app(GatewayConfig(dashboard=False)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as calls:
        for path in ("/", "/topics", "/static/x/css/base.css", "/login"):
            answer = await calls.get(path, headers=BROWSER)
            assert answer.status_code == 404
            assert answer.headers["content-type"] == "application/problem+json"
        assert (await calls.get("/livez")).status_code == 200


async def test_pages_need_the_role_of_their_row(tmp_path: Path) -> None:
    _, row = new_token("anna", "viewer")
    path = tmp_path / "tokens.toml"
    path.write_text(row)
    app = create_app(GatewayConfig(tokens_file=str(path)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as calls:
        for address in ADDRESSES:
            nobody = await calls.get(address, headers={"accept": "application/json"})
            assert nobody.status_code in (303, 401), address
        assert (await calls.get(f"/static/{render.version()}/css/base.css")).status_code == 200
        refused = await calls.get("/topics", headers={**BROWSER, "authorization": "Bearer wrong"})
        assert refused.status_code == 401


async def test_pages_know_what_they_are_mounted_under() -> None:
    async with (
        mounted() as address,
        httpx.AsyncClient(base_url=f"http://{address}", headers=BROWSER, timeout=PATIENCE_S) as client,
    ):
        text = (await client.get("/events/topics")).text
        assert 'href="/events/topics/quotes"' in text
        assert f'"/events/static/{render.version()}/' in text
        assert 'href="/topics' not in text
        assert (await client.get(f"/events/static/{render.version()}/css/base.css")).status_code == 200
        lost = await client.get("/events/nowhere")
        assert lost.status_code == 404
        assert 'href="/events/"' in lost.text
