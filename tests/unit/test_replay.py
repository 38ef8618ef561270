"""comet.replay: rows of a file as records, at the pace of their times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pydantic
import pytest
from pyarrow import parquet

import comet
from comet.sources.files import CHUNK_ROWS, LINE_CHARS_MAX, time_us

DAY_US = 1_709_285_400_000_000  # 2024-03-01, 09:30
NOW_US = 1_767_366_245_000_000


@dataclass
class Bar:
    symbol: str
    close: float
    volume: int = 0


class Checked(pydantic.BaseModel):
    symbol: str
    close: float


class Clock:
    """Advances by a millisecond at each reading."""

    def __init__(self) -> None:
        self.now_us = NOW_US

    def __call__(self) -> int:
        self.now_us += 1_000
        return self.now_us


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


async def replayed(path: Path, *arguments: Any, **options: Any) -> list[comet.ReplayedRow[Any]]:
    return [row async for row in comet.replay(path, *arguments, **options)]


async def test_rows_of_a_csv_become_typed_records(tmp_path: Path) -> None:
    path = written(
        tmp_path / "bars.csv",
        "day,symbol,close,volume,note",
        "2024-03-01T09:30:00Z,A,1.5,7,x",
        "1709285401,B,2,,",
    )
    assert await replayed(path, Bar, time="day", pace=0) == [
        (Bar("A", 1.5, 7), 1, DAY_US, DAY_US),
        (Bar("B", 2.0), 2, DAY_US + 1_000_000, DAY_US + 1_000_000),  # an empty cell: the default
    ]
    assert (await replayed(path, Checked, time="day", pace=0))[0].value == Checked(symbol="A", close=1.5)
    assert (await replayed(path, time="day", pace=0))[1].value == {"day": "1709285401", "symbol": "B", "close": "2"}


async def test_rows_of_parquet_become_typed_records(tmp_path: Path) -> None:
    times = pa.array([DAY_US * 1000 + 1, (DAY_US + 1) * 1000], pa.timestamp("ns", "UTC"))
    table = pa.table({"at": times, "symbol": ["A", "B"], "close": [1.5, 2.5], "volume": [None, 3.0]})
    parquet.write_table(table, tmp_path / "bars.parquet")
    rows = await replayed(tmp_path / "bars.parquet", Bar, time="at", pace=0)
    assert [row.value for row in rows] == [Bar("A", 1.5), Bar("B", 2.5, 3)]
    assert [row.time_us for row in rows] == [DAY_US, DAY_US + 1]


@pytest.mark.parametrize(
    ("row", "kind", "column", "says"),
    [
        ("1709285400,A,x", Bar, "close", "Expected `float`"),
        ("1709285400,A,x", Checked, "close", "valid number"),
        ("1709285400,A", Bar, "close", "missing required field"),
        ("never,A,1", Bar, "at", "Invalid isoformat"),
        (",A,1", Bar, "at", "not a time"),
    ],
)
async def test_an_invalid_row_raises_an_error_that_names_file_row_and_column(
    tmp_path: Path, row: str, kind: type, column: str, says: str
) -> None:
    path = written(tmp_path / "bars.csv", "at,symbol,close", "1709285400,A,1", row)
    with pytest.raises(comet.SerdeError, match=rf"bars.csv, row 2, column '{column}': .*{says}") as caught:
        await replayed(path, kind, time="at", pace=0)
    assert caught.value.details == {"file": str(path), "row": "2", "column": column}


async def test_invalid_rows_can_be_skipped_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "bars.csv", "at,symbol,close", "1709285400,A,1", "never,A,2", "1709285400,A,x")

    def parse(row: Any, at_us: int) -> float:
        return float(row["close"]) + at_us

    bars = comet.replay(path, time="at", pace=0, parse=parse, on_error="skip")
    assert [row.value async for row in bars] == [1.0 + DAY_US]
    assert (bars.rows, bars.skipped) == (3, 2)


async def test_a_file_is_read_in_chunks_and_a_line_has_a_limit(tmp_path: Path) -> None:
    rows = [f"{1709285400 + number},{number}" for number in range(2 * CHUNK_ROWS + 5)]
    path = written(tmp_path / "long.csv", "at,n", *rows, "x" * (3 * LINE_CHARS_MAX - 1))
    replay = comet.replay(path, time="at", pace=0, on_error="skip")
    batches = replay.batches()
    assert len(await anext(batches)) == replay.rows == CHUNK_ROWS
    assert [len(batch) async for batch in batches] == [CHUNK_ROWS, 5]
    assert replay.skipped == 3


async def test_a_pace_moves_times_to_now_and_keeps_their_distances(tmp_path: Path) -> None:
    rows = [f"{DAY_US + after_us},{after_us}" for after_us in (0, 5_000, 30_000, 50_000)]
    path = written(tmp_path / "paced.csv", "at,n", *rows)
    replay = comet.replay(path, time="at", pace=2, now_us=Clock())
    batches = [batch async for batch in replay.batches()]
    assert [len(batch) for batch in batches] == [2, 1, 1]  # rows that are nearly due come along
    due = [row.due_us for batch in batches for row in batch]
    assert [one - due[0] for one in due] == [0, 2_500, 15_000, 25_000]
    assert NOW_US < due[0] < NOW_US + 100_000
    assert batches[0][0].time_us == DAY_US
    again = [row.due_us for row in comet.replay(path, time="at", pace=1000, now_us=Clock())]  # without an event loop
    assert [one - again[0] for one in again] == [0, 5, 30, 50]


@pytest.mark.parametrize(
    "value",
    [
        "2024-03-01T09:30:00Z", "2024-03-01 09:30:00", "2024-03-01T10:30:00+01:00", "1709285400", 1709285400,
        1709285400.0, 1709285400000, DAY_US, str(DAY_US), DAY_US * 1000, float(DAY_US),
        datetime(2024, 3, 1, 9, 30, tzinfo=UTC),
    ],
)  # fmt: skip
def test_a_time_has_many_forms(value: object) -> None:
    assert time_us(value) == DAY_US


@pytest.mark.parametrize("value", [None, True, "never", "", 0, -1, 10**30, float("inf"), [], "9999-01-01"])
def test_other_values_are_no_times(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        time_us(value)


async def test_invalid_files_and_arguments_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "bars.csv", "at,close", "1709285400,1")
    with pytest.raises(comet.InvalidArgument, match="no column 'ts' for the time; it has at, close"):
        await replayed(path, time="ts")
    with pytest.raises(comet.InvalidArgument, match="does not exist"):
        await replayed(tmp_path / "nothing.csv", time="at")
    with pytest.raises(comet.InvalidArgument, match="is empty"):
        await replayed(written(tmp_path / "empty.csv"), time="at")
    with pytest.raises(comet.InvalidArgument, match="not a Parquet file"):
        await replayed(written(tmp_path / "text.parquet", "text"), time="at")
    with pytest.raises(comet.InvalidArgument, match="invalid pace -1"):
        comet.replay(path, time="at", pace=-1)
    with pytest.raises(comet.InvalidArgument, match="on_error must be"):
        comet.replay(path, time="at", on_error="ignore")  # type: ignore[call-overload]
