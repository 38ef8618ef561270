"""What earlier runs of `comet apply` made, by the name in their file: the values of the internal topic `__applied`.

A file may delete what it made, and nothing else. So each run stores, before its first change, what it is about to make,
and after its last one, what it has made:

    topics             the id of each, which a topic of the same name that was made otherwise does not have; empty
                       before it is known
    rules, roles, quotas   by their texts

A run that ends between the two leaves topics without an id. The next run of a file that declares them takes their ids;
one that no longer declares them does not delete them, since another client may have made them. Each store compares the
revision that was read, so that of two runs at once one fails, before it changes anything or at its end; another run
then has nothing to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from comet.errors import DataLoss, LimitExceeded, RevisionMismatch, TopicNotFound
from comet.types import APPLIED_TOPIC

if TYPE_CHECKING:
    pass

BYTES_MAX: Final = 1 << 20  # of a value: the default of record_bytes_max
_ID_CHARS: Final = 32
_AT_ONCE: Final = "another run with the name {!r} has stored its changes meanwhile"


@dataclass(frozen=True, slots=True)
class Applied:
    """What the runs with one name made."""

    topics: Mapping[str, str] = field(default_factory=dict)  # ids in hexadecimal; "": not known yet
    rules: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    quotas: frozenset[str] = frozenset()

    def encode(self) -> bytes:
        """Raises LimitExceeded, also for a value that would be too large with the ids of all topics."""
        document = {
            "topics": dict(sorted(self.topics.items())),
            "rules": sorted(self.rules),
            "roles": sorted(self.members),
            "quotas": sorted(self.quotas),
        }
        data = json.dumps(document).encode()
        size = len(data) + _ID_CHARS * sum(not one for one in self.topics.values())
        if size > BYTES_MAX:
            raise LimitExceeded(f"the names of all that it makes take {size} bytes, and at most {BYTES_MAX} are stored")
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises DataLoss for what no run has stored."""
        try:
            found = json.loads(data)
            topics, rules, members, quotas = (found[name] for name in ("topics", "rules", "roles", "quotas"))
            if not all(map(_is_text, (*topics, *topics.values(), *rules, *members, *quotas))):
                raise TypeError("a name is text")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataLoss(f"a value in topic {APPLIED_TOPIC} is damaged: {error!r}") from None
        return cls(topics, frozenset(rules), frozenset(members), frozenset(quotas))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


class AppliedStore:
    """Reads and writes what one name made. Owned by one run."""

    def __init__(self, addresses: str, name: str) -> None:
        self._addresses = addresses
        self._name = name
        self._revision: int | None = None

    async def read(self) -> Applied:
        """What is stored; nothing if nothing is. Makes no topic."""
        import comet

        try:
            async with comet.KV(self._addresses, APPLIED_TOPIC) as kv:
                found = await kv.get(self._name)
        except TopicNotFound:
            return Applied()
        if found is None or found.value is None:
            return Applied()
        self._revision = found.revision
        return Applied.decode(found.value)

    async def write(self, applied: Applied) -> None:
        """Stores it in place of that which was read or written last. Raises RevisionMismatch."""
        import comet

        new = comet.NewTopic(1, cleanup_policy="compact")
        data = applied.encode()
        async with comet.KV(self._addresses, APPLIED_TOPIC, create=new) as kv:
            try:
                if self._revision is None:
                    self._revision = await kv.create(self._name, data)
                else:
                    self._revision = await kv.update(self._name, data, self._revision)
            except RevisionMismatch as error:
                raise RevisionMismatch(
                    _AT_ONCE.format(self._name), details={**error.details, "hint": "run comet apply again"}
                ) from None
