"""The encryptor of a producer: a data key per topic, replaced after some time, records or bytes.

No nonce repeats under a data key. Nonces are 96 random bits of the operating system, drawn for each value, or for a few
values that are encrypted before another task runs; a process that was forked, restarted or restored has no counter that
could go back. A data key is random, is never written unwrapped, and encrypts at most 2^24 values: the probability that
two of them share a nonce is below 2^-48.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from comet import limits
from comet.encryption.envelope import DATA_KEY_BYTES, NONCE_BYTES, Prefix, associated
from comet.encryption.keyring import Keyring, Stored, failed
from comet.errors import CometError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

# Other tasks of the loop get a turn after so many bytes of a column. Each value counts _VALUE_BYTES more than its size.
_TURN_BYTES: Final = 1 << 20
_VALUE_BYTES: Final = 1_000
_DRAWN: Final = 64
_NONE: Final[Iterator[bytes]] = iter(())


def _nonces() -> Iterator[bytes]:
    """Some nonces, drawn in one call."""
    drawn = os.urandom(NONCE_BYTES * _DRAWN)
    return iter([drawn[at : at + NONCE_BYTES] for at in range(0, len(drawn), NONCE_BYTES)])


class DataKey:
    """A data key of one topic, with what it has encrypted."""

    __slots__ = ("bytes_left", "cipher", "prefix", "records_left", "until")

    def __init__(self, cipher: AESGCM, prefix: bytes, records: int, until: float) -> None:
        self.cipher = cipher
        self.prefix = prefix
        self.records_left = records
        self.bytes_left = limits.DATA_KEY_BYTES
        self.until = until

    def usable(self, now: float) -> bool:
        return self.records_left > 0 and self.bytes_left > 0 and now < self.until

    def encrypt(self, value: bytes, key: bytes | None, nonce: bytes) -> bytes:
        self.records_left -= 1
        self.bytes_left -= len(value)
        sealed = self.cipher.encrypt(nonce, value, associated(self.prefix, key))
        return b"".join((self.prefix, nonce, sealed))


class Encryptor:
    """Owned by a producer; used on its event loop."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._keys: dict[str, DataKey] = {}
        self._renewing = asyncio.Lock()

    async def encrypt(self, topic: str, value: bytes | None, key: bytes | None) -> bytes | None:
        """The envelope of a value; a tombstone stays None."""
        if value is None or value.__class__ is Stored:
            return None if value is None else bytes(value)
        return (await self._key(topic)).encrypt(value, key, os.urandom(NONCE_BYTES))

    async def mac(self, data: bytes) -> bytes:
        """A MAC by the keyring, the same for the same data."""
        return await self._keyring.mac(data)

    async def encrypt_all(
        self, topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None
    ) -> list[bytes | None]:
        """The envelopes of a column."""
        found: list[bytes | None] = []
        key, since_turn, nonces = await self._key(topic), 0, _NONE
        for index, value in enumerate(values):
            if value is None or value.__class__ is Stored:
                found.append(await self.encrypt(topic, value, None))
                continue
            if since_turn >= _TURN_BYTES or key.records_left <= 0:
                await asyncio.sleep(0)
                key, since_turn, nonces = await self._key(topic), 0, _NONE
            nonce = next(nonces, None)
            if nonce is None:
                nonces = _nonces()
                nonce = next(nonces)
            found.append(key.encrypt(value, None if keys is None else keys[index], nonce))
            since_turn += len(value) + _VALUE_BYTES
        return found

    async def _key(self, topic: str) -> DataKey:
        loop = asyncio.get_running_loop()
        key = self._keys.get(topic)
        if key is None or not key.usable(loop.time()):
            async with self._renewing:
                key = self._keys.get(topic)
                if key is None or not key.usable(loop.time()):
                    key = await self._new(topic)
        return key

    async def _new(self, topic: str) -> DataKey:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        keyring, data_key = self._keyring, os.urandom(DATA_KEY_BYTES)
        key_id = keyring.provider.primary
        try:
            prefix = Prefix(key_id, topic, await keyring.provider.wrap(key_id, data_key)).encode()
        except CometError:
            raise
        except Exception as error:
            raise failed("wrap", key_id, error) from error
        until = asyncio.get_running_loop().time() + keyring.data_key_ms / 1000
        if topic not in self._keys and len(self._keys) >= limits.DATA_KEYS_CACHED:
            del self._keys[next(iter(self._keys))]
        key = self._keys[topic] = DataKey(AESGCM(data_key), prefix, keyring.data_key_records, until)
        return key
