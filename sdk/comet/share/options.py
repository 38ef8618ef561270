"""The options of a share consumer."""

from __future__ import annotations

from dataclasses import dataclass

from comet import limits
from comet.client.new_topic import Create, check_create
from comet.consumer.options import check_start, parsed_filter
from comet.encryption.keyring import Keyring
from comet.errors import InvalidArgument
from comet.groups.options import check_member
from comet.types import StartLike, check_topic_name


@dataclass(frozen=True, kw_only=True)
class ShareOptions:
    """The options of a ShareConsumer: see there. Given as an object, or each by its name.

    >>> options = comet.ShareOptions(lock_ms=60_000, dead_letter="jobs-failed")
    >>> consumer = comet.ShareConsumer("localhost:9092", "jobs", group="work", options=options, in_flight=10)
    """

    start: StartLike = "latest"
    pattern: str = ""
    in_flight: int = limits.IN_FLIGHT_RECORDS
    lock_ms: int = limits.LOCK_MS
    deliveries_max: int = 0
    dead_letter: str = ""
    by_key: bool = False
    renew: bool = False
    session_timeout_ms: int = limits.SESSION_TIMEOUT_MS
    encryption: Keyring | None = None
    create: Create = False
    filter: str = ""

    def __post_init__(self) -> None:
        check_start(self.start)
        check_create(self.create)
        check_member(self.pattern, self.session_timeout_ms)
        limits.within("in_flight", self.in_flight, 1, limits.IN_FLIGHT_RECORDS_MAX)
        limits.within("lock_ms", self.lock_ms, limits.LOCK_MS_MIN, limits.LOCK_MS_MAX)
        limits.within("deliveries_max", self.deliveries_max, 0, limits.DELIVERIES_MAX)
        if self.dead_letter:
            check_topic_name(self.dead_letter)
        chosen = parsed_filter(self.filter, now_us=0)
        if chosen is not None and self.encryption is not None and "value" in chosen.explain()["columns"]:
            raise InvalidArgument(
                "brokers apply the filter of a share group, and cannot read encrypted values: use parts such as @key "
                "or @header.name"
            )
