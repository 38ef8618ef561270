"""The distributions: what they hold, and README's "One minute" from an environment that has the wheel alone."""

from __future__ import annotations

import email
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from comet.wire.version import VERSION
from tests.deploy.containers import copy_sources, do
from tests.integration.gateway_tour import up
from tests.integration.readme import Terminal, blocks, one_minute
from tests.tidy.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("wheels")
    copy_sources(folder / "source")
    do(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "-d", folder, cwd=folder / "source")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    do(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, folder / f"comet_stream-{VERSION}.tar.gz")
    return folder


def test_the_sdist_is_what_the_wheel_and_its_tests_need(built: Path) -> None:
    with tarfile.open(built / f"comet_stream-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"LICENSE", "README.md", "pyproject.toml", "Makefile", "tests/conftest.py"}
    assert not [name for name in names if name.startswith((".git/", ".venv", "build/"))]


def test_the_wheel_has_the_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(built / f"comet_stream-{VERSION}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        metadata = email.message_from_bytes(wheel.read(f"comet_stream-{VERSION}.dist-info/METADATA"))
    servers = ("comet_broker", "comet_gateway", "comet_web", "comet_demo")
    packages = ("comet", "comet_testing", "pyspark_comet", *servers)
    assert {name.partition("/")[0] for name in names} == {*packages, f"comet_stream-{VERSION}.dist-info"}
    assert f"comet_stream-{VERSION}.dist-info/licenses/LICENSE" in names
    assert names >= {f"{package}/py.typed" for package in packages if package != "pyspark_comet"}
    assert not [name for name in names if name.endswith(".pyc")]
    assert metadata["License-Expression"] == "Apache-2.0"


def test_one_minute_of_readme_from_the_wheel(built: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    do(sys.executable, "-m", "venv", environment)
    python = environment / "bin/python"
    quiet = ["install", "--quiet", "--disable-pip-version-check"]
    do(python, "-m", "pip", *quiet, "--require-hashes", "-r", ROOT / "requirements/image.txt")
    do(python, "-m", "pip", *quiet, "--no-deps", built / f"comet_stream-{VERSION}-py3-none-any.whl")
    do(python, "-m", "pip", "check")
    assert do(environment / "bin/comet", "--version", cwd=tmp_path) == f"comet {VERSION}\n"
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with up(python=python) as there:
        one_minute(Terminal(there, folder, environment / "bin"), blocks((ROOT / "README.md").read_text()))
