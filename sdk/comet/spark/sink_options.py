"""The checked options of a sink. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from comet import limits
from comet.errors import InvalidArgument
from comet.spark.connection_options import CONNECTION_OPTIONS, ConnectionOptions
from comet.spark.parsing import Table, chosen, number, parsed, switch, text
from comet.types import check_topic_name

ID_CHARS_MAX: Final = 180  # of a name; a query and the number of a partition follow


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ConnectionOptions):
    """One write. Travels to the executors, so it holds nothing but data."""

    topic: str = ""  # empty: the column `topic` has it for each row
    exactly_once: bool = True
    acks: Literal[0, 1, "all"] = "all"
    name: str = ""  # of a batch write, for its transactional ids
    transaction_timeout_ms: int = 600_000
    compression: Literal["lz4", "zstd"] | None = None
    fail_on_loss: bool = True  # a repeated batch fails if it has more rows than were written

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Parses the values of `.option(…)`. Raises InvalidArgument."""
        options = cls(**parsed(_NAMES, given))
        if options.exactly_once and options.acks != "all":
            raise InvalidArgument("acks needs exactlyOnce=false: transactions use acks=all")
        if options.name and not options.exactly_once:
            raise InvalidArgument("transactionalId needs transactions: remove it or exactlyOnce=false")
        return options


def _topic(name: str, value: str) -> str:
    return check_topic_name(text(name, value))


def _id(name: str, value: str) -> str:
    found = _topic(name, value)  # the same characters are allowed
    if len(found) > ID_CHARS_MAX:
        raise InvalidArgument(f"the option {name} has at most {ID_CHARS_MAX} characters")
    return found


_ACKS: Final[Mapping[str, Any]] = {"all": "all", "1": 1, "0": 0}
_NAMES: Final[Table] = {
    **CONNECTION_OPTIONS,
    "topic": ("topic", _topic),
    "exactlyOnce": ("exactly_once", switch),
    "acks": ("acks", chosen(**_ACKS)),
    "transactionalId": ("name", _id),
    "transactionTimeoutMs": ("transaction_timeout_ms", number(1, limits.TRANSACTION_TIMEOUT_MS_MAX)),
    "compression": ("compression", chosen(none=None, lz4="lz4", zstd="zstd")),
    "failOnDataLoss": ("fail_on_loss", switch),
}
