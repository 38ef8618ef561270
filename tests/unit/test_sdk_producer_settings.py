"""What a producer may be told."""

from __future__ import annotations

from typing import Any

import pytest

from comet.errors import InvalidArgument
from comet.producer.producer import Producer


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 2},
        {"acks": "none"},
        {"linger_ms": -1},
        {"batch_bytes": 0},
        {"compression": "gzip"},
        {"in_flight_max": 33},
        {"timeout_ms": 0},
        {"addresses": ""},
        {"addresses": []},
        {"addresses": ["a:1", ""]},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    addresses = settings.pop("addresses", "localhost")
    with pytest.raises(InvalidArgument):
        Producer(addresses, **settings)
