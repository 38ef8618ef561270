"""When a record or a credential has expired: from `expires_us` on; 0 is never."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def has_expired(expires_us: int, now_us: int) -> bool:
    """Whether the time has come.

    >>> has_expired(10, 9), has_expired(10, 10), has_expired(0, 10)
    (False, True, False)
    """
    return 0 < expires_us <= now_us


def unexpired_rows(rows: Iterable[int], expiry: Sequence[int], now_us: int) -> list[int]:
    """Those of the rows of a batch that have not expired. One loop, without a call for each row.

    >>> unexpired_rows(range(3), [0, 10, 11], 10)
    [0, 2]
    """
    return [row for row in rows if not 0 < expiry[row] <= now_us]
