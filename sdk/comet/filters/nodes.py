"""The parts of a parsed filter: immutable, hashable, and written back as the canonical text. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from comet.filters.paths import Path, number_of, text_of_name, text_of_path

NUMBERS: Final = ("timestamp", "offset", "partition", "schema", "size")  # roots that are whole numbers
ROOTS: Final = ("key", "header", *NUMBERS, "tombstone")
WORDS: Final = ("true", "false", "null")
_JOINED: Final = {"and": " && ", "or": " || "}


@dataclass(frozen=True)
class Literal:
    """A literal. `bare`: a number, true, false or null without quotation marks, which also equals a text of these
    characters; else a text."""

    text: str
    bare: bool = False

    @cached_property
    def number(self) -> int | float | None:
        return number_of(self.text) if self.bare else None

    def __str__(self) -> str:
        return self.text if self.bare else json.dumps(self.text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class JsonField:
    """A field of the JSON value."""

    path: Path

    def __str__(self) -> str:
        return text_of_path(self.path)


@dataclass(frozen=True, slots=True)
class Root:
    """A part of the record beside its value, such as `@key`; `header` is the name of a header."""

    name: str
    header: str = ""

    def __str__(self) -> str:
        return f"@{self.name}" + (f".{text_of_name(self.header)}" if self.name == "header" else "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison: `operator` is one of = > >= < <= ~ ^= $= in exists."""

    operand: JsonField | Root
    operator: str
    literals: tuple[Literal, ...] = ()

    def __str__(self) -> str:
        match self.operator:
            case "exists":
                return f"exists({self.operand})"
            case "in":
                return f"{self.operand} in ({', '.join(map(str, self.literals))})"
        return f"{self.operand} {self.operator} {self.literals[0]}"


@dataclass(frozen=True, slots=True)
class Not:
    """The contrary; what is unknown stays unknown."""

    node: Node

    def __str__(self) -> str:
        node = self.node
        if isinstance(node, Comparison):
            if node.operator in ("=", "~"):
                return f"{node.operand} !{node.operator} {node.literals[0]}"
            if node.operator == "exists":
                return f"!{node}"
        return f"!({node})"


@dataclass(frozen=True, slots=True)
class Joined:
    """Several nodes, joined by "and" or "or"; none of them is joined by the same word."""

    word: str
    nodes: tuple[Node, ...]

    def __str__(self) -> str:
        return _JOINED[self.word].join(
            f"({node})" if self.word == "and" and isinstance(node, Joined) else str(node) for node in self.nodes
        )


Node = Comparison | Not | Joined


def joined(word: str, nodes: list[Node]) -> Node:
    """Nodes joined by a word, flat."""
    if len(nodes) == 1:
        return nodes[0]
    flat: list[Node] = []
    for node in nodes:
        flat += node.nodes if isinstance(node, Joined) and node.word == word else [node]
    return Joined(word, tuple(flat))


def tests_of(node: Node) -> list[Comparison]:
    """All comparisons of a node, in order."""
    match node:
        case Comparison():
            return [node]
        case Not():
            return tests_of(node.node)
    return [test for inner in node.nodes for test in tests_of(inner)]
