"""A fuzz target for the batch decoder and the frame parsers, run by `make fuzz`.

    python -m tests.property.fuzz_records [libFuzzer options] FOLDER

The first byte of an input chooses what is done with the rest; FOLDER is seeded with the golden batches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from comet.records import HEADER_BYTES
from comet.v1 import records_pb2
from comet.wire import frames
from tests.property.records_agree import agree, sealed, sized

GOLDEN = Path(__file__).parents[1] / "golden"


def read_sealed(data: bytes) -> None:
    """A batch whose checksum is right whatever else is not."""
    if len(data) >= HEADER_BYTES:
        agree(sealed(data))


def read_sized(data: bytes) -> None:
    """Nor does it fail for its sizes, so that the body is reached."""
    if len(data) >= HEADER_BYTES:
        agree(sized(data))


def read_frames(data: bytes) -> None:
    """A frame that the short cut takes means what protobuf makes of it."""
    taken = frames.parse_produce(data)
    if taken is not None:
        message = records_pb2.ClientFrame.FromString(data)
        produce = message.produce
        assert taken == (message.request, produce.partition, produce.acks, memoryview(produce.batch))
    delivered = frames.parse_delivery(data)
    if delivered is not None:
        delivery = records_pb2.ServerFrame.FromString(data).delivery
        assert delivered == (delivery.partition, delivery.high_watermark, delivery.leader_epoch)
        assert data[frames.DELIVERY_PREFIX_BYTES :] == delivery.batches


def read_raw(data: bytes) -> None:
    """The bytes as they are."""
    agree(data)


WAYS: list[Callable[[bytes], None]] = [read_raw, read_sealed, read_sized, read_frames]


def one_input(data: bytes) -> None:
    """What libFuzzer calls."""
    if data:
        WAYS[data[0] % len(WAYS)](data[1:])


def seeds() -> dict[str, bytes]:
    """The golden batches in every way, and a frame of each kind around them."""
    found = {}
    for path in sorted(GOLDEN.glob("*.bin")):
        batch = path.read_bytes()
        for way, _ in enumerate(WAYS[:-1]):
            found[f"{path.stem}-{way}"] = bytes([way]) + batch
        found[f"{path.stem}-produce"] = b"\3" + frames.produce_frame(1, 2, 1, [batch], len(batch))
        found[f"{path.stem}-delivery"] = b"\3" + frames.delivery_prefix(1, 2, 3, len(batch)) + batch
    return found


def main() -> None:
    """Runs until libFuzzer's limits or a failure, whose input it leaves in a file."""
    import atheris

    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    for folder in folders[:1]:
        for name, data in seeds().items():
            (folder / name).write_bytes(data)
    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
