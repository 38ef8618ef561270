"""Files: short and failing writes on the real ones, the lock of the data folder, and the faults of those in memory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from comet.errors import DataFolderTaken, InvalidArgument
from comet_broker.ports import Buffer
from comet_broker.storage.files import LinkFound, RealFile, RealFiles
from comet_broker.storage.memory import MemoryFiles


class Writer:
    """writev that takes only so many bytes at a time, and fails when its limits are used up."""

    def __init__(self, *takes: int | OSError) -> None:
        self.takes = list(takes)

    def __call__(self, descriptor: int, parts: Sequence[Buffer]) -> int:
        if not self.takes:
            return os.writev(descriptor, parts)
        take = self.takes.pop(0)
        if isinstance(take, OSError):
            raise take
        return os.write(descriptor, b"".join(parts)[:take]) if take else 0


def real_file(tmp_path: Path, writer: Writer) -> RealFile:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    return RealFile(descriptor, writev=writer)


@pytest.mark.parametrize("takes", [(1,), (3,), (4,), (1, 1, 1), (3, 3, 3), (8,), (2, 5)])
def test_a_short_write_is_completed(tmp_path: Path, takes: tuple[int, ...]) -> None:
    file = real_file(tmp_path, Writer(*takes))
    file.append((b"abc", b"", memoryview(b"defghi")))
    assert file.read(0, 100) == b"abcdefghi"
    assert file.size == 9
    file.close()


@pytest.mark.parametrize(
    "takes",
    [
        (OSError(errno.ENOSPC, ""),),
        (2, OSError(errno.ENOSPC, "")),
        (4, 1, OSError(errno.EIO, "")),
        (4, 0),
    ],
)
def test_a_write_that_fails_part_way_leaves_nothing(tmp_path: Path, takes: tuple[int | OSError, ...]) -> None:
    file = real_file(tmp_path, Writer())
    file.append((b"before",))
    file._writev = Writer(*takes)
    with pytest.raises(OSError, match="Errno"):
        file.append((b"abc", b"def"))
    assert (tmp_path / "file").read_bytes() == b"before"
    assert file.size == 6
    assert not file.torn
    file._writev = os.writev
    file.append((b"after",))
    assert (tmp_path / "file").read_bytes() == b"beforeafter"
    file.close()


def test_a_write_that_cannot_be_undone_says_so(tmp_path: Path) -> None:
    """The descriptor goes bad in the middle of the write, so that cutting back fails, too."""
    file = real_file(tmp_path, Writer())

    def break_off(descriptor: int, parts: Sequence[Buffer]) -> int:
        os.write(descriptor, b"ab")
        os.close(descriptor)
        raise OSError(errno.EIO, "")

    file._writev = break_off
    with pytest.raises(OSError, match="Errno"):
        file.append((b"abc",))
    assert file.torn


def test_a_full_device_gives_enospc() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    file = RealFile(os.open("/dev/full", os.O_RDWR))
    with pytest.raises(OSError, match="Errno") as caught:
        file.append((b"abc",))
    assert caught.value.errno == errno.ENOSPC
    file.close()


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    files.make_folder("a")
    files.open("a/one", create=True).close()
    files.write_atomic("a/two", b"")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a/one", tmp_path / "a/two")} == {0o600}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


# ---- links


@pytest.mark.parametrize("act", [
    lambda files: files.open("a/link"), lambda files: files.open("a/link", create=True),
    lambda files: files.read_all("a/link"), lambda files: files.exists("a/link"),
    lambda files: files.write_atomic("a/link", b"ours"), lambda files: files.write_atomic("a/dangling", b"ours"),
    lambda files: files.open("a/dangling", create=True), lambda files: files.rename("a/one", "a/link"),
    lambda files: files.open("folder/secret"), lambda files: files.read_all("folder/secret"),
    lambda files: files.list("folder"), lambda files: files.make_folder("folder/new"),
    lambda files: files.remove("folder/secret"), lambda files: files.remove_folder("folder"),
    lambda files: files.sync_folder("folder"),
])  # fmt: skip
def test_a_planted_link_is_not_followed(tmp_path: Path, act: Callable[[RealFiles], object]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"theirs")
    (tmp_path / "data").mkdir()
    files = RealFiles(tmp_path / "data")
    files.make_folder("a")
    files.open("a/one", create=True).close()
    (tmp_path / "data/a/link").symlink_to(outside / "secret")
    (tmp_path / "data/a/dangling").symlink_to(outside / "new")
    (tmp_path / "data/folder").symlink_to(outside)
    with pytest.raises(LinkFound, match="symbolic link"):
        act(files)
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"secret": b"theirs"}


def test_a_folder_with_a_link_in_it_is_removed_without_what_it_leads_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"theirs")
    (tmp_path / "data").mkdir()
    files = RealFiles(tmp_path / "data")
    files.make_folder("a")
    (tmp_path / "data/a/link").symlink_to(outside)
    files.remove_folder("a")
    assert outside.read_bytes() == b"theirs" and not files.exists("a")


@pytest.mark.parametrize("name", ["lock", "identity", "metadata.db", "topics"])
def test_a_data_folder_with_a_link_at_its_top_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidArgument, match=f"data/{name} is a symbolic link") as caught:
        RealFiles(tmp_path / "data").lock()
    assert caught.value.details == {"path": str(tmp_path / "data" / name)}
    assert not (tmp_path / "outside").exists()


def test_a_data_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    files = RealFiles(tmp_path / "data")
    files.lock()
    files.write_atomic("one", b"ours")
    files.unlock()
    assert (tmp_path / "disk/one").read_bytes() == b"ours"


# ---- the lock


def test_a_data_folder_has_one_owner(tmp_path: Path) -> None:
    first, second = RealFiles(tmp_path / "data"), RealFiles(tmp_path / "data")
    first.lock()
    with pytest.raises(DataFolderTaken, match=f"process {os.getpid()}") as caught:
        second.lock()
    assert caught.value.details == {"folder": str(tmp_path / "data"), "pid": str(os.getpid())}
    first.unlock()
    second.lock()
    second.unlock()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom comet_broker.storage.files import RealFiles\n"
        "RealFiles(Path(sys.argv[1])).lock()\nprint('locked', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    files = RealFiles(tmp_path)
    with pytest.raises(DataFolderTaken, match=f"process {process.pid}"):
        files.lock()
    process.kill()
    process.communicate()
    files.lock()
    files.unlock()


# ---- crashes in memory


def written(files: MemoryFiles, path: str, synced: bytes, unsynced: bytes = b"") -> None:
    file = files.open(path, create=True)
    file.append((synced,))
    file.sync()
    files.sync_folder("")
    file.append((unsynced,))


def test_a_crash_keeps_what_was_synced_and_a_part_of_the_rest() -> None:
    seen = set()
    for seed in range(200):
        files = MemoryFiles(Random(seed))
        written(files, "one", b"synced", b"abcd" * 3000)
        files.crash()
        data = files.read_all("one")
        assert data.startswith(b"synced")
        rest = data[6:]
        assert all(given in {0, kept} for given, kept in zip(rest, b"abcd" * 3000, strict=False))
        seen.add("none" if not rest else "all" if len(rest) == 12000 and b"\0" not in rest else
                 "holes" if b"\0" in rest else "prefix")  # fmt: skip
    assert seen == {"none", "all", "holes", "prefix"}


def test_names_that_were_not_synced_may_go_either_way() -> None:
    seen = set()
    for seed in range(60):
        files = MemoryFiles(Random(seed))
        written(files, "old", b"old")
        written(files, "replaced", b"before")
        new = files.open("new", create=True)
        new.append((b"after",))
        new.sync()
        files.rename("new", "replaced")
        files.remove("old")
        files.crash()
        assert files.read_all("replaced") in {b"before", b"after"}
        assert not files.exists("new")
        seen.add((files.exists("old"), files.read_all("replaced")))
    assert len(seen) == 4


def test_a_synced_rename_stays() -> None:
    for seed in range(20):
        files = MemoryFiles(Random(seed))
        files.write_atomic("one", b"first")
        files.write_atomic("one", b"second")
        files.crash()
        assert files.read_all("one") == b"second"


def test_a_cut_that_was_not_synced_may_come_back() -> None:
    seen = set()
    for seed in range(20):
        files = MemoryFiles(Random(seed))
        written(files, "one", b"abcdef")
        files.open("one").truncate(3)
        files.crash()
        seen.add(files.read_all("one"))
    assert seen == {b"abc", b"abcdef"}


def test_the_death_of_the_process_loses_nothing_written_but_its_handles() -> None:
    files = MemoryFiles(Random(0))
    written(files, "one", b"synced", b"unsynced")
    file = files.open("one")
    files.crash(power=False)
    assert files.read_all("one") == b"syncedunsynced"
    with pytest.raises(OSError, match="crashed"):
        file.append((b"more",))


def test_bytes_of_a_failed_sync_are_lost_although_later_ones_succeed() -> None:
    """As Linux does it: the pages of a failed write-back count as clean."""
    files = MemoryFiles(Random(0))
    written(files, "one", b"synced", b"lost")
    file = files.open("one")
    files.faults.sync_fails_in = 1
    with pytest.raises(OSError, match="Errno"):
        file.sync()
    file.sync()
    assert files.read_all("one") == b"syncedlost"
    file.append((b"more",))
    file.sync()
    files.crash()
    assert files.read_all("one") == b"synced\0\0\0\0more"


def test_a_failed_sync_shows_once_the_cache_is_gone() -> None:
    files = MemoryFiles(Random(0))
    written(files, "one", b"synced", b"lost")
    file = files.open("one")
    files.faults.sync_fails_in = 1
    with pytest.raises(OSError, match="Errno"):
        file.sync()
    file.forget_cache()
    assert files.read_all("one") == b"synced\0\0\0\0"


def test_a_full_disk_takes_nothing_and_deleting_heals_it() -> None:
    files = MemoryFiles(Random(0))
    written(files, "one", b"12345678")
    files.faults.capacity_bytes = 10
    file = files.open("two", create=True)
    with pytest.raises(OSError, match="Errno") as caught:
        file.append((b"abc",))
    assert caught.value.errno == errno.ENOSPC
    assert file.size == 0
    assert files.free_bytes() == 2
    files.remove("one")
    file.append((b"abc",))
    assert files.free_bytes() == 7


def test_a_torn_append_leaves_bytes_behind() -> None:
    files = MemoryFiles(Random(0))
    file = files.open("one", create=True)
    files.faults.append_tears_in = 1
    with pytest.raises(OSError, match="Errno"):
        file.append((b"abcdef",))
    assert file.torn
    assert files.read_all("one") == b"abc"


def test_a_flipped_bit_stays_flipped() -> None:
    files = MemoryFiles(Random(0))
    written(files, "one", b"abc")
    files.flip("one", 1, 5)
    files.crash()
    assert files.read_all("one") == b"aBc"
