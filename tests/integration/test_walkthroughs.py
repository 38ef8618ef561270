"""The programs and commands of README, the tutorial and the guides print what the documents say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.integration.gateway_tour import ROOT, plain, steps, up
from tests.integration.readme import Terminal, blocks, one_minute
from tests.integration.walkthroughs import DOCUMENTS, ELSEWHERE, SECURE, SPARK, walk

# Commands of README that the test does not run, and the reason.
EXEMPT: Final = {"pip install .": "make installs the package before the tests, in .ci/run from a clean clone"}


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
    assert guides <= {*DOCUMENTS, SECURE, *ELSEWHERE}
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("curl") is None, reason="README has calls of curl")
def test_one_minute_of_readme_does_what_it_says(tmp_path: Path) -> None:
    found = blocks((ROOT / "README.md").read_text())
    assert [block.language for block in found] == ["console", "console", "python", "python", "console"]
    install = found[0]
    started = [command.bare for command in install.commands() if command.bare not in EXEMPT]
    assert started == ["comet up"]
    with up() as there:
        one_minute(Terminal(there, tmp_path), found)
