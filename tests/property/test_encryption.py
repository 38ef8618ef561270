"""End-to-end encryption: any value comes back, and any change of a byte, of the topic or of the key is refused."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from comet.encryption.encryptor import Encryptor
from comet.encryption.keyring import Decrypted, Keyring, Known

KEYS = {"k1": bytes(range(32))}
NULLABLE = st.none() | st.binary(max_size=200)


async def _opened(keyring: Keyring, topic: str, values: list[bytes | None], keys: list[bytes | None]) -> Decrypted:
    known: Known = {}
    while (found := keyring.decrypt(topic, values, keys, known)).missing:
        await keyring.unwrap(found.missing, known)
    return found


@given(st.lists(st.tuples(NULLABLE, NULLABLE), max_size=20))
def test_every_value_comes_back(rows: list[tuple[bytes | None, bytes | None]]) -> None:
    async def run() -> None:
        values, keys = [row[0] for row in rows], [row[1] for row in rows]
        stored = await Encryptor(Keyring(KEYS)).encrypt_all("t", values, keys)
        assert [one is None for one in stored] == [one is None for one in values]
        found = await _opened(Keyring(KEYS), "t", stored, keys)
        assert (found.values, found.errors) == (values, {})

    asyncio.run(run())


@given(st.binary(max_size=60), NULLABLE, st.data())
def test_every_changed_byte_is_refused(value: bytes, key: bytes | None, data: st.DataObject) -> None:
    async def run() -> None:
        keyring = Keyring(KEYS)
        stored = await Encryptor(keyring).encrypt("t", value, key)
        assert stored is not None
        change = data.draw(st.integers(1, 255))
        changed: list[bytes | None] = []
        for at in range(len(stored)):
            other = bytearray(stored)
            other[at] ^= change
            changed.append(bytes(other))
        changed += [stored[:size] for size in range(len(stored))] + [stored + b"\x00"]
        found = await _opened(keyring, "t", [stored, *changed, stored], [key] * (len(changed) + 2))
        assert set(found.errors) == set(range(1, len(changed) + 1))
        assert found.values == [value, *[None] * len(changed), value]

    asyncio.run(run())


@given(NULLABLE, NULLABLE, st.binary(min_size=1, max_size=20))
def test_another_key_or_topic_is_refused(key: bytes | None, other: bytes | None, value: bytes) -> None:
    async def run() -> None:
        keyring = Keyring(KEYS)
        stored = await Encryptor(keyring).encrypt("t", value, key)
        found = await _opened(keyring, "t", [stored, stored], [key, other])
        assert (1 in found.errors) == (key != other)
        assert (await _opened(keyring, "u", [stored], [key])).errors

    asyncio.run(run())
