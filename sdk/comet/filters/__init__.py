"""Filters of records: one language, and its evaluation over the columns of batches.

parse(text)  ─►  Filter  ─►  rows(batch): the indexes of the records for which it is true

paths, nodes, parser       the language, as docs/filters.md has it
values                     what one comparison says about one value: true, false or unknown
columns, evaluate          the same over a batch: only what a filter names is decoded
search_filters             a filter and texts that keys, values and headers contain: the conditions of one search
"""

from __future__ import annotations

from comet.filters.filter import Filter, all_of, parse

__all__ = ["Filter", "all_of", "parse"]
