"""The options of consumers: defined here once, for comet, comet.sync and handlers, and checked here alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from comet import limits
from comet.client.new_topic import Create, check_create
from comet.client.world import Seams
from comet.encryption.keyring import Keyring
from comet.errors import InvalidArgument
from comet.types import Gap, StartLike, position
from comet.wire.corrupt import OnCorrupt

if TYPE_CHECKING:
    from dataclasses import Field

    from comet.filters import Filter


Isolation = Literal["committed", "uncommitted"]
OutOfRange = Literal["raise", "earliest", "latest"]
ReadFrom = Literal["leader", "any", "nearest"]


class Options(Protocol):
    """Options of any kind: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


AnyOptions = TypeVar("AnyOptions", bound=Options)


class ClientKeywords(Seams, total=False):
    """Further arguments of a consumer: a name for metrics and logs, and in simulations a world."""

    name: str


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """The options of everything that reads partitions."""

    start: StartLike = "latest"
    buffer_bytes: int = limits.CONSUMER_BUFFER_BYTES
    on_out_of_range: OutOfRange = "raise"
    on_gap: Callable[[Gap], None] | None = None
    on_corrupt: OnCorrupt = "raise"
    isolation: Isolation = "committed"
    read_from: ReadFrom = "leader"
    rack: str = ""
    encryption: Keyring | None = None
    create: Create = False
    filter: str = ""

    def __post_init__(self) -> None:
        check_start(self.start)
        check_create(self.create)
        parsed_filter(self.filter, now_us=0)
        limits.within(
            "buffer_bytes", self.buffer_bytes, limits.CONSUMER_BUFFER_BYTES_MIN, limits.CONSUMER_BUFFER_BYTES_MAX
        )
        one_of("on_out_of_range", self.on_out_of_range, "raise", "earliest", "latest")
        check_on_corrupt(self.on_corrupt)
        check_isolation(self.isolation)
        one_of("read_from", self.read_from, "leader", "any", "nearest")
        if self.read_from == "nearest" and not self.rack:
            raise InvalidArgument('read_from="nearest" needs the consumer\'s rack: give rack="..."')


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ReadingOptions):
    """The options of a Consumer: see there. Given as an object, or each by its name.

    >>> recent = comet.ConsumerOptions(start="-15m", read_from="nearest", rack="a")
    >>> consumer = comet.Consumer("localhost:9092", "quotes", options=recent, partitions=[0])
    """

    partitions: Iterable[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partitions is not None:  # an iterator would be empty for the next consumer
            object.__setattr__(self, "partitions", tuple(sorted(set(self.partitions))))


def chosen(options: AnyOptions, keywords: Mapping[str, Any]) -> AnyOptions:
    """The options, changed by those that are given by name. Raises TypeError for an unknown name."""
    if not keywords:
        return options
    names = names_of(type(options))
    for name in keywords:
        if name not in names:
            raise TypeError(f"unknown option {name!r}; {type(options).__name__} has {', '.join(names)}")
    return replace(options, **keywords)


def names_of(kind: type[Options]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def given(options: Options) -> list[str]:
    """The options that differ from their defaults."""
    return [field.name for field in fields(options) if getattr(options, field.name) != field.default]


def check_start(start: StartLike) -> None:
    position(start, now_us=0)


def parsed_filter(text: str, *, now_us: int) -> Filter | None:
    """The filter of a reader; None: it has none. Raises MalformedFilter."""
    if not text:
        return None
    from comet.filters import parse

    return parse(text, now_us=now_us)


def filter_of_brokers(chosen: Filter | None, *, encrypted: bool = False) -> str:
    """The text of a filter, if brokers can apply it: not to values that they cannot decrypt."""
    if chosen is None or encrypted:
        return ""
    from comet.filters.parser import CHARS_MAX

    return chosen.text if len(chosen.text) <= CHARS_MAX else ""  # it may be longer than what was given


def check_isolation(isolation: Isolation) -> bool:
    """Whether uncommitted records are read, too. Raises InvalidArgument."""
    one_of("isolation", isolation, "committed", "uncommitted")
    return isolation == "uncommitted"


def check_on_corrupt(on_corrupt: OnCorrupt) -> None:
    one_of("on_corrupt", on_corrupt, "raise", "skip")


def one_of(name: str, value: object, *allowed: str) -> None:
    if value not in allowed:
        *others, last = (f'"{one}"' for one in allowed)
        raise InvalidArgument(f"{name} must be {', '.join(others)} or {last}, not {value!r}")
