"""The container image: what it holds, and how it starts, serves, is asked and stops under an OCI runtime."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.deploy.containers import USER, Container, Images, producing
from tests.tidy.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]
SIZE_BYTES_MAX = 250_000_000


@pytest.fixture(scope="module")
def configuration(images: Images) -> dict[str, Any]:
    document: dict[str, Any] = images.inspected()["Docker"]["config"]
    return document


@pytest.fixture(scope="module")
def files(images: Images) -> Iterator[Path]:
    with images.files() as root:
        yield root


def command(configuration: dict[str, Any]) -> list[str]:
    words: list[str] = configuration["Cmd"]
    return words


def environment(configuration: dict[str, Any], **more: str) -> dict[str, str]:
    return dict(one.split("=", 1) for one in configuration["Env"]) | more


def test_hadolint_finds_nothing() -> None:
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    hadolint = shutil.which("hadolint", path=beside)
    assert hadolint is not None, "install hadolint, or: make install"
    done = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_image_is_described(images: Images, configuration: dict[str, Any]) -> None:
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in configuration["Labels"].items()}
    assert labels.items() >= {"title": "Comet", "version": "1.2.3", "revision": "abc", "licenses": "Apache-2.0"}.items()
    assert configuration["User"] == f"{USER}:{USER}", "a number: Kubernetes cannot tell whether a name is root"
    assert configuration["StopSignal"] == "SIGTERM"
    assert configuration["Healthcheck"]["Test"] == ["CMD", "comet", "healthcheck"]
    (found,) = json.loads(images.buildah("images", "--json", "localhost/comet"))
    megabytes, unit = found["size"].split()
    assert unit == "MB" and float(megabytes) * 1e6 < SIZE_BYTES_MAX


def test_the_bill_of_materials_names_what_is_installed(files: Path) -> None:
    text = (files / "opt/comet/sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {one["purl"] for one in json.loads(text)["components"]}
    locked = re.findall(r"^(\S+)==(\S+)(?: ; (.*))? \\$", (ROOT / "requirements/image.txt").read_text(), re.MULTILINE)
    assert listed >= {f"pkg:pypi/{name}@{version}" for name, version, condition in locked if not condition}
    assert any(one.startswith("pkg:pypi/comet-stream@") for one in listed)
    assert not [one for one in listed if one.startswith(("pkg:pypi/pip@", "pkg:pypi/setuptools@"))]


async def test_a_drained_container_loses_no_acknowledged_record(
    files: Path, configuration: dict[str, Any], tmp_path: Path
) -> None:
    """With a root that cannot be written, as a user without rights, stopped by SIGTERM while a producer writes."""
    data = tmp_path / "data"

    def started(name: str) -> Container:
        return Container(files, tmp_path / name, data, environment(configuration), command(configuration), name)

    with started("first") as container:
        await container.until_healthy()
        made = container.inside("comet", "topic", "create", "orders")
        assert made.returncode == 0, made.stderr
        assert container.inside("touch", "/opt/comet/x").returncode != 0
        with producing(container) as producer:
            assert producer.stdout is not None and producer.stdout.readline() == "running\n"
            assert container.stop() == 0, container.log
            acknowledged, code = producer.stdout.readline().split()
    assert int(acknowledged) >= 100
    assert code in ("UNAVAILABLE", "DRAINING", "TIMEOUT"), code
    with started("second") as container:
        await container.until_healthy()
        shown = container.inside("comet", "topic", "describe", "orders", "--json")
        (partition,) = json.loads(shown.stdout)["partitions"]
        assert int(partition["high_watermark"]) >= int(acknowledged)


async def test_the_same_image_is_a_gateway(files: Path, configuration: dict[str, Any], tmp_path: Path) -> None:
    url = "http://127.0.0.1:8080/livez"
    words = ["comet", "gateway", "--bootstrap", "localhost:9092"]
    with Container(
        files, tmp_path / "g", tmp_path / "data", environment(configuration, COMET_HEALTH_URL=url), words, "gateway"
    ) as container:
        await container.until_healthy()
        assert container.inside("comet", "demo", "--help").returncode == 0
        assert container.stop() == 0
