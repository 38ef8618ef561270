"""The plan or result of a cluster recovery, after the metadata store went back in time or was emptied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from comet.errors import CometError, InvalidArgument, Unavailable
from comet.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from comet.client.client import Client

METHOD: Final = "comet.v1.Admin/RecoverCluster"
TIMEOUT_MS: Final = 180_000  # every log of every folder may have to be opened


@dataclass(frozen=True, slots=True)
class RecoveryChoice:
    """A replica of a partition. `loses` counts the known committed records that it lacks.

    >>> comet.RecoveryChoice(2, 0, 40, 3, 38, 0, named=True, damaged=False).log_end
    40
    """

    broker: int
    log_start: int
    log_end: int
    last_epoch: int
    high_watermark: int
    loses: int
    named: bool  # the metadata store has it as a replica
    damaged: bool


@dataclass(frozen=True, slots=True)
class PartitionRecovery:
    """The plan for a partition: the broker whose replica all others follow, 0 if no folder has one; the records lost;
    and all replicas, the best first.

    >>> comet.PartitionRecovery("quotes", "0f" * 16, 0, chosen=1, epoch=4, loses=0, choices=()).chosen
    1
    """

    topic: str
    topic_id: str
    partition: int
    chosen: int
    epoch: int
    loses: int
    choices: tuple[RecoveryChoice, ...]


@dataclass(frozen=True, slots=True)
class ClusterRecovery:
    """The plan or result of `Admin.recover_cluster`.

    >>> found = comet.ClusterRecovery("c1", False, (), (), (), (1, 2), (3,), (), (), digest="ab", done=False)
    >>> found.missing
    (3,)
    """

    cluster_id: str
    emptied: bool  # the store had no cluster id
    partitions: tuple[PartitionRecovery, ...]
    put_back: tuple[str, ...]  # topics that are in a folder but not in the store
    unknown: tuple[str, ...]  # ids of topics of which only records are left
    answered: tuple[int, ...]  # brokers
    missing: tuple[int, ...]  # brokers in the store that did not answer
    restart: tuple[int, ...]  # brokers that have to be restarted afterwards
    silent: tuple[str, ...]  # addresses that did not answer
    digest: str  # the value for `accept`
    done: bool


async def recover(client: Client, accept: str) -> ClusterRecovery:
    """Calls the first address whose broker does not trust the store."""
    request = admin.RecoverClusterRequest(brokers=client.bootstrap, accept=accept)
    failed: CometError | None = None
    for address in client.bootstrap:
        try:
            answer = await client.unary_at(address, METHOD, request, admin.RecoverClusterResponse, TIMEOUT_MS)
        except Unavailable as error:
            failed = error  # another broker may refuse the store
        except InvalidArgument as error:
            if "trusted" not in error.details:
                raise
            failed = failed or error
        else:
            plan = msgspec.json.decode(answer.json)
            known = {name: plan[name] for name in ClusterRecovery.__slots__ if name in plan}
            more = {"digest": answer.digest, "done": answer.done, "silent": tuple(answer.silent)}
            return msgspec.convert({**known, **more}, ClusterRecovery)
    raise failed or InvalidArgument("give the address of at least one broker")
