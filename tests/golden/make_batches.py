"""Writes the golden batches: NAME.bin, the bytes, and NAME.json, what a reader must find in them.

    python -m tests.golden.make_batches

They are frozen: what is there is never written again, because logs on disk look like it. A new format version gets
new names. Bytes are hex in the JSON; a `codec` of 0 promises that the same records encode to the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from comet.records import Codec, encode, encode_marker, iterate, make_stamp, marker_of

FOLDER = Path(__file__).parent
NOW = 1_700_000_000_000_000
QUOTE = b'{"symbol":"EURUSD","bid":1.0871,"ask":1.0873}'

CASES: dict[str, list[dict[str, Any]]] = {
    "smallest": [{"values": [b"A"], "timestamps": 1}],
    "empty_value": [{"values": [b""], "timestamps": 0}],
    "values": [{"values": [b"a", b"", b"ccc", b"dd"], "timestamps": NOW}],
    "equal_sizes": [{"values": [b"%03d" % i for i in range(130)], "timestamps": NOW}],
    "timestamps": [{"values": [b"a", b"b", b"c"], "timestamps": [NOW, NOW - 5, -1]}],
    "keys": [{"values": [b"1", b"2"], "keys": [b"EURUSD", b""], "timestamps": NOW}],
    "key_nulls": [{"values": [b"1", b"2", b"3"], "keys": [None, b"k", None], "timestamps": NOW}],
    "value_nulls": [{"values": [None, b"x", None, b""], "timestamps": NOW}],
    "all_null": [{"values": [None], "keys": [None], "timestamps": NOW}],
    "bitmap_of_two_bytes": [{"values": [b"v" if i % 3 else None for i in range(13)], "timestamps": NOW}],
    "headers": [{
        "values": [b"1", b"2", b"3"], "timestamps": NOW,
        "headers": [[("trace", b"\x00\xff"), ("trace", b"")], None, [("größe", b"9")]],
    }],
    "offset_deltas": [{"values": [b"a", b"b", b"c"], "offset_deltas": [2, 3, 900], "timestamps": NOW}],
    "due": [{"values": [b"a", b"b"], "due": [NOW + 1, NOW + 2], "timestamps": NOW}],
    "expiry": [{"values": [b"a", b"b"], "expiry": [NOW + 1, 0], "timestamps": NOW}],
    "producer": [{
        "values": [b"a"], "timestamps": NOW, "producer_id": 7, "producer_epoch": 3, "base_sequence": 41, "schema_id": 9,
    }],
    "everything": [{
        "values": [b"1", None, b"333"], "keys": [b"k", None, b"kk"], "timestamps": [NOW, NOW + 1, NOW + 2],
        "headers": [[("a", b"b")], [], None], "offset_deltas": [0, 5, 6], "due": [1, 2, 3], "expiry": [4, 5, 6],
        "producer_id": 2**62, "producer_epoch": 2**32 - 1, "base_sequence": 2**40, "schema_id": 2**32 - 1,
    }],
    "lz4": [{"values": [QUOTE] * 20, "keys": [b"EURUSD", None] * 10, "timestamps": NOW, "codec": Codec.LZ4}],
    "zstd": [{"values": [QUOTE] * 20, "keys": [b"EURUSD", None] * 10, "timestamps": NOW, "codec": Codec.ZSTD}],
    "does_not_shrink": [{"values": [bytes(range(200))], "timestamps": NOW, "codec": Codec.LZ4}],
    "transactional": [{
        "values": [b"a", b"b"], "keys": [b"k", None], "timestamps": NOW, "producer_id": 3 << 56 | 7,
        "producer_epoch": 12, "transactional": True,
    }],
    "marker_commit": [{"marker": [3 << 56 | 7, 12, True, 41, NOW]}],
    "marker_abort": [{"marker": [2**62, 2**32 - 1, False, -1, NOW]}],
    "keyed": [{
        "values": [b"a", b"b"], "keys": [b"k", None], "timestamps": NOW, "producer_id": 0x0123456789ABCDEF,
        "base_sequence": 2**62 - 1, "keyed": True,
    }],
    "transaction": [
        {"values": [b"a", b"b"], "timestamps": NOW, "producer_id": 7, "producer_epoch": 1, "transactional": True,
         "stamp": [1000, NOW + 7, 3]},
        {"values": [b"c"], "timestamps": NOW, "stamp": [1002, NOW + 8, 3]},
        {"values": [b"d"], "timestamps": NOW, "producer_id": 7, "producer_epoch": 1, "base_sequence": 2,
         "transactional": True, "stamp": [1003, NOW + 9, 3]},
        {"marker": [7, 1, False, 1000, NOW], "stamp": [1004, NOW + 10, 4]},
    ],
    "two_stamped": [
        {"values": [b"a", b"b"], "timestamps": NOW, "stamp": [1000, NOW + 7, 3]},
        {"values": [b"c"], "timestamps": NOW, "stamp": [1002, NOW + 8, 4]},
    ],
}  # fmt: skip


def build(case: list[dict[str, Any]]) -> bytes:
    """The batches of a case, one after the other."""
    whole = []
    for batch in case:
        columns = {name: value for name, value in batch.items() if name not in ("stamp", "marker")}
        data = encode_marker(*batch["marker"]) if "marker" in batch else b"".join(encode(**columns))
        if "stamp" in batch:
            offset, time, epoch = batch["stamp"]
            data = make_stamp(offset, time, epoch, len(data)) + data[28:]
        whole.append(data)
    return b"".join(whole)


def describe(data: bytes, *, stamped: bool) -> list[dict[str, Any]]:
    """What a reader finds, as JSON: per batch its header and its records."""
    return [
        {
            "header": batch.header._asdict(),
            **({"marker": marker_of(batch)._asdict()} if batch.header.control else {}),
            "records": [
                {
                    "offset": batch.offsets[i],
                    "timestamp_us": batch.timestamps[i],
                    "key": _hex(batch.keys[i]),
                    "value": _hex(batch.values[i]),
                    "headers": [[name, value.hex()] for name, value in batch.headers[i]],
                    "due": batch.due and batch.due[i],
                    "expiry": batch.expiry and batch.expiry[i],
                }
                for i in range(len(batch))
            ],
        }
        for batch in iterate(data, stamped=stamped)
    ]


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def main() -> None:
    """Writes what is not there yet."""
    for name, case in CASES.items():
        path = FOLDER / f"{name}.bin"
        if not path.exists():
            data = build(case)
            path.write_bytes(data)
            text = json.dumps(describe(data, stamped="stamp" in case[0]), indent=1, ensure_ascii=False)
            path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
            print(f"wrote {path.name}, {len(data)} bytes")


if __name__ == "__main__":
    main()
