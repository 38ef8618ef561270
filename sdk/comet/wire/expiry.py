"""When the end of a certificate or access key is worth a notice, and its words. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

EXPIRES_SOON_DAYS: Final = 30
EXPIRES_NOW_DAYS: Final = 7  # so few days are shown as an error
KEY_EXPIRES_SOON_DAYS: Final = 14  # of access keys, which live shorter than certificates
DAY_US: Final = 86_400_000_000


def expiry_text(expires_us: int, now_us: int) -> str:
    """For people; its days are those of the certificate's own time zone, UTC.

    >>> expiry_text(5 * DAY_US, 2 * DAY_US + 1), expiry_text(DAY_US, 3 * DAY_US)
    ('expires in 2 days, on 1970-01-06', 'expired on 1970-01-02')
    """
    day = f"{datetime.fromtimestamp(expires_us / 1e6, UTC):%Y-%m-%d}"
    if expires_us <= now_us:
        return f"expired on {day}"
    days = (expires_us - now_us) // DAY_US
    return f"expires in {days} {'day' if days == 1 else 'days'}, on {day}"
