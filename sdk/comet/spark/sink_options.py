"""The checked options of a sink. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from comet import limits
from comet.errors import InvalidArgument
from comet.spark.parsing import Table, chosen, number, parsed, switch, text
from comet.types import check_topic_name

ID_CHARS_MAX: Final = 180  # of a name that a query and the number of a partition are put behind


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """One write. Travels to the executors, so it holds nothing but data."""

    bootstrap: str = "localhost:9092"
    topic: str = ""  # else the column `topic` says where each row goes
    exactly_once: bool = True
    acks: Literal[0, 1, "all"] = "all"
    name: str = ""  # of a batch write, for its transactional ids
    transaction_timeout_ms: int = 600_000
    compression: Literal["lz4", "zstd"] | None = None
    fail_on_loss: bool = True  # a batch that is written already, and has more rows this time, fails
    timeout_ms: int = 30_000

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """From what `.option(…)` was given. Raises InvalidArgument."""
        options = cls(**parsed(_NAMES, given))
        if options.exactly_once and options.acks != "all":
            raise InvalidArgument("acks is for exactlyOnce=false: all in-sync replicas acknowledge a transaction")
        if options.name and not options.exactly_once:
            raise InvalidArgument("transactionalId names transactions, and there are none with exactlyOnce=false")
        return options


def _topic(name: str, value: str) -> str:
    return check_topic_name(text(name, value))


def _id(name: str, value: str) -> str:
    found = _topic(name, value)  # they are named alike
    if len(found) > ID_CHARS_MAX:
        raise InvalidArgument(f"the option {name} has at most {ID_CHARS_MAX} characters")
    return found


_ACKS: Final[Mapping[str, Any]] = {"all": "all", "1": 1, "0": 0}
_NAMES: Final[Table] = {
    "bootstrap": ("bootstrap", text),
    "topic": ("topic", _topic),
    "exactlyOnce": ("exactly_once", switch),
    "acks": ("acks", chosen(**_ACKS)),
    "transactionalId": ("name", _id),
    "transactionTimeoutMs": ("transaction_timeout_ms", number(1, limits.TRANSACTION_TIMEOUT_MS_MAX)),
    "compression": ("compression", chosen(none=None, lz4="lz4", zstd="zstd")),
    "failOnDataLoss": ("fail_on_loss", switch),
    "timeoutMs": ("timeout_ms", number(1)),
}
