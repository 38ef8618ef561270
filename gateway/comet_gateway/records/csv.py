"""Tables as CSV (RFC 4180): raw values, not the formatted texts.

Spreadsheets execute a text that starts like a formula; such a text gets a leading apostrophe.
"""

from __future__ import annotations

import csv
from io import StringIO
from typing import Final

from comet_web.document import UNKNOWN, Cell, Table, Value

CONTENT_TYPE: Final = b"text/csv; charset=utf-8"
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def encoded(table: Table) -> bytes:
    """The table as CSV, with a header of column names and units."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([f"{column.label} ({column.unit})" if column.unit else column.label for column in table.columns])
    for row in table.rows:
        writer.writerow([_value(cell) for cell in row.cells])
    return out.getvalue().encode()


def _value(cell: Cell) -> Value:
    if cell.value is None:
        return "" if cell.text == UNKNOWN.text else safe(cell.text)
    return safe(cell.value) if isinstance(cell.value, str) else cell.value


def safe(text: str) -> str:
    """The text, with an apostrophe if it looks like a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text
