"""Every Files, the real one and the one in memory, keeps the same contract."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from comet_broker.ports import Files
from comet_broker.storage.files import RealFiles
from comet_broker.storage.memory import MemoryFiles


@pytest.fixture(params=["memory", "real"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return MemoryFiles(Random(0)) if request.param == "memory" else RealFiles(tmp_path)


def test_a_file_is_appended_to_and_read(files: Files) -> None:
    file = files.open("one", create=True)
    file.append((b"abc", memoryview(b"xdefx")[1:4], b""))
    file.append((bytearray(b"g"),))
    assert file.size == 7
    assert file.read(0, 100) == b"abcdefg"
    assert file.read(2, 3) == b"cde"
    assert file.read(7, 1) == b""
    assert not file.torn
    file.sync()
    file.close()
    assert files.read_all("one") == b"abcdefg"


def test_a_file_is_appended_to_where_it_ended(files: Files) -> None:
    for part in (b"abc", b"def"):
        file = files.open("one", create=True)
        file.append((part,))
        file.close()
    assert files.read_all("one") == b"abcdef"


def test_reading_into_a_buffer_stops_at_the_end(files: Files) -> None:
    file = files.open("one", create=True)
    file.append((b"abcdef",))
    buffer = bytearray(b".........")
    assert file.read_into(2, memoryview(buffer)) == 4
    assert buffer == b"cdef....."
    assert file.read_into(6, memoryview(buffer)) == 0
    assert file.read_into(0, memoryview(buffer)[:2]) == 2
    file.close()


def test_what_is_read_without_waiting_is_a_prefix_of_what_is_there(files: Files) -> None:
    file = files.open("one", create=True)
    file.append((b"abcdef",))
    buffer = bytearray(4)
    count = file.read_cached(1, memoryview(buffer))
    assert 0 <= count <= 4
    assert buffer[:count] == b"bcde"[:count]
    assert file.read_cached(6, memoryview(buffer)) == 0
    file.close()


def test_truncating_cuts_and_appending_goes_on_there(files: Files) -> None:
    file = files.open("one", create=True)
    file.append((b"abcdef",))
    file.truncate(2)
    assert file.size == 2
    file.append((b"X",))
    assert file.read(0, 10) == b"abX"
    file.close()


def test_reserving_changes_nothing_to_be_seen(files: Files) -> None:
    file = files.open("one", create=True)
    file.append((b"abc",))
    file.reserve(1 << 20)
    file.reserve(10)
    assert file.size == 3
    file.append((b"def",))
    assert file.read(0, 10) == b"abcdef"
    file.truncate(file.size)
    file.forget_cache()
    assert files.read_all("one") == b"abcdef"
    file.close()


def test_a_file_that_is_not_there(files: Files) -> None:
    assert not files.exists("one")
    with pytest.raises(FileNotFoundError):
        files.open("one")
    with pytest.raises(FileNotFoundError):
        files.read_all("one")
    with pytest.raises(FileNotFoundError):
        files.remove("one")
    with pytest.raises(FileNotFoundError):
        files.rename("one", "two")
    with pytest.raises(FileNotFoundError):
        files.open("no/such/folder", create=True)
    with pytest.raises(FileNotFoundError):
        files.remove_folder("no")


def test_writing_atomically_replaces(files: Files) -> None:
    files.make_folder("a")
    files.write_atomic("a/one", b"first, and longer")
    files.write_atomic("a/one", b"second")
    assert files.read_all("a/one") == b"second"
    assert list(files.list("a")) == ["one"]


def test_writing_atomically_is_not_troubled_by_what_a_crash_left(files: Files) -> None:
    file = files.open("one.tmp", create=True)
    file.append((b"left-over",))
    file.close()
    files.write_atomic("one", b"new")
    assert files.read_all("one") == b"new"


def test_folders_are_made_with_those_above_and_listed_in_order(files: Files) -> None:
    files.make_folder("a/b/c")
    files.make_folder("a/b/c")
    for name in ("two", "one"):
        files.open(f"a/b/{name}", create=True).close()
    assert list(files.list("a/b")) == ["c", "one", "two"]
    assert list(files.list("")) == ["a"]
    assert list(files.list("a/b/c")) == []
    assert list(files.list("nowhere")) == []
    assert files.exists("a/b")
    files.sync_folder("a/b")


def test_a_folder_is_removed_with_all_in_it(files: Files) -> None:
    files.make_folder("a/b")
    files.open("a/b/one", create=True).close()
    files.open("ab", create=True).close()
    files.remove_folder("a")
    assert not files.exists("a/b/one")
    assert list(files.list("")) == ["ab"]


def test_renaming_replaces_and_open_files_stay_what_they_are(files: Files) -> None:
    for name in ("one", "two"):
        file = files.open(name, create=True)
        file.append((name.encode(),))
        file.close()
    held = files.open("two")
    files.rename("one", "two")
    assert files.read_all("two") == b"one"
    assert held.read(0, 10) == b"two"
    assert list(files.list("")) == ["two"]
    held.close()


def test_a_removed_file_can_be_read_by_who_has_it_open(files: Files) -> None:
    file = files.open("one", create=True)
    file.append((b"abc",))
    files.remove("one")
    assert not files.exists("one")
    assert file.read(0, 10) == b"abc"
    file.close()


def test_there_is_free_space(files: Files) -> None:
    assert files.free_bytes() > 0


def test_a_closed_file_is_of_no_use(files: Files) -> None:
    file = files.open("one", create=True)
    file.close()
    file.close()
    with pytest.raises(OSError, match=r"Bad file descriptor|EBADF"):
        file.read(0, 1)
    with pytest.raises(OSError, match=r"Bad file descriptor|EBADF"):
        file.append((b"a",))
