"""The identity of a data folder: whose it is, and whether everything that was written to it is still there.

The file `identity` at the folder's root holds one line:

    <CRC-32C of the rest, 8 hex digits> <JSON: cluster_id, broker_id, folder, boot_id, clean, lossy, adopted>

`folder` is a random id that the folder keeps for life: a broker with another folder id has none of its earlier data.
`adopted` says that the data is older than the id, so the id proves nothing of the kind. `clean` is true between an
orderly stop and the next start; with the id of the machine's boot it tells what a crash has cost. A killed process has
lost nothing that it wrote, because the page cache is the kernel's; a machine that went down has lost what was not
synced. `lossy` remembers such a loss for later starts in the same boot, until the cluster has recorded it: a later
start could not see it any more.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import msgspec
from crc32c import crc32c

from comet.errors import InvalidArgument, StoreDamaged
from comet_broker.ports import Files, Worker

log = logging.getLogger(__name__)

FILE: Final = "identity"
TOPICS_FOLDER: Final = "topics"
_CRC_DIGITS: Final = 8


class IdentityRecord(msgspec.Struct, frozen=True):
    cluster_id: str
    broker_id: int
    folder: str
    boot_id: str
    clean: bool
    lossy: bool = False
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """What a start has found out about its folder.

    clean   nothing that was ever written here can be lost
    fresh   there was no data here before
    """

    folder: str
    clean: bool
    fresh: bool
    record: IdentityRecord

    @property
    def adopted(self) -> bool:
        """The folder had data when it got its id, so it may have had another id."""
        return self.record.adopted

    @property
    def record_without_loss(self) -> IdentityRecord:
        return msgspec.structs.replace(self.record, lossy=False)


def open_identity(files: Files, *, broker_id: int, cluster_id: str, boot_id: str, random: Random) -> Identity:
    """Checks that the folder belongs to this broker, and marks it as in use. Call it before anything is written.

    Blocks. Raises InvalidArgument for a folder of another cluster or broker, StoreDamaged for a damaged identity.
    """
    found = read_identity(files)
    if found is None:
        # A folder with data but without an id was written by an early version, or has lost its id. An empty folder is
        # not "clean": if this broker was here before, it has lost everything.
        fresh = not files.list(TOPICS_FOLDER)
        folder, clean, adopted = f"{random.getrandbits(128):032x}", False, not fresh
    else:
        _check(found, broker_id, cluster_id)
        fresh = False
        folder, adopted = found.folder, found.adopted
        clean = found.clean or (bool(boot_id) and found.boot_id == boot_id and not found.lossy)
    record = IdentityRecord(cluster_id, broker_id, folder, boot_id, clean=False, lossy=not clean, adopted=adopted)
    _write(files, record)
    if not clean:
        _warn(found, boot_id, empty=not files.list(TOPICS_FOLDER))
    return Identity(folder, clean, fresh, record)


def _warn(found: IdentityRecord | None, boot_id: str, *, empty: bool) -> None:
    """Logs why records may be missing. Without topics there are none to miss."""
    if empty:
        return
    if found is None:
        log.warning("this data folder has records and no identity: it counts as one that may have lost records")
    elif boot_id and found.boot_id == boot_id:
        log.warning("records may be missing here since an earlier start, which the cluster has not recorded yet")
    else:
        log.warning("the machine went down while this broker ran: records that were not synced to its disk may be lost")


def mark_records_missing(files: Files, identity: Identity) -> Identity:
    """Records that a log is shorter than was written, though no machine went down: its disk failed. Blocks."""
    log.warning("records are missing on this broker's disk, and no crash explains it")
    record = msgspec.structs.replace(identity.record, lossy=True)
    _write(files, record)
    return Identity(identity.folder, clean=False, fresh=identity.fresh, record=record)


def mark_restored(files: Files, identity: Identity) -> Identity:
    """Records that the folder is a copy from before this broker's last registration: later writes are missing.
    Blocks."""
    log.error(
        "this data folder is older than the last registration of this broker: it was restored from a copy. Records that"
        " were acknowledged since may be missing here; the other replicas lead (docs/operating.md)"
    )
    record = msgspec.structs.replace(identity.record, lossy=True)
    _write(files, record)
    return Identity(identity.folder, clean=False, fresh=identity.fresh, record=record)


def loss_is_known(files: Files, identity: Identity) -> None:
    """Records that the cluster no longer counts on what may have been lost before this start. Blocks."""
    _write(files, identity.record_without_loss)


def close_clean(files: Files, identity: Identity) -> None:
    """The last write of an orderly stop, when all logs are synced and closed. Blocks."""
    _write(files, msgspec.structs.replace(identity.record, clean=True, lossy=False))


def _check(found: IdentityRecord, broker_id: int, cluster_id: str) -> None:
    if found.cluster_id != cluster_id:
        raise InvalidArgument(
            f"this data folder belongs to cluster {found.cluster_id}, not to {cluster_id}: give the broker the folder"
            " of this cluster or an empty one, or connect it to the metadata store of the cluster it belongs to",
            details={"folder_cluster": found.cluster_id, "cluster": cluster_id},
        )
    if found.broker_id != broker_id:
        raise InvalidArgument(
            f"this data folder belongs to broker {found.broker_id}, not to broker {broker_id}: start it with the id"
            f" {found.broker_id}, or give broker {broker_id} a folder of its own",
            details={"folder_broker": str(found.broker_id), "broker": str(broker_id)},
        )


def read_identity(files: Files) -> IdentityRecord | None:
    """The identity; None for a folder without one. Blocks. Raises StoreDamaged."""
    if not files.exists(FILE):
        return None
    data = files.read_all(FILE)
    crc, _, rest = data.partition(b" ")
    if len(crc) == _CRC_DIGITS and crc == f"{crc32c(rest):08x}".encode():
        return msgspec.json.decode(rest, type=IdentityRecord)
    raise StoreDamaged(
        f"the file {FILE!r} in the data folder is damaged, so its owner is unknown. If you are sure that"
        " it belongs to this broker of this cluster, delete the file: the broker then starts with the data in it, as"
        " after a power cut"
    )


def _write(files: Files, record: IdentityRecord) -> None:
    rest = msgspec.json.encode(record) + b"\n"
    files.write_atomic(FILE, f"{crc32c(rest):08x} ".encode() + rest)


class DataFolder:
    """This broker's data folder from its start to its stop. Owned by the broker.

    counted      a registration of this process has said, or may have said, that no records are missing
    loss_known   the cluster knows what may have been lost before the registration, or nothing was
    lost_here    records on which the cluster counts were found missing: the next start reports it again, in any case

    After `open`, one write of the identity is under way at a time, on any thread.
    """

    def __init__(self, files: Files, worker: Worker, *, broker_id: int, boot_id: str) -> None:
        self.files = files
        self.identity: Identity  # from `open` on
        self.counted = False
        self.loss_known = False
        self.lost_here = False
        self._loss_is_written = False
        self._writing = threading.Lock()
        self._worker = worker
        self._broker_id = broker_id
        self._boot_id = boot_id

    def open(self, cluster_id: str, random: Random) -> None:
        """See `open_identity`."""
        self.identity = open_identity(
            self.files, broker_id=self._broker_id, cluster_id=cluster_id, boot_id=self._boot_id, random=random
        )
        self.loss_known = self.identity.clean
        self._loss_is_written = self.identity.record.lossy

    def restored(self) -> None:
        """See `mark_restored`."""
        self.identity = mark_restored(self.files, self.identity)
        self.loss_known = False
        self._loss_is_written = True

    # ---- records that are missing

    def note_missing(self, *, counted: bool) -> None:
        """Notes that records are missing in a log, durably when it returns: the next opening may find no trace of that.
        `counted`: the log was open before, so the cluster may count on its records by the present registration.

        Blocks; on any thread. Raises OSError if it cannot be written; this process reports it all the same."""
        self._note(counted=counted)
        self._write_loss()

    async def note_lost(self, *, counted: bool) -> None:
        """The same, on the loop; `write_lost` tries again when it cannot be written."""
        self._note(counted=counted)
        await self.write_lost()

    async def write_lost(self) -> None:
        """Writes that records are missing, unless that is written or the cluster knows it."""
        if self.identity.clean or self.loss_known or self._loss_is_written:
            return
        try:
            await self._worker.run(self._write_loss)
        except OSError as error:
            log.error("cannot write that records are missing; do not restart this broker yet: %s", error)

    def _note(self, *, counted: bool) -> None:
        self.identity = replace(self.identity, clean=False)
        self.loss_known = False
        # Last: a registration that did not see the lines above has set `self.counted` before.
        self.lost_here = self.lost_here or counted or self.counted

    def _write_loss(self) -> None:
        with self._writing:
            if not self._loss_is_written:
                self.identity = mark_records_missing(self.files, self.identity)
                self._loss_is_written = True

    # ---- until the cluster knows of them

    async def note_loss_known(self) -> None:
        """See `loss_is_known`; retried by the caller when it cannot be written."""
        try:
            await self._worker.run(self._write_known)
        except OSError as error:
            log.warning("cannot write that the loss is accounted for: %s", error)

    def _write_known(self) -> None:
        with self._writing:
            if not self.lost_here:
                loss_is_known(self.files, self.identity)
                self._loss_is_written = False
                self.loss_known = not self.lost_here  # noted during the write: it is written next

    def close_clean(self) -> None:
        """See `close_clean`; later starts must still report a loss that the cluster does not know. If it cannot be
        written, the next start recovers as after a crash."""
        if not self.loss_known:
            return
        try:
            close_clean(self.files, self.identity)
        except OSError as error:
            log.warning("cannot write that the stop was clean: %s", error)
