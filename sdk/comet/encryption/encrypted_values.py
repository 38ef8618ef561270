"""The values of one batch that is read with a keyring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self, TypeVar

from comet.encryption.keyring import Decrypted, Keyring, Known, Stored
from comet.errors import DecryptionError
from comet.records import Batch

T = TypeVar("T")

Rows = range | list[int]  # of a batch: some in a row, or others, in order


def picked(column: Sequence[T], rows: Rows) -> Sequence[T]:
    """The entries of a column."""
    if isinstance(rows, range):
        return column[rows.start : rows.stop]
    return list(map(column.__getitem__, rows))


class EncryptedValues:
    """Owned by a RecordBatch. Decrypted once, before the batch is handed out."""

    __slots__ = ("_batch", "_decrypted", "_keyring", "_part", "_topic")

    def __init__(self, keyring: Keyring, topic: str, batch: Batch, part: Rows | None) -> None:
        self._keyring = keyring
        self._topic = topic
        self._batch = batch
        self._part: Rows = range(len(batch)) if part is None else part
        self._decrypted: Decrypted | None = None

    def decrypt_at_once(self) -> bool:
        """Decrypts the values if their data keys are unwrapped already. False: await `decrypt`."""
        if self._decrypted is None:
            found = self._decrypt({})
            if found.missing:
                return False
            self._decrypted = found
        return True

    async def decrypt(self) -> None:
        """Decrypts the values. Raises Unavailable if the key provider fails. Values that cannot be decrypted raise
        DecryptionError where they are used."""
        if self._decrypted is not None:
            return
        known: Known = {}
        while (found := self._decrypt(known)).missing:
            await self._keyring.unwrap(found.missing, known)
        self._decrypted = found

    def _decrypt(self, known: Known) -> Decrypted:
        return self._keyring.decrypt(self._topic, self._stored, picked(self._batch.keys, self._part), known)

    @property
    def _stored(self) -> Sequence[bytes | None]:
        return picked(self._batch.values, self._part)

    @property
    def _found(self) -> Decrypted:
        assert self._decrypted is not None, "an encrypted batch is decrypted before it is handed out"
        return self._decrypted

    @property
    def values(self) -> Sequence[bytes | None]:
        """The decrypted values; None for a tombstone, and for one that has an error."""
        return self._found.values

    @property
    def errors(self) -> Mapping[int, DecryptionError]:
        """Of the values that cannot be decrypted, by index."""
        return self._found.errors

    def nullify(self) -> Mapping[int, DecryptionError]:
        """Makes the values that cannot be decrypted None, without an error. Returns their errors."""
        found = self._found
        self._decrypted = Decrypted(found.values, {}, {})
        return found.errors

    def to_copy(self, index: int) -> bytes | None:
        """A value for another topic; as it is stored, if it cannot be decrypted."""
        if index not in self.errors:
            return self.values[index]
        value = self._stored[index]
        assert value is not None, "a tombstone is not encrypted"
        return Stored(value)

    def cut(self, first: int, end: int) -> Self:
        """Those from the first index to before the other."""
        part = type(self)(self._keyring, self._topic, self._batch, self._part[first:end])
        if self._decrypted is not None:
            part._decrypted = self._decrypted.cut(first, end)
        return part

    def pick(self, rows: Sequence[int]) -> Self:
        """Those of the given indexes, which rise."""
        part = type(self)(self._keyring, self._topic, self._batch, [self._part[row] for row in rows])
        if self._decrypted is not None:
            part._decrypted = self._decrypted.pick(rows)
        return part
