"""One revision of a key, and how it is made of a record."""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

ABSENT: Final = -1  # as an expected revision: the key has no value
ENDED_HEADER: Final = "comet-ended-revision"  # of a tombstone: the revision that it ended


class KVEntry(NamedTuple, Generic[T]):
    """A revision of a key. `value` is None if it deleted the key; `ended` is then the revision that had the value, if
    the key was deleted by `KV.delete`. From `expires_us` on the key has no value, unless it was set again.

    >>> async def example(address: str) -> None:
    ...     async with comet.KV(address, "quotes") as kv:
    ...         await kv.put("EURUSD", b"1.08")
    ...         found = await kv.get("EURUSD")
    ...         print(found.key, found.value, found.revision, found.deleted)
    >>> run(example)
    b'EURUSD' b'1.08' 0 False
    """

    key: bytes
    value: T | None
    revision: int  # the offset of the record
    timestamp_us: int
    ended: int | None = None
    expires_us: int = 0  # microseconds since 1970; 0: never

    @property
    def deleted(self) -> bool:
        """Whether this revision deleted the key."""
        return self.value is None


def entry(
    key: bytes, value: bytes | None, revision: int, timestamp_us: int, headers: Any, expires_us: int, serde: Any
) -> KVEntry[Any]:
    """The entry of a record whose headers are pairs. Raises SerdeError."""
    if value is None:
        return KVEntry(key, None, revision, timestamp_us, _ended(headers))
    decoded = value if serde is None else serde.decode(value)
    return KVEntry(key, decoded, revision, timestamp_us, expires_us=expires_us)


def _ended(headers: Any) -> int | None:
    for name, content in headers:
        if name == ENDED_HEADER and content.isdigit():
            return int(content)
    return None
