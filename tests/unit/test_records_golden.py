"""The frozen batches: what they hold, and that they are written today as they were then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comet.errors import CorruptBatch, UnsupportedVersion
from comet.records import Codec, Flag, decode, iterate, verify
from tests.golden import make_batches as golden
from tests.property import records_oracle as oracle

NAMES = sorted(path.stem for path in golden.FOLDER.glob("*.bin"))
SPECIFICATION = Path(__file__).parents[2] / "proto" / "BATCH.md"


def load(name: str) -> tuple[bytes, list[dict[str, Any]]]:
    path = golden.FOLDER / name
    return path.with_suffix(".bin").read_bytes(), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def is_stamped(name: str) -> bool:
    return "stamp" in golden.CASES[name][0]


def test_no_vector_is_missing() -> None:
    assert sorted(golden.CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_finds_what_the_description_says(name: str) -> None:
    data, expected = load(name)
    assert golden.describe(data, stamped=is_stamped(name)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_second_reader_finds_it_too(name: str) -> None:
    data, expected = load(name)
    for batch in expected:
        header, records = oracle.read(data, stamped=is_stamped(name))
        assert header == batch["header"]
        assert [record.value for record in records] == [
            None if record["value"] is None else bytes.fromhex(record["value"]) for record in batch["records"]
        ]
        data = data[header["length"] :]
    assert data == b""


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_written_as_they_were(name: str) -> None:
    data, expected = load(name)
    written = golden.build(golden.CASES[name])
    if all(batch["header"]["codec"] == Codec.NONE for batch in expected):
        assert written == data
    else:  # a compressor may improve; what it wrote must read the same
        assert decode(written).values == decode(data).values


def test_every_flag_and_codec_has_a_vector() -> None:
    batches = [batch for name in NAMES for batch in load(name)[1]]
    assert {flag for flag in Flag for batch in batches if batch["header"]["flags"] & flag} == set(Flag)
    assert {batch["header"]["codec"] for batch in batches} == set(Codec)


@pytest.mark.parametrize("name", [name for name in NAMES if not is_stamped(name)])
def test_every_flipped_bit_is_found(name: str) -> None:
    """All but those of the stamp, which a producer's batch does not have yet."""
    data = bytearray(load(name)[0])
    for bit in range(28 * 8, len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptBatch, UnsupportedVersion)):
            verify(data, stamped=False)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("name", [name for name in NAMES if is_stamped(name)])
def test_every_flipped_bit_of_stamped_batches_is_found(name: str) -> None:
    whole = load(name)[0]
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptBatch, UnsupportedVersion)):
            list(iterate(data))


def test_the_example_in_the_specification_is_the_smallest_vector() -> None:
    text = SPECIFICATION.read_text(encoding="utf-8")
    example = text.split("`tests/golden/smallest.bin`.\n\n```\n")[1].split("```")[0]
    assert bytes.fromhex(example) == load("smallest")[0]
