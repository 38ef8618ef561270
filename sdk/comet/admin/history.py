"""The history of a broker's figures and of the cluster's events, for operators."""

from __future__ import annotations

from dataclasses import dataclass

from comet.v1 import admin_pb2 as admin


@dataclass(frozen=True, slots=True)
class HistoryTrack:
    """One figure over time, oldest first; None if unknown. The last value is of the step that ends at
    `end_us`, and steps end at multiples of `step_s` since 1970, so that those of several brokers can be added up.

    Of a broker (`topic` and `group` are empty): records_in, bytes_in, records_out, bytes_out and errors a second,
    ack_p50_ms to deliver_p99_ms, cpu (of one core), memory and disk_used in bytes, sessions, leading, and lag, that of
    all groups it coordinates. Of a topic the first four, of a group lag in records and age_s, by topic and altogether.

    >>> track = comet.HistoryTrack("quotes", "", "records_in", step_s=1, end_us=2_000_000, values=(None, 8.0))
    >>> track.values[-1]
    8.0
    """

    topic: str
    group: str
    figure: str
    step_s: int
    end_us: int
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """An event of the cluster, in a sentence. `kind` is one of election, offline, broker, drain,
    controller, topic. An event may stand for many of its kind; then its text keeps counting for some seconds.

    >>> comet.ClusterEvent(1_767_225_600_000_000, 42, "broker", "broker 2 is gone", broker=2).text
    'broker 2 is gone'
    """

    time_us: int
    revision: int  # of the metadata
    kind: str
    text: str
    topic: str = ""
    partition: int | None = None
    broker: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The result of `Admin.history`: figures over time, and events with the latest at the end.

    >>> comet.History(tracks=(), events=()).events
    ()
    """

    tracks: tuple[HistoryTrack, ...]
    events: tuple[ClusterEvent, ...]


def history_from_pb(message: admin.HistoryResponse) -> History:
    return History(
        tracks=tuple(
            HistoryTrack(
                topic=track.topic,
                group=track.group,
                figure=track.figure,
                step_s=track.step_s,
                end_us=track.end_us,
                values=tuple(None if value != value else value for value in track.values),  # noqa: PLR0124 - a NaN
            )
            for track in message.tracks
        ),
        events=tuple(
            ClusterEvent(
                time_us=event.time_us,
                revision=event.revision,
                kind=event.kind,
                text=event.text,
                topic=event.topic,
                partition=event.partition if event.HasField("partition") else None,
                broker=event.broker or None,
            )
            for event in message.events
        ),
    )
