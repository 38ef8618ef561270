"""What this machine can inject: each capability is tried once, and a test that needs one is skipped with the reason."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Networks:
    """Two networks with a cable between them: commands that are run `inside` listen at `address`, those `outside` reach
    it. Neither reaches anything else."""

    inside: tuple[str, ...]
    outside: tuple[str, ...]
    address: str = "192.0.2.1"

    def listening(self) -> list[int]:
        """The TCP ports on which something inside listens, at any address."""
        sockets = subprocess.run(
            [*self.inside, "cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True, check=True
        )
        rows = [line.split() for line in sockets.stdout.splitlines()]
        return sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"})


@contextlib.contextmanager
def two_networks() -> Iterator[Networks]:
    """Network namespaces with a virtual cable; skips the test where none can be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network of its own needs root and ip(8)")
    ours, theirs = (f"comet-{os.getpid()}-{side}" for side in ("in", "out"))
    ends = f"c{os.getpid()}i", f"c{os.getpid()}o"
    with contextlib.ExitStack() as stack:
        try:
            for name in (ours, theirs):
                _do("ip", "netns", "add", name)
                stack.callback(_do, "ip", "netns", "delete", name)
            _do("ip", "link", "add", ends[0], "netns", ours, "type", "veth", "peer", "name", ends[1], "netns", theirs)
            for name, end, address in ((ours, ends[0], Networks.address), (theirs, ends[1], "192.0.2.2")):
                _do("ip", "-n", name, "address", "add", f"{address}/24", "dev", end)
                _do("ip", "-n", name, "link", "set", end, "up")
                _do("ip", "-n", name, "link", "set", "lo", "up")
        except OSError as error:
            pytest.skip(f"no networks can be made here: {error}")
        yield Networks(("ip", "netns", "exec", ours), ("ip", "netns", "exec", theirs))


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group with a memory limit, within the one of this process; skips the test where none can be made.

    A process enters it by writing its id to `cgroup.procs` there.
    """
    root = Path("/sys/fs/cgroup")
    folder, limit = None, ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            folder, limit = root / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        elif not controllers and (root / path.lstrip("/") / "cgroup.controllers").exists():
            folder, limit = root / path.lstrip("/"), "memory.max"
        if folder is not None:
            break
    if folder is None:
        pytest.skip("no control groups for memory here")
    group = folder / f"comet-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"a control group here takes no memory limit: {error}")
        yield group
    finally:
        _remove_group(group)


def _remove_group(group: Path) -> None:
    """Its processes are gone, but it may count them for a moment."""
    deadline = time.monotonic() + 10
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
        else:
            return
