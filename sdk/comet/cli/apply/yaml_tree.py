"""YAML as a tree that keeps line numbers. Nothing is constructed from it: a value is its text and its kind.

Refused, with the line: aliases and anchors, which can expand to any size; tags; several documents; deep nesting; keys
that are no text, or that are given twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from comet.errors import InvalidArgument

BYTES_MAX: Final = 1 << 20  # of a file
DEPTH_MAX: Final = 8
PROBLEMS_SHOWN_MAX: Final = 50
_TAG: Final = "tag:yaml.org,2002:"
TEXT: Final = "str"
# Types that YAML 1.1 gives to plain words that may be meant as text: `no`, 010, 12:30, 2026-11-30, ~.
_KINDS: Final = {
    "bool": "a truth value",
    "int": "a number",
    "float": "a number",
    "null": "empty",
    "timestamp": "a date",
    "merge": "a merge key",
    "value": "a default key",
}


class Problem(NamedTuple):
    """What is wrong, and in which line; 0: in none."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


class Value(NamedTuple):
    """A part of the tree: a word, a list or a mapping."""

    line: int
    kind: str  # of a word: str, int, bool and so on; else "list" or "mapping"
    text: str = ""  # of a word, as it is written
    items: tuple[Value, ...] = ()  # of a list
    members: tuple[tuple[Value, Value], ...] = ()  # of a mapping: keys and values

    @property
    def shown(self) -> str:
        """What it is, for a message."""
        if self.kind in ("list", "mapping"):
            return f"a {self.kind}"
        return f"{_KINDS.get(self.kind, 'text')} ({self.text})" if self.text else "empty"


def refuse(file: str, problems: Iterable[Problem]) -> None:
    """Raises InvalidArgument with all problems, if there are any."""
    found = sorted(set(problems))
    if not found:
        return
    if len(found) == 1:
        raise InvalidArgument(f"{file}, {found[0]}" if found[0].line else f"{file}: {found[0]}")
    lines = [f"  {one}" for one in found[:PROBLEMS_SHOWN_MAX]]
    if len(found) > PROBLEMS_SHOWN_MAX:
        lines.append(f"  and {len(found) - PROBLEMS_SHOWN_MAX} more")
    raise InvalidArgument("\n".join([f"{file} has {len(found)} problems:", *lines]))


def read_tree(file: str, data: bytes) -> tuple[Value, list[Problem]]:
    """Parses a file. Returns its tree without the keys that have problems, and the problems. Raises InvalidArgument for
    a file without a tree."""
    import yaml

    if len(data) > BYTES_MAX:
        raise InvalidArgument(f"{file} has more than {BYTES_MAX >> 20} MiB")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file} is not UTF-8: {error}") from None
    # Both make no objects but nodes; that in C is some ten times as fast.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        refuse(file, _unsafe(yaml, text, loader))
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        refuse(file, [_problem_of(error)])
        raise
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{file} is not YAML: {error}") from None
    if node is None:
        raise InvalidArgument(f"{file} is empty: it declares topics, rules, roles or quotas")
    problems: list[Problem] = []
    return _value(node, problems), problems


def _problem_of(error: Any) -> Problem:
    mark = error.problem_mark or error.context_mark
    about = ", ".join(filter(None, (error.context, error.problem)))
    if "alias" in about:
        about += '; put a word that begins with * or & in quotes: "*"'
    return Problem(mark.line + 1 if mark else 0, f"not YAML: {about}")


def _unsafe(yaml: Any, text: str, loader: Any) -> Iterable[Problem]:
    """The first part that could expand to any size, or nest too deep. Reads events, without recursion."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return [Problem(line, f'*{event.anchor} is an alias, which is not taken; put a word with * in quotes: "*"')]
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                return [Problem(line, "a second document begins: use one file for each")]
        if getattr(event, "anchor", None):
            return [Problem(line, f"&{event.anchor} is an anchor, which is not taken")]
        if getattr(event, "tag", None):
            return [Problem(line, f"{event.tag} is a tag, which is not taken")]
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            return [Problem(line, f"nested deeper than {DEPTH_MAX} levels")]
    return []


def _value(node: Any, problems: list[Problem]) -> Value:
    line = node.start_mark.line + 1
    match node.id:
        case "scalar":
            return Value(line, node.tag.removeprefix(_TAG), node.value)
        case "sequence":
            return Value(line, "list", items=tuple(_value(one, problems) for one in node.value))
    return Value(line, "mapping", members=tuple(_members(node, problems)))


def _members(node: Any, problems: list[Problem]) -> Iterable[tuple[Value, Value]]:
    known: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, value = _value(key_node, problems), _value(value_node, problems)
        if key.kind != TEXT:
            problems.append(Problem(key.line, f"a name is text, not {key.shown}: put it in quotes"))
        elif key.text in known:
            problems.append(Problem(key.line, f"{key.text!r} is given twice, first in line {known[key.text]}"))
        else:
            known[key.text] = key.line
            yield key, value
