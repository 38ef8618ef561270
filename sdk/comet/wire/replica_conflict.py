"""A replica that does not follow its leader, as the cluster reports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaConflict:
    """A replica that does not follow its leader: it would lose committed records. `comet topic elect` settles it.

    To follow broker `leader` in `epoch`, the replica on `broker` would have to be truncated to `offset`; it knows that
    records below `high_watermark` are committed. `problem` says why an accepted truncation failed.

    >>> from comet import ReplicaConflict
    >>> conflict = ReplicaConflict(2, leader=1, epoch=8, offset=600, high_watermark=1050, log_end=1050)
    >>> conflict.high_watermark - conflict.offset
    450
    """

    broker: int
    leader: int
    epoch: int
    offset: int
    high_watermark: int
    log_end: int
    problem: str = ""
