"""The names of fields in calls of the log: `logging` raises KeyError for one that is an attribute of its records."""

from __future__ import annotations

import ast
import logging

from tests.tidy.tree import sources, tree

TAKEN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
OWN = frozenset({"ts", "level", "logger", "msg", "exception", "stack"})


def _named(module: ast.Module) -> list[tuple[int, str]]:
    return [
        (call.lineno, key.value)
        for call in ast.walk(module)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "extra"
        for part in ast.walk(keyword.value)
        if isinstance(part, ast.Dict)
        for key in part.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]


def test_no_field_has_the_name_of_an_attribute_of_records() -> None:
    found = [(source, line, name) for source in sources() for line, name in _named(tree(source))]
    assert len(found) > 50, "the search finds the calls"
    assert [f"{source}:{line} {name}" for source, line, name in found if name in TAKEN | OWN] == []
