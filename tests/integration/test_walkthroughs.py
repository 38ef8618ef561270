"""The programs and commands of README, the tutorial and the guides print what the documents say."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from pathlib import Path
from typing import Final

import httpx
import pytest

import comet.sync
from tests import waiting
from tests.integration.gateway_tour import ROOT, plain, steps, up
from tests.integration.readme import Terminal, blocks, interrupt, lines
from tests.integration.walkthroughs import DOCUMENTS, SECURE, SPARK, walk

# Commands of README that the test does not run, and the reason.
EXEMPT: Final = {"pip install .": "make installs the package before the tests, in .ci/run from a clean clone"}
BID, ASK = 9.5, 9.75
QUOTE: Final = {"symbol": "ACME", "bid": BID, "ask": ASK}
PARTITIONS: Final = 4
WAIT_S_MAX: Final = 60


def check(document: str, folder: Path) -> None:
    text = (ROOT / document).read_text()
    with up() as there:
        printed = walk(text, there, folder)
    for step, now in zip(steps(text), printed, strict=True):
        assert plain(now).splitlines() == plain(step.printed).splitlines(), step.commands


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", sorted(DOCUMENTS - {SPARK}))
def test_a_document_prints_what_it_says(document: str, tmp_path: Path) -> None:
    check(document, tmp_path)


def test_all_guides_are_known() -> None:
    guides = {str(path.relative_to(ROOT)) for path in (ROOT / "docs/guides").iterdir()}
    assert guides <= {*DOCUMENTS, SECURE}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("curl") is None, reason="README has calls of curl")
def test_one_minute_of_readme_does_what_it_says(tmp_path: Path) -> None:
    found = blocks((ROOT / "README.md").read_text())
    assert [block.language for block in found] == ["console", "console", "python", "python", "console"]
    install, shell, reading, writing, http = found
    started = [command.bare for command in install.commands() if command.bare not in EXEMPT]
    assert started == ["comet up"]
    spread = f"ACME {ASK - BID}"
    assert f"# {spread}\n" in reading.code
    with up() as there, comet.sync.Admin(there.broker) as admin:
        terminal = Terminal(there, tmp_path)

        def subscriptions() -> int:
            return int(admin.statistics(brief=True)["totals"]["readers"])

        assert httpx.get(there.gateway, follow_redirects=True, timeout=WAIT_S_MAX).status_code == 200

        create, produce, consume = shell.commands()
        for command in (create, produce):
            assert terminal.run(command) == command.printed, command.line
        assert consume.printed
        with terminal.running(consume) as following:
            printed = lines(following)
            assert [next(printed) for _ in consume.printed] == consume.printed
            assert interrupt(following) == 128 + signal.SIGINT
            assert list(printed) == []
        assert asyncio.run(waiting.until(lambda: subscriptions() == 0, within_s=WAIT_S_MAX))

        with terminal.running(terminal.python("reading.py", reading.code)) as app:
            printed = lines(app)
            assert asyncio.run(waiting.until(lambda: subscriptions() == PARTITIONS, within_s=WAIT_S_MAX))
            assert terminal.run(terminal.python("writing.py", writing.code)) == []
            assert next(printed) == spread
            post, stream = http.commands()
            receipt = json.loads("".join(terminal.run(post)))
            assert [set(result) for result in receipt["results"]] == [{"partition", "offset"}]
            assert next(printed) == spread
            assert interrupt(app) == 0
            assert list(printed) == []

        with terminal.running(stream) as events:
            data = (json.loads(line.removeprefix("data: ")) for line in lines(events) if line.startswith("data: "))
            assert next(data)["topic"] == "quotes"
            records = [next(data) for _ in range(3)]
            assert [record["value"] for record in records] == [QUOTE] * 3
            assert sorted(record.get("key", "") for record in records) == ["", "ACME", "ACME"]
