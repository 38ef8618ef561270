"""The locked dependencies in requirements/ agree with pyproject.toml: what `make lock` writes is what it declares."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.tree import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
BENCH: dict[str, Any] = tomllib.loads((ROOT / "bench/pyproject.toml").read_text())
RUNTIME: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
DECLARED = {
    "build": PROJECT["build-system"]["requires"] + BENCH["build-system"]["requires"],
    "demo": RUNTIME,
    "spark": EXTRAS["spark"],
    "image": RUNTIME + EXTRAS["security"],
    "image-spark": RUNTIME + EXTRAS["security"] + EXTRAS["spark"],
    "development": RUNTIME + EXTRAS["dev"],
    "deploy": EXTRAS["deploy"],
    "chart": EXTRAS["chart"],
    "proxies": EXTRAS["proxies"],
}
PIN = re.compile(r"^(\S+)==(\S+)(?: ; [^\\\n]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def text(name: str) -> str:
    return (ROOT / f"requirements/{name}.txt").read_text()


def pins(name: str) -> dict[str, set[str]]:
    """The versions of each package; several if they differ by Python or platform."""
    found: dict[str, set[str]] = {}
    for package, version, _ in PIN.findall(text(name)):
        found.setdefault(canonicalize_name(package), set()).add(version)
    return found


@pytest.mark.parametrize("name", DECLARED)
def test_locked_versions_are_those_that_the_project_allows(name: str) -> None:
    locked = pins(name)
    for line in DECLARED[name]:
        wanted = Requirement(line)
        versions = locked.get(canonicalize_name(wanted.name), set())
        assert versions, f"{wanted.name} is not in requirements/{name}.txt: make lock"
        assert all(version in wanted.specifier for version in versions), f"{line}, but {versions} is locked: make lock"


@pytest.mark.parametrize("name", DECLARED)
def test_every_line_is_a_version_with_hashes(name: str) -> None:
    """No address of an index either: any one that has these files will do."""
    assert re.sub(r"^#.*\n", "", PIN.sub("", text(name)), flags=re.MULTILINE) == ""


@pytest.mark.parametrize("name", ["build", "demo", "spark", "image", "image-spark"])
def test_what_is_shipped_or_shown_is_what_is_tested(name: str) -> None:
    tested = pins("development") | pins("build")
    assert {package: tested.get(package) for package in pins(name)} == pins(name)


def test_the_distribution_of_benchmarks_needs_nothing_else() -> None:
    assert [Requirement(line).name for line in BENCH["project"]["dependencies"]] == [PROJECT["project"]["name"]]
