"""The options of a handler, and of the consumer that it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from comet import limits
from comet.consumer.options import ConsumerOptions, chosen, given, names_of, one_of
from comet.errors import InvalidArgument
from comet.groups.options import GroupOptions
from comet.producer.delayed_record import Delay, due_time
from comet.share.options import ShareOptions
from comet.types import check_topic_name

OnError = Literal["stop", "skip"]
OnMalformed = Literal["skip", "stop"]
DeliveryMode = Literal["at_most_once", "at_least_once", "exactly_once"]
# The options of the consumer, by the kind of the handler.
Reading = ConsumerOptions | GroupOptions | ShareOptions

# Share groups: deliveries beyond the handler's failures, for members that die while they process a record;
DEATHS_SPARE: Final = 4
# and records acquired beyond those that are being handled.
_IN_FLIGHT_SPARE: Final = 32
# Options of handlers with and without a group.
_FOR_ALL: Final = ("on_error", "on_malformed")
# Options that the app sets itself.
_DECIDED: Final[dict[type[Reading], tuple[str, ...]]] = {
    ConsumerOptions: ("encryption",),
    GroupOptions: (
        "pattern", "auto_commit", "commit_interval_ms", "release_timeout_ms", "on_assigned", "on_revoked", "on_lost",
        "encryption",
    ),
    ShareOptions: ("pattern", "deliveries_max", "dead_letter", "renew", "encryption"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HandlerOptions:
    """The options of a handler: see App.on. Given as an object, or each by its name.

    >>> app = comet.App("localhost:9092")
    >>> careful = comet.HandlerOptions(retries=5, dead_letter="quotes-failed")
    >>> @app.on("quotes", group="engine", options=careful, start="earliest")
    ... async def handle(quote: dict) -> None: ...
    """

    delivery: DeliveryMode = "at_least_once"
    retries: int = 0
    backoff_ms: float = 100
    dead_letter: str = ""
    retry_topic: str = ""
    retry_delays: Sequence[Delay] = ()
    concurrency: int = 1
    shared: bool = False
    on_error: OnError = "stop"
    on_malformed: OnMalformed = "skip"
    transaction_records: int = 1_000
    transaction_ms: float = 20

    def __post_init__(self) -> None:
        one_of("on_error", self.on_error, "stop", "skip")
        one_of("on_malformed", self.on_malformed, "skip", "stop")
        one_of("delivery", self.delivery, "at_most_once", "at_least_once", "exactly_once")
        if self.shared and self.delivery != "at_least_once":
            raise InvalidArgument("a share group delivers at least once: leave delivery out, or set shared=False")
        if self.delivery == "at_most_once" and (self.retries or self.concurrency > 1):
            raise InvalidArgument('delivery="at_most_once" calls once per record: leave retries and concurrency out')
        self._check_delayed_retries()
        if self.dead_letter:
            check_topic_name(self.dead_letter)
            if self.on_error == "skip":
                raise InvalidArgument('dead_letter and on_error="skip" exclude each other: give one of them')
            if self.on_malformed == "stop":
                raise InvalidArgument('dead_letter and on_malformed="stop" exclude each other: give one of them')
        shared_max = limits.DELIVERIES_MAX - DEATHS_SPARE - 1
        limits.within("retries", self.retries, 0, shared_max if self.shared else limits.RETRIES_MAX)
        limits.within("backoff_ms", self.backoff_ms, 0, limits.RETRY_BACKOFF_MS_MAX)
        limits.within("concurrency", self.concurrency, 1, limits.CONCURRENCY_MAX)
        limits.within("transaction_records", self.transaction_records, 1, limits.TRANSACTION_RECORDS_MAX)
        limits.within("transaction_ms", self.transaction_ms, 0, limits.TRANSACTION_GATHER_MS_MAX)

    def _check_delayed_retries(self) -> None:
        if isinstance(self.retry_delays, str) or not isinstance(self.retry_delays, Sequence):
            raise InvalidArgument(f'retry_delays is a list, such as ["1m", "1h"], not {self.retry_delays!r}')
        if bool(self.retry_topic) != bool(self.retry_delays):
            raise InvalidArgument("retry_topic and retry_delays go together: give both, or neither")
        if not self.retry_topic:
            return
        check_topic_name(self.retry_topic)
        if self.retry_topic == self.dead_letter:
            raise InvalidArgument("retry_topic and dead_letter are the same: give each its own topic")
        if self.delivery != "at_least_once" or self.shared:
            raise InvalidArgument('retry_topic needs delivery="at_least_once", and shared=False')
        limits.within("retry_delays", len(self.retry_delays), 1, limits.RETRY_DELAYS_MAX)
        for delay in self.retry_delays:
            due_time(delay, None)


def handler_options(
    group: str, options: HandlerOptions | None, consumer: Reading | None, keywords: Mapping[str, Any]
) -> tuple[HandlerOptions, Reading]:
    """The options of a handler and of its consumer, from objects and names. Raises InvalidArgument."""
    own = set(names_of(HandlerOptions))
    handling = chosen(options or HandlerOptions(), {name: keywords[name] for name in keywords.keys() & own})
    if not group and (wrong := [name for name in given(handling) if name not in _FOR_ALL]):
        raise InvalidArgument(f"{', '.join(wrong)} only for handlers of a group: give group= as well")
    reading = _default(group, handling)
    if consumer is not None:
        if type(consumer) is not type(reading):
            raise InvalidArgument(
                f"this handler reads with {type(reading).__name__}, not with {type(consumer).__name__}: "
                "change consumer=, group= or shared="
            )
        reading = consumer
    rest = {name: value for name, value in keywords.items() if name not in own}
    _check_names(rest, type(reading))
    reading = chosen(reading, rest)
    _check_decided(reading)
    return handling, reading


def _default(group: str, handling: HandlerOptions) -> Reading:
    if not group:
        return ConsumerOptions()
    if handling.shared:
        return ShareOptions(in_flight=handling.concurrency + _IN_FLIGHT_SPARE)
    return GroupOptions()


def _check_names(keywords: Mapping[str, Any], kind: type[Reading]) -> None:
    """Raises InvalidArgument for options of another kind of consumer."""
    for name in keywords:
        if name in names_of(kind):
            continue
        if kind is ShareOptions and name in names_of(GroupOptions) + names_of(ConsumerOptions):
            raise InvalidArgument(f"{name} is not used with shared=True: leave it out")
        if kind is GroupOptions and name == "partitions":
            raise InvalidArgument("a group assigns its partitions: leave partitions out")
        if kind is ConsumerOptions and name in names_of(GroupOptions):
            raise InvalidArgument(f"{name} is only for members of a group: give group= as well")
        if name in names_of(ShareOptions):
            raise InvalidArgument(f"{name} is only for shared=True: leave it out")


def _check_decided(reading: Reading) -> None:
    defaults = {field.name: field.default for field in fields(reading)}
    for name in _DECIDED[type(reading)]:
        if getattr(reading, name) != defaults[name]:
            raise InvalidArgument(f"{name} is set by the app: leave it out")
