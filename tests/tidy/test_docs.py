"""Documents stay true: links lead somewhere, code compiles, guarantees name tests that exist."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, files

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")

DOCUMENTS = files("*.md")


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_id)
def test_links_lead_somewhere(document: Path) -> None:
    prose = FENCE.sub("", document.read_text())
    broken = [
        target
        for target in LINK.findall(prose) + IMAGE.findall(prose)
        if not re.match(r"[a-z]+:", target) and not _leads_somewhere(document, target)
    ]
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=_id)
def test_python_in_documents_compiles(document: Path) -> None:
    """Also with `await` outside of a function, as a notebook takes it."""
    for _, language, code in FENCE.findall(document.read_text()):
        if language in {"python", "py"}:
            compile(
                textwrap.dedent(code), _id(document), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
            )


@pytest.mark.parametrize("document", DOCUMENTS, ids=_id)
def test_tests_that_documents_name_exist(document: Path) -> None:
    for name, function in TEST_NAME.findall(document.read_text()):
        path = ROOT / name
        assert path.is_file(), f"{_id(document)} names {name}"
        if function:
            assert re.search(rf"^\s*(async )?def {function}\(", path.read_text(), re.MULTILINE), f"{name}::{function}"


def test_every_guarantee_names_its_test() -> None:
    guarantees = ROOT / "docs/guarantees.md"
    rows = _table_rows(guarantees.read_text())
    assert rows
    assert not [row for row in rows if not TEST_NAME.search(row)]


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    records = sorted(path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md"))
    assert records
    assert [int(name[:4]) for name in records] == list(range(1, len(records) + 1))
    assert not [name for name in records if f"({name})" not in index]


def _leads_somewhere(document: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = document if not name else (document.parent / name).resolve()
    if not path.exists() or not path.is_relative_to(ROOT):
        return False
    return not anchor or path.suffix != ".md" or anchor in {_anchor(text) for text in HEADING.findall(path.read_text())}


def _anchor(heading: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-")


def _table_rows(text: str) -> list[str]:
    """The rows of every table whose header has a column named "Test" or "Tests"."""
    rows: list[str] = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *body = table.splitlines()
        if re.search(r"\|\s*tests?\s*\|", header, re.IGNORECASE):
            rows += body
    return rows
