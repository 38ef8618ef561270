"""What this machine can inject: each capability is tried once, and a test that needs one is skipped with the reason."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def _do(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


@contextlib.contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """A small file system of its own; skips the test where none can be mounted."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root and mount(8)")
    folder.mkdir(parents=True)
    try:
        _do("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    except OSError as error:
        pytest.skip(f"no tmpfs can be mounted here: {error}")
    try:
        yield folder
    finally:
        _do("umount", folder)


@contextlib.contextmanager
def loop_mount(image: Path, folder: Path) -> Iterator[Path]:
    """Mounts an ext4 image; skips the test where there are no loop devices."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # A long commit interval leaves what was not synced in memory, which is what a power cut takes.
        _do("mount", "-o", "loop,commit=300", image, folder)
    except OSError as error:
        pytest.skip(f"no image can be mounted here: {error}")
    try:
        yield folder
    finally:
        _do("umount", folder)


def ext4_image(path: Path, size_bytes: int) -> Path:
    """A new ext4 image; skips the test where it cannot be made."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("a power cut needs root and mkfs.ext4, for an image to copy while the broker stands still")
    with path.open("wb") as image:
        image.truncate(size_bytes)
    try:
        _do("mkfs.ext4", "-q", path)
    except OSError as error:
        pytest.skip(f"no ext4 image can be made here: {error}")
    return path
