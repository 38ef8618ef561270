"""Every unary call of the protocol with the coroutine that answers it: one table for all transports."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from google.protobuf.message import Message

from comet.admin.acts import ACTS, Act
from comet.errors import CometError, Internal
from comet.v1 import coordination_pb2 as coordination_pb
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as records_pb
from comet_broker.access.client_access import EVERYTHING, ClientAccess
from comet_broker.access.needs import CALLS, CallNeeds, nothing
from comet_broker.access.quotas import Carries, Quotas
from comet_broker.admin.access_keys import AdminAccessKeys
from comet_broker.admin.calendars import AdminCalendars
from comet_broker.admin.metrics import AdminMetrics
from comet_broker.admin.quotas import AdminQuotas
from comet_broker.admin.recovery import AdminRecovery
from comet_broker.admin.rules import AdminRules
from comet_broker.admin.service import AdminService
from comet_broker.coordination.admin import GroupAdmin
from comet_broker.coordination.service import Coordination
from comet_broker.memory.guard import Sheddable
from comet_broker.memory.in_flight import InFlight
from comet_broker.schedules.calls import AdminSchedules
from comet_broker.sharing.calls import AcquireCalls
from comet_broker.streams.stream_writer import ServedStream
from comet_broker.streams.unary_records import UnaryRecords

log = logging.getLogger(__name__)

COMET = "comet.v1.Comet"
ADMIN = "comet.v1.Admin"
REPLICATION = "comet.v1.Replication"
COORDINATION = "comet.v1.Coordination"
# Served even while the metadata store is not trusted.
# Of acts with records: a schedule counts for its author's quota as a record that is published does.
CARRIES: Mapping[str, Carries] = {"PutSchedules": "in", "GetSchedule": "out"}
FROM_BROKERS = {"PutSchedules": "forwarded"}  # then its authors are not the caller
ALWAYS = {"Warn", *(act.name for act in ACTS.values() if act.always)}


@dataclass(frozen=True, slots=True)
class Method:
    service: str
    name: str
    request: type[Message]
    answer: Callable[[Any], Awaitable[Message]]
    carries: Carries = "nothing"  # the direction of its records
    check: Callable[[], None] | None = None  # raises while the call is not served
    needs: CallNeeds = nothing  # that a client has to be allowed
    claims: str = ""  # the field in which a broker says its id
    from_brokers: str = ""  # the field that is believed of brokers only

    @property
    def path(self) -> str:
        return f"{self.service}/{self.name}"

    async def __call__(self, request: Message) -> Message:
        """Answers, or raises a CometError; any other exception is a bug, and is logged and reported as Internal."""
        try:
            if self.check is not None:
                self.check()
            return await self.answer(request)
        except CometError:
            raise
        except Exception as error:
            log.exception("%s failed", self.path, extra={"method": self.path})
            raise Internal(f"{self.path}: {error!r}; see the broker's log") from error


class Endpoint(Protocol):
    """A broker, as its transports see it."""

    @property
    def broker_id(self) -> int: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def message_bytes_max(self) -> int:
        """The largest message that it takes."""

    @property
    def methods(self) -> Sequence[Method]:
        """Its unary calls."""

    @property
    def in_flight(self) -> InFlight:
        """The quota of bytes of all its calls."""

    @property
    def quotas(self) -> Quotas:
        """What each client may use."""

    @property
    def calls(self) -> list[Sheddable]:
        """The calls that it ends when memory is short; a transport adds its own."""

    def look_at_memory(self) -> None:
        """Called after a large message: ends calls if memory is short."""

    def open_session(self, peer: str, access: ClientAccess = EVERYTHING, transport: str = "grpc") -> ServedStream:
        """Opens a Stream call. Raises the CometError that refuses it."""

    def open_replica_session(self, peer: str, certified: int | None = None) -> ServedStream:
        """Opens a Replicate call of the broker that the caller's certificate names; None: without a certificate. Raises
        the CometError that refuses it."""


@dataclass(frozen=True, slots=True)
class Services:
    """The coroutines behind the unary calls."""

    admin: AdminService
    records: UnaryRecords
    coordination: Coordination
    groups: GroupAdmin
    acquire: AcquireCalls
    metrics: AdminMetrics
    recovery: AdminRecovery
    rules: AdminRules
    access_keys: AdminAccessKeys
    quotas: AdminQuotas
    calendars: AdminCalendars
    schedules: AdminSchedules


def methods(services: Services, check_trust: Callable[[], None]) -> list[Method]:
    """The table. `check_trust` raises while the metadata store is not trusted."""
    unary_records, acquire_calls, coordination = services.records, services.acquire, services.coordination
    found = [
        Method(COMET, "FetchMetadata", records_pb.FetchMetadataRequest, services.admin.fetch_metadata),
        Method(COMET, "FindCoordinator", groups.FindCoordinatorRequest, coordination.find_coordinator),
        Method(COORDINATION, "AddPartition", coordination_pb.AddPartitionRequest, coordination.add_partition),
        Method(COORDINATION, "Outcome", coordination_pb.OutcomeRequest, coordination.outcome),
        Method(COORDINATION, "WriteMarkers", coordination_pb.WriteMarkersRequest, coordination.write_markers),
        Method(COORDINATION, "PartitionEnds", coordination_pb.PartitionEndsRequest, coordination.partition_ends),
        Method(COORDINATION, "FoundGroup", coordination_pb.FoundGroupRequest, coordination.found_group),
        Method(COORDINATION, "Warn", coordination_pb.WarnRequest, services.recovery.warned, claims="broker"),
        Method(COORDINATION, "OpenTransactions", groups.OpenTransactions, coordination.open_transactions),
        Method(COORDINATION, "EndTransaction", groups.EndTransaction, coordination.end_transaction),
        Method(COMET, "Publish", records_pb.PublishRequest, unary_records.publish, "in", from_brokers="content_digest"),
        Method(COMET, "Fetch", records_pb.FetchRequest, unary_records.fetch, "out"),
        Method(COMET, "ReadKeys", records_pb.ReadKeysRequest, unary_records.read_keys, "out"),
        Method(COMET, "Acquire", groups.AcquireRequest, acquire_calls.acquire, "out"),
        Method(COMET, "Acknowledge", groups.AcknowledgeRequest, acquire_calls.acknowledge),
        *(
            Method(
                ADMIN,
                act.name,
                act.request,
                _handler(services, act),
                CARRIES.get(act.name, "nothing"),
                from_brokers=FROM_BROKERS.get(act.name, ""),
            )
            for act in ACTS.values()
        ),
    ]
    found = [replace(one, needs=CALLS[one.path]) if one.service in (COMET, ADMIN) else one for one in found]
    return [one if one.name in ALWAYS else replace(one, check=check_trust) for one in found]


def _handler(services: Services, act: Act) -> Callable[[Any], Awaitable[Message]]:
    """The coroutine with the name of the act, of the service that has it."""
    parts = (
        services.admin,
        services.groups,
        services.metrics,
        services.recovery,
        services.rules,
        services.access_keys,
        services.quotas,
        services.calendars,
        services.schedules,
    )
    (found,) = (getattr(part, act.handler) for part in parts if hasattr(part, act.handler))
    handler: Callable[[Any], Awaitable[Message]] = found
    return handler
