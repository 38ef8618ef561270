"""The message of a record made from its request, against that made from its batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from comet import records
from comet.v1 import records_pb2 as pb
from comet_broker.partitions.record_messages import record_messages, requested_message

NOW_US = 1_700_000_000_000_000
HEADERS = st.lists(st.tuples(st.text(min_size=1, max_size=3), st.binary(max_size=3)), max_size=2)


@given(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=4), HEADERS, st.sampled_from([0, 5, NOW_US]))
def test_a_request_gives_the_message_that_its_batch_gives(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]], timestamp_us: int
) -> None:
    wanted = pb.Record(key=key, value=value, timestamp_us=timestamp_us, expected=4, partition=2)
    for name, content in headers:
        wanted.headers.add(name=name, value=content)
    parts = records.encode([value], keys=[key], headers=[headers], timestamps=timestamp_us or NOW_US)
    (found,) = record_messages(records.decode(records.stamped(parts, 7, append_time_us=1, leader_epoch=0)))
    assert requested_message(wanted, 7, NOW_US) == found.SerializeToString()
