"""The board of the demo: what it counts and measures."""

from __future__ import annotations

from comet_demo.board import Board
from comet_demo.model import Quote


def quote(symbol: str, last: float, *, size: int = 0, timestamp_us: int = 0) -> Quote:
    return Quote(symbol, last - 1, last + 1, 100, 100, last, size, timestamp_us)


def test_the_board_counts_and_measures() -> None:
    board = Board()
    for at in range(10):
        board.apply(quote("A", 100.0 + at, size=100 * (at % 2)), now_us=at * 1000)
    board.apply(quote("B", 50.0, timestamp_us=5), now_us=5)
    board.measure(2.0)
    line = board.lines["A"]
    assert (line.events, line.trades, line.volume) == (10, 5, 500)
    assert (line.events_per_s, line.trades_per_s, board.events_per_s) == (5.0, 2.5, 5.5)
    assert (line.direction, round(line.change, 6)) == (1, 0.09)
    assert (board.lag_p50_us, board.lag_p99_us) == (4000, 9000)
    board.measure(1.0)
    assert board.events_per_s == 0.0
    assert "11 events, 0/s, 2 symbols" in board.summary(now_us=0)
