"""The files that browsers load: none can make markup of a stranger's text, and nothing comes from outside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

WEB = ROOT / "web/comet_web"
SCRIPTS = sorted((WEB / "static").rglob("*.js"))
STYLES = sorted((WEB / "static").rglob("*.css"))
TEMPLATES = sorted((WEB / "templates").rglob("*.html"))

# What takes text and makes markup or code of it.
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function\(|setHTMLUnsafe|parseFromString"
    r"|createContextualFragment|srcdoc|setTimeout\(\s*[\"'`]"
)
OUTSIDE = re.compile(r"https?://(?!www\.w3\.org/)|//cdn|@import\s+url\(")
LINES_MAX = 500


def _names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_there_is_something_to_look_at() -> None:
    assert SCRIPTS
    assert STYLES
    assert TEMPLATES


@pytest.mark.parametrize("path", SCRIPTS, ids=_names(SCRIPTS))
def test_scripts_write_text_and_nothing_else(path: Path) -> None:
    text = path.read_text()
    assert not SINKS.findall(text)
    assert not OUTSIDE.findall(text)
    assert text.count("\n") <= LINES_MAX
    for found in re.findall(r"""\bfrom\s+["']([^"']+)["']|\bimport\(\s*["']([^"']+)["']""", text):
        assert "".join(found).startswith(("./", "../")), "imports are relative: maps of imports need inline scripts"


@pytest.mark.parametrize("path", STYLES, ids=_names(STYLES))
def test_styles_come_from_here(path: Path) -> None:
    assert not OUTSIDE.findall(path.read_text())


@pytest.mark.parametrize("path", TEMPLATES, ids=_names(TEMPLATES))
def test_templates_fit_the_content_security_policy(path: Path) -> None:
    """No inline script or style, no handler as an attribute, nothing that escaping is turned off for."""
    text = re.sub(r"{#.*?#}", "", path.read_text(), flags=re.DOTALL)
    assert not re.findall(r"\|\s*safe\b|autoescape\s+false|Markup\(", text)
    assert not re.findall(r"<[^>]*\s(?:style|on[a-z]+)\s*=", text)
    assert not re.findall(r"<script(?![^>]*\ssrc=)", text)
    assert "<style" not in text
    assert not OUTSIDE.findall(text)
