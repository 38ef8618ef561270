"""A filter of records: parsed, compiled, and applied to batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

from comet.errors import MalformedFilter
from comet.filters.columns import Filterable
from comet.filters.evaluate import FilterPlan
from comet.filters.nodes import JsonField, Node, joined, tests_of
from comet.filters.parser import parse_node

_CACHED = 64


class Filter:
    """A condition on records; see docs/filters.md. Equal filters have the same canonical text.

    >>> from comet.filters import parse
    >>> parse("price>100 and side in [buy, 'sell']", now_us=0)
    <Filter price > 100 && side in ("buy", "sell")>
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    @cached_property
    def text(self) -> str:
        """The canonical text, which is a filter again."""
        return str(self.node)

    def __repr__(self) -> str:
        return f"<Filter {self.text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.node == other.node

    def __hash__(self) -> int:
        return hash(self.node)

    def rows(self, batch: Filterable, rows: Sequence[int] | None = None) -> Sequence[int]:
        """The indexes of the records for which it is true, in order; of all records, or of these. A record whose value
        cannot be decrypted is among them if only the value could say no: the reader gets its error."""
        return self._plan.rows(batch, range(len(batch)) if rows is None else rows)

    @property
    def tests(self) -> Sequence[Any]:
        """Its comparisons, in order."""
        return tests_of(self.node)

    def explain(self) -> dict[str, Any]:
        """The canonical text, the parts of a record that it reads, and the texts of which a batch must have one for
        each comparison, or no record of it matches."""
        columns = dict.fromkeys(
            "value" if isinstance(test.operand, JsonField) or test.operand.name == "tombstone" else test.operand.name
            for test in tests_of(self.node)
        )
        return {
            "filter": self.text,
            "columns": list(columns),
            "literals": [[needle.decode() for needle in needles] for needles in self._plan.literals],
        }

    @cached_property
    def _plan(self) -> FilterPlan:
        return _plan(self.node)


@lru_cache(maxsize=_CACHED)
def _plan(node: Node) -> FilterPlan:
    return FilterPlan(node)


def parse(text: str, *, now_us: int) -> Filter:
    """Parses a filter; times ago are before `now_us`. Raises MalformedFilter."""
    try:
        return Filter(parse_node(text, now_us=now_us))
    except MalformedFilter as error:
        message = f"malformed filter, {error.message}: {error.details['shown']}"
        raise MalformedFilter(message, details=error.details) from None


def all_of(filters: Iterable[Filter]) -> Filter | None:
    """One filter that needs all of these; None for none."""
    nodes = [one.node for one in filters]
    return Filter(joined("and", nodes)) if nodes else None
