"""Counts and durations of this broker's requests, noted by its streams and calls and read by the sampler."""

from __future__ import annotations

from collections import Counter

from comet.errors import CometError, Forbidden, Unavailable
from comet_broker.metrics.histogram import Durations


class RequestMeter:
    """Owned by the broker; on its loop."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()  # answered with an error, by code
        self.auth_failures: Counter[str] = Counter()  # calls without valid credentials, by reason
        self.refused_silently = 0  # batches sent with acks=0 that could not be written
        self.ack_durations = Durations()  # of batches: from the append to the acknowledgement
        self.deliver_durations = Durations()  # of some deliveries from memory: from the append to the client
        self.measured = 0  # such deliveries since the last tick

    def count_error(self, error: CometError) -> None:
        self.errors[error.code] += 1

    def count_auth_failure(self, error: CometError) -> None:
        """Counts a call without valid credentials, at any listener."""
        self.auth_failures[_auth_failure(error)] += 1


def _auth_failure(error: CometError) -> str:
    if isinstance(error, Unavailable):
        return "unavailable"  # they cannot be verified yet
    if isinstance(error, Forbidden):
        return "certificate"  # at the brokers' listener
    return error.details.get("reason", "invalid")
