"""The keyring: the option `encryption` of producers and consumers.

value ─► data key (per producer and topic, from encryptor) ─► envelope in the record
envelope ─► wrapped data key ─► unwrapped once by the key provider, and kept ─► value
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, get_args

from comet import limits
from comet.encryption.envelope import MAGIC, NONCE_BYTES, MalformedEnvelope, Prefix, associated, prefix_of
from comet.encryption.keys import VARIABLE, KeyProvider, LocalKeys, environment_keys, read_keys
from comet.errors import CometError, DecryptionError, InvalidArgument, Unavailable
from comet.security.certificates import require_cryptography

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Plaintext = Literal["refuse", "pass"]

_SHOWN: Final = "value cannot be decrypted"


class Stored(bytes):
    """A value as it is stored, to be written as it is: a producer does not encrypt it again."""

    __slots__ = ()


class Decrypted(NamedTuple):
    """The values of a batch. One that has an error is None."""

    values: list[bytes | None]
    errors: dict[int, DecryptionError]  # by index
    missing: dict[bytes, Prefix]  # data keys that have to be unwrapped first; then the values are not complete

    def cut(self, first: int, end: int) -> Decrypted:
        errors = {at - first: error for at, error in self.errors.items() if first <= at < end}
        return Decrypted(self.values[first:end], errors, {})

    def pick(self, rows: Sequence[int]) -> Decrypted:
        errors = {at: self.errors[row] for at, row in enumerate(rows) if row in self.errors}
        return Decrypted([self.values[row] for row in rows], errors, {})


class Unwrapped(NamedTuple):
    """A data key, ready to decrypt, and the id of its wrapping key."""

    key_id: str
    cipher: AESGCM
    wrong: tuple[type[Exception], ...]  # its errors for a value that was changed


# What is known of data keys, by prefix: the key, or the reason why there is none.
Known = dict[bytes, Unwrapped | str]


class Keyring:
    """The keys that encrypt and decrypt values end to end: brokers store ciphertext, and never have a key.

    `keys` are the wrapping keys by id, of which the last is the primary, or a KeyProvider. Values are encrypted with
    AES-256-GCM by data keys, which the primary key wraps; every key of the ring decrypts.

    Values that are not encrypted raise DecryptionError: else a broker could forge them. With `plaintext="pass"` they
    are read as they are, for a topic that is being migrated. A value that was encrypted for another topic is refused,
    too, except for the topics in `also_from`, such as the origins of dead letters.

    A producer takes a new data key after `data_key_records` values or `data_key_ms`. Needs the package cryptography:
    the extra `security`.

    >>> async def example(address: str) -> None:
    ...     keyring = comet.Keyring({"2026": bytes(range(32))})
    ...     async with comet.Producer(address, encryption=keyring) as producer:
    ...         await producer.publish("quotes", "EURUSD 1.08", key="EURUSD")
    ...     async with comet.Consumer(address, "quotes", encryption=keyring, start="earliest") as consumer:
    ...         print((await consumer.get()).value)
    ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
    ...         print((await consumer.get()).value.startswith(b"EURUSD"))
    >>> run(example)
    b'EURUSD 1.08'
    False
    """

    def __init__(
        self,
        keys: Mapping[str, bytes] | KeyProvider,
        *,
        plaintext: Plaintext = "refuse",
        also_from: Iterable[str] = (),
        data_key_records: int = limits.DATA_KEY_RECORDS,
        data_key_ms: int = limits.DATA_KEY_MS,
    ) -> None:
        require_cryptography("encryption")
        if plaintext not in get_args(Plaintext):
            raise InvalidArgument(f'plaintext must be "refuse" or "pass", not {plaintext!r}')
        if isinstance(also_from, str):
            raise InvalidArgument(f"also_from must be a list of topics: also_from=[{also_from!r}]")
        limits.within("data_key_records", data_key_records, 1, limits.DATA_KEY_RECORDS_MAX)
        limits.within("data_key_ms", data_key_ms, 1, limits.DATA_KEY_MS_MAX)
        self.provider: KeyProvider = LocalKeys(keys) if isinstance(keys, Mapping) else keys
        self.data_key_records = data_key_records
        self.data_key_ms = data_key_ms
        self._passes = plaintext == "pass"
        self._also_from = frozenset(also_from)
        self._unwrapped: dict[bytes, Unwrapped] = {}  # data keys by prefix, oldest first

    @classmethod
    def from_file(cls, path: str | Path, *, primary: str = "", **options: Any) -> Self:
        """The keys of a file that `comet security key` made; its last key is the primary. Refused if others may read
        the file."""
        return cls(LocalKeys(read_keys(Path(path)), primary=primary), **options)

    @classmethod
    def from_environment(cls, variable: str = VARIABLE, *, primary: str = "", **options: Any) -> Self:
        """The keys of an environment variable: the lines of a file of keys, or these separated by commas."""
        return cls(LocalKeys(environment_keys(variable), primary=primary), **options)

    def __repr__(self) -> str:
        return f"<Keyring with primary key {self.provider.primary!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Keyring is not pickled: it holds keys; make one in each process")

    async def mac(self, data: bytes) -> bytes:
        """The key provider's MAC. Raises InvalidArgument if it makes none, Unavailable if it fails."""
        make = getattr(self.provider, "mac", None)
        if make is None:
            raise InvalidArgument(
                f"publish_once needs a key provider with a method mac, which {type(self.provider).__name__} lacks: "
                "add it, or use a transaction"
            )
        try:
            made: bytes = await make(data)
        except CometError:
            raise
        except Exception as error:
            raise Unavailable(f"the key provider could not make a MAC ({type(error).__name__}); retry") from error
        return made

    # ---- decrypting

    def decrypt(
        self, topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None], known: Known
    ) -> Decrypted:
        """The values of records of a topic, as far as their data keys are in the cache or in `known`."""
        found = Decrypted([], {}, {})
        encoded, data_key = MAGIC, None  # of the value before
        for index, (value, key) in enumerate(zip(values, keys, strict=True)):
            plain = None
            if value is not None:
                try:
                    if data_key is None or not value.startswith(encoded):
                        encoded, data_key = self._data_key_of(topic, value, known, found.missing)
                    if data_key is None:
                        plain = value if encoded is MAGIC else None  # not encrypted, or to be unwrapped
                    else:
                        plain = _opened(data_key, encoded, value, key)
                except DecryptionError as error:
                    found.errors[index] = error
                    encoded, data_key = MAGIC, None
            found.values.append(plain)
        return found

    async def decrypt_one(self, topic: str, value: bytes | None, key: bytes | None) -> bytes | None:
        """The value of one record. Raises DecryptionError, or Unavailable if the key provider fails."""
        known: Known = {}
        while (found := self.decrypt(topic, [value], [key], known)).missing:
            await self.unwrap(found.missing, known)
        if found.errors:
            raise found.errors[0]
        return found.values[0]

    def _data_key_of(
        self, topic: str, value: bytes, known: Known, missing: dict[bytes, Prefix]
    ) -> tuple[bytes, Unwrapped | None]:
        """The prefix and the data key of a value. Raises DecryptionError."""
        if not value.startswith(MAGIC):
            if self._passes:
                return MAGIC, None
            raise _error('it is not encrypted; Keyring(..., plaintext="pass") reads it')
        try:
            encoded, prefix = prefix_of(value)
        except MalformedEnvelope as error:
            raise _error(f"its envelope is malformed: {error}") from None
        if prefix.topic != topic and prefix.topic not in self._also_from:
            reason = f"it was encrypted for topic {prefix.topic!r}; Keyring(..., also_from=[...]) accepts that"
            raise _error(reason, prefix.key_id)
        data_key = self._unwrapped.get(encoded) or known.get(encoded)
        if isinstance(data_key, str):
            raise _error(data_key, prefix.key_id)
        if data_key is None:
            missing[encoded] = prefix
        return encoded, data_key

    async def unwrap(self, missing: Mapping[bytes, Prefix], known: Known) -> None:
        """Unwraps data keys into `known` and the cache. Raises Unavailable if the provider fails."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for encoded, prefix in missing.items():
            try:
                data_key = await self.provider.unwrap(prefix.key_id, prefix.wrapped)
                found = known[encoded] = Unwrapped(prefix.key_id, AESGCM(data_key), (InvalidTag, ValueError))
            except DecryptionError as error:
                known[encoded] = error.message
                continue
            except CometError:
                raise
            except Exception as error:
                raise failed("unwrap", prefix.key_id, error) from error
            while len(self._unwrapped) >= limits.DATA_KEYS_CACHED:
                self._unwrapped.pop(next(iter(self._unwrapped)), None)
            self._unwrapped[encoded] = found


def failed(action: str, key_id: str, error: Exception) -> Unavailable:
    """The error of a key provider that failed."""
    return Unavailable(
        f"the key provider could not {action} a data key with {key_id!r} ({type(error).__name__}); retry",
        details={"key_id": key_id},
    )


def _opened(data_key: Unwrapped, encoded: bytes, value: bytes, key: bytes | None) -> bytes:
    at = len(encoded) + NONCE_BYTES
    try:
        return data_key.cipher.decrypt(value[at - NONCE_BYTES : at], value[at:], associated(encoded, key))
    except data_key.wrong:
        raise _error("it or its record key was changed", data_key.key_id) from None


def _error(reason: str, key_id: str = "") -> DecryptionError:
    return DecryptionError(f"{_SHOWN}: {reason}", details={"key_id": key_id})
