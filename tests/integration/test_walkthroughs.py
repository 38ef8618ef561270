"""The programs and commands of the tutorial and the guides print what the documents say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.gateway_tour import ROOT, plain, steps, up
from tests.integration.walkthroughs import DOCUMENTS, SPARK, walk


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
    assert guides <= DOCUMENTS
