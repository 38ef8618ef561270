"""Whose data folder it is, and whether anything in it can have been lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from comet.errors import InvalidArgument, StoreDamaged
from comet_broker.cluster.registration import Registration
from comet_broker.config import BrokerConfig
from comet_broker.storage.data_folder import (
    FILE,
    DataFolder,
    Identity,
    close_clean,
    loss_is_known,
    open_identity,
    read_identity,
)
from comet_broker.storage.memory import MemoryFiles
from tests.unit.replica_world import HeldWorker


class Folder:
    def __init__(self) -> None:
        self.files = MemoryFiles(Random(1))
        self.random = Random(2)

    def open(self, *, boot: str = "boot 1", broker: int = 1, cluster: str = "c1") -> Identity:
        return open_identity(self.files, broker_id=broker, cluster_id=cluster, boot_id=boot, random=self.random)


def test_a_new_folder_gets_a_name_for_life() -> None:
    folder = Folder()
    first = folder.open()
    assert first.fresh
    assert len(first.folder) == 32
    again = folder.open()
    assert again.folder == first.folder
    assert not again.fresh
    assert Folder().open().folder == first.folder, "the same chance gives the same name"


@pytest.mark.parametrize(
    ("orderly", "rebooted", "clean"),
    [(True, False, True), (True, True, True), (False, False, True), (False, True, False)],
)
def test_what_a_start_can_rely_on(*, orderly: bool, rebooted: bool, clean: bool) -> None:
    folder = Folder()
    identity = folder.open()
    loss_is_known(folder.files, identity)
    if orderly:
        close_clean(folder.files, identity)
    if rebooted:
        folder.files.crash()
    assert folder.open(boot="boot 2" if rebooted else "boot 1").clean is clean


def test_an_orderly_stop_counts_for_one_start() -> None:
    """D14: the mark is gone, on disk, before anything is written."""
    folder = Folder()
    close_clean(folder.files, folder.open())
    assert folder.open(boot="boot 2").clean
    folder.files.crash()
    assert not folder.open(boot="boot 3").clean


def test_a_loss_is_remembered_by_those_that_start_after_it() -> None:
    folder = Folder()
    folder.open(boot="boot 1")
    assert not folder.open(boot="boot 2").clean
    assert not folder.open(boot="boot 2").clean, "it was only killed this time, but what was lost is lost"
    close_clean(folder.files, folder.open(boot="boot 2"))
    assert folder.open(boot="boot 2").clean


def test_an_empty_folder_is_not_whole_for_having_been_started_twice() -> None:
    folder = Folder()
    loss = folder.open()
    assert not folder.open().clean
    loss_is_known(folder.files, loss)
    assert folder.open().clean


TOPIC = "topics/" + "a" * 32


@pytest.mark.parametrize(
    ("boots", "topic", "warning"),
    [
        (("boot 1", "boot 1"), False, ""),  # the first start found its port taken
        (("boot 1", "boot 2"), False, ""),
        (("boot 1", "boot 2"), True, "the machine went down while this broker ran"),
        (("boot 1", "boot 2", "boot 2"), True, "records may be missing here since an earlier start"),
        (("", ""), True, "the machine went down while this broker ran"),
        ((None, "boot 1"), True, "this data folder has records and no identity"),
    ],
)
def test_a_start_warns_of_what_is_true(
    boots: tuple[str | None, ...], topic: bool, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Folder()
    *earlier, last = boots
    for boot in earlier:
        if boot is not None:
            folder.open(boot=boot)
        if topic:
            folder.files.make_folder(TOPIC)
    caplog.clear()
    assert last is not None
    assert not folder.open(boot=last).clean
    assert [record.message[: len(warning)] for record in caplog.records] == ([warning] if warning else [])


def test_a_boot_without_a_name_is_never_the_same() -> None:
    folder = Folder()
    folder.open(boot="")
    assert not folder.open(boot="").clean


def test_an_empty_folder_does_not_count_as_whole() -> None:
    """Of a broker that was here before, everything is lost."""
    assert not Folder().open().clean


def test_data_without_a_name_is_neither_fresh_nor_whole() -> None:
    folder = Folder()
    folder.files.make_folder(TOPIC)
    identity = folder.open()
    assert not identity.fresh
    assert not identity.clean
    assert identity.adopted
    assert folder.open().adopted, "it has one name now, but had none"
    assert not Folder().open().adopted


def test_the_folder_of_another_cluster_is_refused() -> None:
    folder = Folder()
    identity = folder.open()
    close_clean(folder.files, identity)
    with pytest.raises(InvalidArgument, match="belongs to cluster c1, not to c2"):
        folder.open(cluster="c2")
    assert folder.open(boot="boot 2").clean, "and it is as it was"


def test_the_folder_of_another_broker_is_refused() -> None:
    folder = Folder()
    folder.open()
    with pytest.raises(InvalidArgument, match="belongs to broker 1, not to broker 2"):
        folder.open(broker=2)


def test_a_damaged_identity_is_noticed_wherever_it_is_damaged() -> None:
    folder = Folder()
    folder.open()
    data = folder.files.read_all(FILE)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        folder.files.write_atomic(FILE, bytes(damaged))
        with pytest.raises(StoreDamaged, match="delete the file"):
            folder.open()
    folder.files.write_atomic(FILE, b"")
    with pytest.raises(StoreDamaged):
        folder.open()
    folder.files.write_atomic(FILE, data)
    assert len(folder.open().folder) == 32


# ---- losses since the start


class OpenFolder:
    """The data folder of a broker that runs, after a power cut or not, with a worker that can be held."""

    def __init__(self, *, lossy: bool = False) -> None:
        self.files = MemoryFiles(Random(1))
        self.worker = HeldWorker()
        if not lossy:
            folder = self.start()
            loss_is_known(self.files, folder.identity)
        self.folder = self.start()
        assert self.folder.identity.clean is not lossy

    def start(self) -> DataFolder:
        folder = DataFolder(self.files, self.worker, broker_id=1, boot_id="boot 1")
        folder.open("c1", Random(2))
        return folder

    @property
    def lossy(self) -> bool:
        found = read_identity(self.files)
        assert found is not None
        return found.lossy


async def test_a_loss_since_the_start_is_reported_by_the_next_one_after_an_orderly_stop_too() -> None:
    world = OpenFolder()
    await world.folder.note_lost(counted=True)
    await world.folder.note_loss_known()
    world.folder.close_clean()
    assert world.lossy
    assert not world.start().identity.clean


async def test_a_loss_that_cannot_be_written_is_written_later() -> None:
    world = OpenFolder()
    world.files.faults.append_full_in = 1
    await world.folder.note_lost(counted=True)
    assert world.folder.lost_here and not world.lossy
    await world.folder.write_lost()
    assert world.lossy


async def test_a_loss_in_the_middle_of_writing_that_an_earlier_one_is_known_is_not_forgotten() -> None:
    world = OpenFolder(lossy=True)
    world.worker.free.clear()
    known = asyncio.ensure_future(world.folder.note_loss_known())
    await asyncio.sleep(0)
    lost = asyncio.ensure_future(world.folder.note_lost(counted=True))
    await asyncio.sleep(0)
    world.worker.free.set()
    await asyncio.gather(known, lost)
    assert not world.folder.loss_known
    world.folder.close_clean()
    assert world.lossy
    assert not world.start().identity.clean


@pytest.mark.parametrize(("lossy", "counted", "here"), [(False, False, True), (True, False, False), (True, True, True)])
async def test_records_on_which_the_cluster_counts_are_reported_at_the_next_start_too(
    *, lossy: bool, counted: bool, here: bool
) -> None:
    """It counts on all of them after a registration that reported no loss, and on those of a log that was open."""
    world = OpenFolder(lossy=lossy)
    registration = Registration(BrokerConfig(Path("data")), world.folder)
    assert registration.record().clean is not lossy
    world.folder.note_missing(counted=counted)
    assert world.lossy and world.folder.lost_here is here
    assert not registration.record().clean
    await world.folder.note_loss_known()
    assert world.lossy is here
    assert registration.record().clean is not here


async def test_a_full_disk_at_an_orderly_stop_is_a_stop_that_was_not_clean(caplog: pytest.LogCaptureFixture) -> None:
    world = OpenFolder()
    world.files.faults.append_full_in = 1
    world.folder.close_clean()
    assert "cannot write that the stop was clean" in caplog.text
    found = read_identity(world.files)
    assert found is not None and not found.clean
