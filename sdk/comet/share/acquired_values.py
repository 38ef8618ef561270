"""The values of acquired records: decrypted, and decoded as the consumer's type.

A value that is not one of the type is rejected. One that cannot be decrypted is released with a delay, since another
member may have its key, and rejected at its last delivery: the dead letter has its ciphertext.
"""

from __future__ import annotations

from typing import Any, NoReturn

from comet import limits
from comet.encryption.keyring import Keyring
from comet.errors import DecryptionError, SerdeError
from comet.serde import Serde
from comet.share.acknowledgements import REJECT, RELEASE
from comet.share.fetcher import Acquired


class AcquiredValues:
    """Owned by a ShareConsumer. `encrypted` tells whether values are to be decrypted before they are decoded."""

    def __init__(self, serde: Serde[Any] | None, keyring: Keyring | None, deliveries_max: int) -> None:
        self._serde = serde
        self._keyring = keyring
        self._deliveries_max = deliveries_max or limits.DELIVERIES
        self.encrypted = keyring is not None

    async def decrypted(self, acquired: Acquired) -> bytes | None:
        """The decrypted value. Raises DecryptionError after the record was released or rejected, or Unavailable if the
        key provider fails."""
        reader, batch, index, _, _ = acquired
        assert self._keyring is not None, "only a consumer with a keyring decrypts"
        try:
            return await self._keyring.decrypt_one(reader.topic, batch.values[index], batch.keys[index])
        except DecryptionError as error:
            self._give_back(acquired, error)

    def _give_back(self, acquired: Acquired, error: DecryptionError) -> NoReturn:
        reader, batch, index, count, lot = acquired
        offset = batch.offsets[index]
        last = count >= self._deliveries_max
        if offset in lot.held and not lot.over:
            if last:
                lot.acknowledge(REJECT, offset, 0, error.message)
            else:
                delay_ms = limits.UNDECRYPTED_DELAY_MS << min(count - 1, 16)
                lot.acknowledge(RELEASE, offset, min(delay_ms, limits.UNDECRYPTED_DELAY_MS_MAX))
        record_id = {"topic": reader.topic, "partition": str(reader.partition), "offset": str(offset)}
        outcome = {"delivery": str(count), "outcome": "rejected" if last else "released"}
        raise DecryptionError(
            f"record {offset} of {reader.topic}/{reader.partition}, which is {outcome['outcome']} after delivery "
            f"{count} of {self._deliveries_max}: {error.message}",
            details=error.details | record_id | outcome,
        ) from None

    def decoded(self, acquired: Acquired, value: bytes | None) -> Any:
        """The value as one of the consumer's type. Raises SerdeError after the record was rejected."""
        if self._serde is None or value is None:
            return value
        try:
            return self._serde.decode(value)
        except SerdeError as error:
            reader, batch, index, _, lot = acquired
            offset = batch.offsets[index]
            # The text of an error may quote the value, which brokers are not to see.
            lot.acknowledge(REJECT, offset, 0, type(error).__name__ if self.encrypted else error.message)
            record_id = {"topic": reader.topic, "partition": str(reader.partition), "offset": str(offset)}
            raise SerdeError(
                f"record {offset} of {reader.topic}/{reader.partition}, which is rejected: {error.message}",
                details=error.details | record_id,
            ) from error.__cause__
