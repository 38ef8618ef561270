"""End-to-end encryption without a broker: the envelope, keys and their files, the cache, limits of data keys."""

from __future__ import annotations

import base64
import hmac
import logging
import pickle
from pathlib import Path

import pytest

import comet
from comet import limits
from comet.encryption.encryptor import Encryptor
from comet.encryption.envelope import MAGIC, MalformedEnvelope, Prefix, associated, prefix_of
from comet.encryption.keyring import Decrypted, Keyring, Known
from comet.encryption.keys import LocalKeys, add_key, read_keys

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))


class CountingProvider:
    """A key service that counts its calls, and can be away."""

    primary = "kms/1"

    def __init__(self) -> None:
        self._keys = LocalKeys({"kms/1": KEY})
        self.wrapped = self.unwrapped = 0
        self.away = False

    async def wrap(self, key_id: str, data_key: bytes) -> bytes:
        self._answer()
        self.wrapped += 1
        return await self._keys.wrap(key_id, data_key)

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        self._answer()
        self.unwrapped += 1
        return await self._keys.unwrap(key_id, wrapped)

    def _answer(self) -> None:
        if self.away:
            raise ConnectionError("the service is away")


async def opened(
    keyring: Keyring, values: list[bytes | None], *, topic: str = "t", keys: list[bytes | None] | None = None
) -> Decrypted:
    """As RecordBatch.decrypt does it."""
    known: Known = {}
    keys = [None] * len(values) if keys is None else keys
    while (found := keyring.decrypt(topic, values, keys, known)).missing:
        await keyring.unwrap(found.missing, known)
    return found


async def sealed(keyring: Keyring, value: bytes, key: bytes | None = None, topic: str = "t") -> bytes:
    made = await Encryptor(keyring).encrypt(topic, value, key)
    assert made is not None
    return made


async def test_an_envelope_of_known_bytes() -> None:
    # Data key 20..3f under key 00..1f: made from the layout as it is documented, and frozen.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    data_key, wrap_nonce, nonce = OTHER, bytes(12), bytes(range(12))
    wrapped = wrap_nonce + AESGCM(KEY).encrypt(wrap_nonce, data_key, b"comet data key\x00k1")
    prefix = Prefix("k1", "quotes", wrapped).encode()
    value = prefix + nonce + AESGCM(data_key).encrypt(nonce, b"EURUSD 1.08", prefix + b"\x01EURUSD")
    assert value.hex() == FROZEN
    assert (await opened(Keyring({"k1": KEY}), [value], topic="quotes", keys=[b"EURUSD"])).values == [b"EURUSD 1.08"]


FROZEN = (
    "ff434501026b310671756f746573003c0000000000000000000000002e9d97fd9109a59a2081831e3401bfb6e27264601cb4"
    "5618b8a789b8f9c2636969ccc68285565ce60feadf679dc0c4d0000102030405060708090a0b19070ff21971cbdd92c9f118"
    "dbb6f39b83ae1b0c15c4bbde42989d"
)


def test_the_prefix_is_found_again_and_cut_ones_are_refused() -> None:
    prefix = Prefix("k1", "quotes", b"w" * 300)
    value = prefix.encode() + bytes(28)
    assert prefix_of(value) == (prefix.encode(), prefix)
    for size in range(len(MAGIC), len(value)):
        with pytest.raises(MalformedEnvelope):
            prefix_of(value[:size])
    assert associated(b"p", None) != associated(b"p", b"")


async def test_keys_and_values_are_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    keyring = Keyring({"k1": KEY, "k2": OTHER})
    caplog.set_level(logging.DEBUG)
    failed = (await opened(Keyring({"k1": KEY}), [await sealed(keyring, b"secret value")])).errors[0]
    texts = [repr(keyring), repr(keyring.provider), str(failed), repr(failed), str(failed.details), caplog.text]
    for text in texts:
        for secret in (KEY, OTHER, b"secret value"):
            assert secret.hex() not in text
            assert base64.b64encode(secret).decode() not in text
            assert repr(secret)[2:-1] not in text
    with pytest.raises(TypeError):
        pickle.dumps(keyring)


async def test_rotation_leaves_old_values_readable() -> None:
    old = await sealed(Keyring({"k1": KEY}), b"1")
    both = Keyring({"k1": KEY, "k2": OTHER})
    new = await sealed(both, b"2")
    assert prefix_of(new)[1].key_id == "k2"
    assert (await opened(both, [old, new, None])).values == [b"1", b"2", None]
    found = await opened(Keyring({"k1": KEY}), [old, new, old])
    assert found.values == [b"1", None, b"1"]
    assert found.errors[1].details["key_id"] == "k2"
    assert "does not have the key 'k2'" in found.errors[1].message


async def test_another_key_of_the_same_id_is_told() -> None:
    found = await opened(Keyring({"k1": OTHER}), [await sealed(Keyring({"k1": KEY}), b"1")])
    assert "another key has this id" in found.errors[0].message


async def test_plaintext_is_refused_unless_it_may_pass() -> None:
    found = await opened(Keyring({"k1": KEY}), [b"plain"])
    assert "not encrypted" in found.errors[0].message
    passing = Keyring({"k1": KEY}, plaintext="pass")
    values = [b"plain", await sealed(passing, b"1"), b"", None]
    assert (await opened(passing, values)).values == [b"plain", b"1", b"", None]


async def test_values_of_another_topic_are_refused_unless_it_is_named() -> None:
    value = await sealed(Keyring({"k1": KEY}), b"1", topic="quotes")
    assert "for topic 'quotes'" in (await opened(Keyring({"k1": KEY}), [value])).errors[0].message
    assert (await opened(Keyring({"k1": KEY}, also_from=["quotes"]), [value])).values == [b"1"]


async def test_a_data_key_is_wrapped_and_unwrapped_once() -> None:
    provider = CountingProvider()
    keyring = Keyring(provider)
    encryptor = Encryptor(keyring)
    values = await encryptor.encrypt_all("t", [b"1", None, b"2"], None)
    values.append(await encryptor.encrypt("t", b"3", None))
    for _ in range(2):
        assert (await opened(keyring, values)).values == [b"1", None, b"2", b"3"]
    assert (provider.wrapped, provider.unwrapped) == (1, 1)


async def test_a_data_key_ends_after_its_records() -> None:
    provider = CountingProvider()
    encryptor = Encryptor(Keyring(provider, data_key_records=2))
    values = [*await encryptor.encrypt_all("t", [b"1", b"2", b"3"], None), await encryptor.encrypt("t", b"4", None)]
    prefixes = [prefix_of(value)[0] for value in values if value]
    assert prefixes[0] == prefixes[1] != prefixes[2] == prefixes[3]
    await encryptor.encrypt("t", b"5", None)
    assert provider.wrapped == 3


async def test_no_nonce_and_no_data_key_comes_twice() -> None:
    keyring = Keyring({"k1": KEY})
    values = await Encryptor(keyring).encrypt_all("t", [b"same"] * 1_000, None)
    assert len(set(values)) == 1_000
    again = await Encryptor(keyring).encrypt("t", b"same", None)  # as after a restart
    assert again is not None
    assert values[0] is not None
    assert prefix_of(again)[0] != prefix_of(values[0])[0]


async def test_a_key_service_that_is_away_is_no_undecryptable_value() -> None:
    provider = CountingProvider()
    value = await sealed(Keyring(provider), b"1")
    provider.away = True
    with pytest.raises(comet.Unavailable, match="ConnectionError"):
        await opened(Keyring(provider), [value])
    with pytest.raises(comet.Unavailable):
        await sealed(Keyring(provider), b"2")


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DATA_KEYS_CACHED", 2)
    provider = CountingProvider()
    keyring = Keyring(provider)
    values: list[bytes | None] = [await sealed(keyring, b"%d" % number) for number in range(5)]
    assert (await opened(keyring, values)).values == [b"0", b"1", b"2", b"3", b"4"]
    assert provider.unwrapped == 5
    await opened(keyring, values[3:])
    assert provider.unwrapped == 5
    await opened(keyring, values[:1])
    assert provider.unwrapped == 6


# ---- files and the environment


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert add_key(path, "a") == ["a"]
    assert add_key(path, "b") == ["a", "b"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(read_keys(path)) == ["a", "b"]
    assert Keyring.from_file(path).provider.primary == "b"
    assert Keyring.from_file(path, primary="a").provider.primary == "a"
    with pytest.raises(comet.InvalidArgument, match="already"):
        add_key(path, "a")
    for mode in (0o640, 0o604):
        path.chmod(mode)
        with pytest.raises(comet.InvalidArgument, match="open to others"):
            Keyring.from_file(path)


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = [base64.b64encode(key).decode() for key in (KEY, OTHER)]
    monkeypatch.setenv("COMET_ENCRYPTION_KEYS", f"a {encoded[0]},b {encoded[1]}")
    assert Keyring.from_environment().provider.primary == "b"
    monkeypatch.delenv("COMET_ENCRYPTION_KEYS")
    with pytest.raises(comet.InvalidArgument, match="no encryption key"):
        Keyring.from_environment()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a", "line 1: not a key id"), ("a !!!!", "line 1: not a key id"), ("a c2hvcnQ=", "line 1: invalid key id"),
        (f"a {base64.b64encode(KEY).decode()}\n" * 2, "line 2: a key of this id"),
    ],
)  # fmt: skip
def test_wrong_lines_are_told_without_their_content(monkeypatch: pytest.MonkeyPatch, text: str, told: str) -> None:
    monkeypatch.setenv("COMET_ENCRYPTION_KEYS", text)
    with pytest.raises(comet.InvalidArgument, match=told) as caught:
        Keyring.from_environment()
    assert text.rsplit(maxsplit=1)[-1] not in str(caught.value) or len(text) < 2


async def test_a_mac_stays_with_the_first_key_and_tells_nothing_of_it() -> None:
    old, rotated = Keyring({"k1": KEY}), Keyring({"k1": KEY, "k2": OTHER})
    assert await old.mac(b"a") == await rotated.mac(b"a") != await old.mac(b"b")
    assert await old.mac(b"a") != await Keyring({"k1": OTHER}).mac(b"a")
    assert await old.mac(b"a") != hmac.digest(KEY, b"a", "sha256")


async def test_a_key_service_without_macs_is_named_and_one_that_is_away_is_asked_again() -> None:
    class Away(CountingProvider):
        async def mac(self, data: bytes) -> bytes:
            raise ConnectionError(data)

    with pytest.raises(comet.InvalidArgument, match="method mac, which CountingProvider lacks"):
        await Keyring(CountingProvider()).mac(b"a")
    with pytest.raises(comet.Unavailable, match=r"ConnectionError\)"):
        await Keyring(Away()).mac(b"secret")


@pytest.mark.parametrize("wrong", [{}, {"k": b"short"}, {"a b": KEY}])
def test_wrong_keys_are_refused(wrong: dict[str, bytes]) -> None:
    with pytest.raises(comet.InvalidArgument):
        Keyring(wrong)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(comet.InvalidArgument, match="plaintext"):
        Keyring({"k": KEY}, plaintext="maybe")  # type: ignore[arg-type]
    with pytest.raises(comet.InvalidArgument, match="also_from"):
        Keyring({"k": KEY}, also_from="quotes")
    with pytest.raises(comet.InvalidArgument, match="primary"):
        LocalKeys({"k": KEY}, primary="other")


def test_the_app_alone_sets_the_keyring_of_its_handlers() -> None:
    keyring = Keyring({"k": KEY})
    app = comet.App("localhost:9092", encryption=keyring)
    with pytest.raises(comet.InvalidArgument, match="encryption is set by the app"):

        @app.on("t", group="g", shared=True, consumer=comet.ShareOptions(encryption=keyring))
        async def work(value: bytes) -> None: ...

    with pytest.raises(comet.InvalidArgument, match="encryption is set by the app"):

        @app.on("t", consumer=comet.ConsumerOptions(start="latest", encryption=keyring))
        async def handle(value: bytes) -> None: ...
