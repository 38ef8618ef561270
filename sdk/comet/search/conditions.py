r"""The language of conditions on a record's JSON: evaluated in bounded time, without regular expressions.

    price>100        user.name=anna      tags~urgent      exists(user.email)
    side!=buy        legs[0].size<=5     name="A \"B\""   !exists(error)

    where     = condition { ( "&&" | "and" ) condition }   all of them
    condition = [ "!" ] "exists(" path ")"  |  path operator literal
    path      = name { "." name | "[" number "]" }       a name in "quotes" may hold anything; $ first is the value
    operator  = "=" | "!=" | ">" | ">=" | "<" | "<=" | "~" | "!~"
    literal   = "quoted", as in JSON  |  everything up to the end, to && or to the word and, without an operator at its
                beginning and without the word or: that would nearly always be meant as more of the language

A name on a list applies to each of its entries, and a list is compared entry by entry: one match is enough. An absent
field matches no condition, not even !=.

    =  !=       a bare literal is a number, true, false, null or a text, whichever the field holds; quoted, a text
    >  <        a bare number with numbers, and with texts that are numbers; else texts with texts, letter by letter,
                which suits times in ISO 8601
    ~  !~       a text that contains the literal, in any case

Pure.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, Final

CHARS_MAX: Final = 500
PATHS_CHARS_MAX: Final = 1_500
PARTS_MAX: Final = 16
FOUND_MAX: Final = 1_000  # entries of lists that one path visits

Part = str | int

_NAME: Final = re.compile(r'[^\s.\[\]()=!<>~"]+')
_LISTED: Final = re.compile(r'[^\s.,\[\]()=!<>~"]+')  # in a list of paths
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_INDEX: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_WORD: Final = re.compile(r"(?:^|\s)(or|and|\|\|)(?=\s|$)", re.IGNORECASE)
_JOINED: Final = re.compile(r"&&|\s+and(?=\s|$)", re.IGNORECASE)
_SPACE: Final = re.compile(r"\s*")
_QUOTED: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_OPERATOR: Final = re.compile(r"!=|!~|>=|<=|=|>|<|~")
# Never fails, so it never backtracks: takes text up to && or the word and, outside of quotation marks. The word joins
# only behind a condition, and is looked for only where white space begins.
_CONDITION: Final = re.compile(
    r'(?:"(?:[^"\\]|\\.)*"|(?!(?<=[^\s&])\s+and(?:\s|$))[^&]|&(?!&))*', re.DOTALL | re.IGNORECASE
)
_EXISTS: Final = re.compile(r"(!?)\s*exists\s*\(")
_ORDERED: Final[dict[str, Callable[[Any, Any], bool]]] = {">": gt, ">=": ge, "<": lt, "<=": le}


class Malformed(Exception):
    """A syntax error; `position` is its character, from 0."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, slots=True)
class Where:
    """One condition. `operator` is one of those above, or "exists"; `number`: a bare literal that is a number."""

    path: tuple[Part, ...]
    operator: str
    negated: bool = False
    literal: str = ""
    quoted: bool = False
    number: int | float | None = None

    def holds(self, document: Any) -> bool:
        """Whether a decoded JSON value matches."""
        found = follow(document, self.path)
        if self.operator == "exists":
            return bool(found) is not self.negated
        if not found:
            return False
        return any(map(self._fits, entries(found))) is not self.negated

    def _fits(self, value: Any) -> bool:
        match self.operator:
            case "=":
                return self._equals(value)
            case "~":
                return isinstance(value, str) and self.literal.casefold() in value.casefold()
        ordered = _ORDERED[self.operator]
        if self.number is not None:
            number = number_in(value)
            return number is not None and ordered(number, self.number)
        return isinstance(value, str) and ordered(value, self.literal)

    def _equals(self, value: Any) -> bool:
        if isinstance(value, str):
            return value == self.literal
        if self.quoted:
            return False
        if value is None or isinstance(value, bool):
            return self.literal == {None: "null", True: "true", False: "false"}[value]
        return self.number is not None and _is_number(value) and value == self.number


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_in(value: Any) -> int | float | None:
    """The number, or that of a text which is one: exact decimals are often written as text."""
    if isinstance(value, str):
        return float(value) if len(value) <= CHARS_MAX and _NUMBER.fullmatch(value) else None
    return value if _is_number(value) else None


def follow(document: Any, path: tuple[Part, ...]) -> list[Any]:
    """The values at a path: none, one, or several inside of lists."""
    found = [document]
    for part in path:
        found = list(_step(found, part))
        if not found:
            break
    return found


def _step(values: list[Any], part: Part) -> Iterator[Any]:
    left = FOUND_MAX
    for value in values:
        if isinstance(part, int):
            inside = value[part : part + 1] if isinstance(value, list) else []
        elif isinstance(value, dict):
            inside = [value[part]] if part in value else []
        elif isinstance(value, list):
            inside = [entry[part] for entry in value[:left] if isinstance(entry, dict) and part in entry]
        else:
            inside = []
        yield from inside
        left -= max(len(inside), 1)
        if left <= 0:
            return


def entries(values: list[Any]) -> Iterator[Any]:
    """The values, with the entries of lists in their place."""
    for value in values:
        if isinstance(value, list):
            yield from value[:FOUND_MAX]
        else:
            yield value


# ---- parsing


def parse_path(text: str) -> tuple[Part, ...]:
    """Parses the path of a field alone. Raises Malformed."""
    if len(text) > CHARS_MAX:
        raise Malformed(f"more than {CHARS_MAX} characters", CHARS_MAX)
    path, at = _path(text, _space(text, 0))
    at = _space(text, at)
    if at < len(text):
        raise Malformed("unexpected text after the path", at)
    return path


def number_at(document: Any, path: tuple[Part, ...]) -> float | None:
    """The first number at a path of a decoded JSON value, also one written as text; None: none that is finite."""
    for value in entries(follow(document, path)):
        number = number_in(value)
        if number is not None and abs(number) <= sys.float_info.max:
            return float(number)
    return None


def parse_all(text: str) -> list[Where]:
    """Parses conditions joined by && or the word and. Raises Malformed."""
    if len(text) > CHARS_MAX:
        raise Malformed(f"more than {CHARS_MAX} characters", CHARS_MAX)
    found: list[Where] = []
    at = 0
    while True:
        condition = _CONDITION.match(text, at)
        assert condition is not None
        try:
            found.append(parse(condition[0]))
        except Malformed as malformed:
            raise Malformed(str(malformed), at + malformed.position) from None
        if condition.end() == len(text):
            return found
        joined = _JOINED.match(text, condition.end())
        assert joined is not None
        at = joined.end()


def parse_paths(text: str) -> list[tuple[Part, ...]]:
    """Parses paths separated by commas. Raises Malformed."""
    if len(text) > PATHS_CHARS_MAX:
        raise Malformed(f"more than {PATHS_CHARS_MAX} characters", PATHS_CHARS_MAX)
    found: list[tuple[Part, ...]] = []
    at = 0
    while True:
        path, at = _path(text, _space(text, at), _LISTED)
        found.append(path)
        at = _space(text, at)
        if at == len(text):
            return found
        if text[at] != ",":
            raise Malformed("a comma is missing between two fields", at)
        at += 1


def is_plain_name(name: str) -> bool:
    """Whether a path has the name without quotes."""
    return name != "$" and _LISTED.fullmatch(name) is not None


def parse(text: str) -> Where:
    """Parses one condition. Raises Malformed."""
    at = _space(text, 0)
    exists = _EXISTS.match(text, at)
    if exists is not None:
        path, at = _path(text, _space(text, exists.end()))
        at = _space(text, at)
        if text[at : at + 1] != ")":
            raise Malformed("a ) is missing", at)
        at = _space(text, at + 1)
        if at < len(text):
            raise Malformed("unexpected text after exists(…)", at)
        return Where(path, "exists", negated=bool(exists[1]))
    path, at = _path(text, at)
    at = _space(text, at)
    operator = _OPERATOR.match(text, at)
    if operator is None:
        raise Malformed("an operator is missing: = != > >= < <= ~ !~", at)
    negated = operator[0] in ("!=", "!~")
    return _compared(path, operator[0].lstrip("!") if negated else operator[0], negated, text, operator.end())


def _compared(path: tuple[Part, ...], operator: str, negated: bool, text: str, at: int) -> Where:
    at = _space(text, at)
    if text[at : at + 1] == '"':
        literal, end = _quoted(text, at)
        end = _space(text, end)
        if end < len(text):
            raise Malformed("unexpected text after the quoted text", end)
        return Where(path, operator, negated, literal, quoted=True)
    literal = text[at:].rstrip()
    if not literal:
        raise Malformed('the operand is missing; an empty text is ""', at)
    if literal[0] in "=!<>~":
        raise Malformed('a second operator; a text that begins with one is written in "quotes"', at)
    if (word := _WORD.search(literal)) is not None:
        message = 'only "and" and && join conditions; a text with this word is written in "quotes"'
        raise Malformed(message, at + word.start(1))
    number: int | float | None = None
    if _NUMBER.fullmatch(literal):
        number = float(literal) if any(sign in literal for sign in ".eE") else int(literal)
    return Where(path, operator, negated, literal, number=number)


def _path(text: str, at: int, names: re.Pattern[str] = _NAME) -> tuple[tuple[Part, ...], int]:
    parts: list[Part] = []
    if text[at : at + 1] == "$" and (at + 1 == len(text) or not names.match(text, at + 1)):
        at += 1
    elif text[at : at + 1] != "[":
        name, at = _name(text, at, names)
        parts.append(name)
    while at < len(text) and text[at] in ".[":
        if len(parts) == PARTS_MAX:
            raise Malformed(f"the path has more than {PARTS_MAX} parts", at)
        if text[at] == ".":
            name, at = _name(text, at + 1, names)
            parts.append(name)
            continue
        index = _INDEX.match(text, at + 1)
        if index is None:
            raise Malformed("a number is missing: [0] is the first entry of a list", at + 1)
        if text[index.end() : index.end() + 1] != "]":
            raise Malformed("a ] is missing", index.end())
        parts.append(int(index[0]))
        at = index.end() + 1
    return tuple(parts), at


def _name(text: str, at: int, names: re.Pattern[str]) -> tuple[str, int]:
    if text[at : at + 1] == '"':
        return _quoted(text, at)
    found = names.match(text, at)
    if found is None:
        raise Malformed("the name of a field is missing", at)
    return found[0], found.end()


def _quoted(text: str, at: int) -> tuple[str, int]:
    found = _QUOTED.match(text, at)
    if found is None:
        raise Malformed('a closing " is missing', at)
    try:
        return str(json.loads(found[0])), found.end()
    except ValueError:
        raise Malformed("unknown JSON escape", at) from None


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
