"""Paths to fields of a JSON value: `price`, `user.name`, `legs[0].size`, `"odd name".x`; `$` is the value itself.

A name on a list applies to each of its entries, so that a path may find several values. Pure.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from comet.errors import MalformedFilter

PATH_CHARS_MAX: Final = 500
PATHS_CHARS_MAX: Final = 1_500
PARTS_MAX: Final = 16
FOUND_MAX: Final = 1_000  # entries of lists that one path visits

Part = str | int
Path = tuple[Part, ...]

# A name ends where an operator begins; of ^= $= || && only both characters are one.
NAME: Final = re.compile(r'(?:[^\s.\[\]()=!<>~"^$|&]|[\^$](?!=)|\|(?!\|)|&(?!&))+')
_LISTED: Final = re.compile(r'(?:[^\s.,\[\]()=!<>~"^$|&]|[\^$](?!=)|\|(?!\|)|&(?!&))+')  # in a list of paths
_INDEX: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_NUMBER_CHARS_MAX: Final = 500
_SPACE: Final = re.compile(r"\s*")
_QUOTED: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_APOSTROPHED: Final = re.compile(r"'(?:[^'\\\x00-\x1f]|\\.)*'")
_TO_JSON: Final = re.compile(r'\\.|"')


def malformed(message: str, text: str, at: int) -> MalformedFilter:
    """The error of a syntax error at a character, counted from 0."""
    shown = f"{text[max(at - 60, 0) : at]}▸{text[at : at + 60]}"
    return MalformedFilter(
        f"at character {at + 1}: {message}", details={"position": str(at), "problem": message, "shown": shown}
    )


def space(text: str, at: int) -> int:
    """The next character that is not white space."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def quoted(text: str, at: int) -> tuple[str, int]:
    """A text in "quotation marks" or 'apostrophes', with JSON's escapes, and the place behind it."""
    mark = text[at]
    found = (_QUOTED if mark == '"' else _APOSTROPHED).match(text, at)
    if found is None:
        raise malformed(f"a closing {mark} is missing", text, at)
    literal = found[0]
    if mark == "'":
        literal = f'"{_TO_JSON.sub(_json_escape, literal[1:-1])}"'
    try:
        read = str(json.loads(literal))
        read.encode()
    except UnicodeEncodeError:
        raise malformed("half of a surrogate pair is not a character", text, at) from None
    except ValueError:
        raise malformed("unknown JSON escape", text, at) from None
    return read, found.end()


def _json_escape(found: re.Match[str]) -> str:
    match found[0]:
        case "\\'":
            return "'"
        case '"':
            return '\\"'
    return found[0]


def path_at(text: str, at: int, names: re.Pattern[str] = NAME) -> tuple[Path, int]:
    """The path that begins at a character, and the place behind it."""
    parts: list[Part] = []
    if text[at : at + 1] == "$" and (at + 1 == len(text) or not names.match(text, at + 1)):
        at += 1
    elif text[at : at + 1] != "[":
        name, at = name_at(text, at, names)
        parts.append(name)
    while at < len(text) and text[at] in ".[":
        if len(parts) == PARTS_MAX:
            raise malformed(f"the path has more than {PARTS_MAX} parts", text, at)
        if text[at] == ".":
            name, at = name_at(text, at + 1, names)
            parts.append(name)
            continue
        index = _INDEX.match(text, at + 1)
        if index is None:
            raise malformed("a number is missing: [0] is the first entry of a list", text, at + 1)
        if text[index.end() : index.end() + 1] != "]":
            raise malformed("a ] is missing", text, index.end())
        parts.append(int(index[0]))
        at = index.end() + 1
    return tuple(parts), at


def name_at(text: str, at: int, names: re.Pattern[str] = NAME) -> tuple[str, int]:
    if text[at : at + 1] == '"':
        return quoted(text, at)
    found = names.match(text, at)
    if found is None:
        raise malformed("the name of a field is missing", text, at)
    return found[0], found.end()


def parse_path(text: str) -> Path:
    """Parses the path of a field alone. Raises MalformedFilter."""
    if len(text) > PATH_CHARS_MAX:
        raise malformed(f"more than {PATH_CHARS_MAX} characters", text, PATH_CHARS_MAX)
    path, at = path_at(text, space(text, 0))
    at = space(text, at)
    if at < len(text):
        raise malformed("unexpected text after the path", text, at)
    return path


def parse_paths(text: str) -> list[Path]:
    """Parses paths separated by commas. Raises MalformedFilter."""
    if len(text) > PATHS_CHARS_MAX:
        raise malformed(f"more than {PATHS_CHARS_MAX} characters", text, PATHS_CHARS_MAX)
    found: list[Path] = []
    at = 0
    while True:
        path, at = path_at(text, space(text, at), _LISTED)
        found.append(path)
        at = space(text, at)
        if at == len(text):
            return found
        if text[at] != ",":
            raise malformed("a comma is missing between two fields", text, at)
        at += 1


def text_of_path(path: Sequence[Part]) -> str:
    """A path as it is written.

    >>> text_of_path(("legs", 0, "the size"))
    'legs[0]."the size"'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + text_of_name(part)
    return text or "$"


def text_of_name(name: str) -> str:
    """A name, in quotation marks if it needs them."""
    plain = name[:1] not in ("$", "@", "'") and _LISTED.fullmatch(name) is not None
    return name if plain else json.dumps(name, ensure_ascii=False)


# ---- following paths


def follow(document: Any, path: Path) -> list[Any]:
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


# ---- numbers


def number_of(text: str) -> int | float | None:
    """The number that a text is; None for another text. A whole number of any size is exact.

    >>> number_of("9007199254740993"), number_of("1.50"), number_of("0x10")
    (9007199254740993, 1.5, None)
    """
    if len(text) > _NUMBER_CHARS_MAX or (found := _NUMBER.fullmatch(text)) is None:
        return None
    return int(text) if found[2] is None and found[3] is None else float(text)


def number_in(value: Any) -> int | float | None:
    """The number, or that of a text which is one: exact decimals are often written as text."""
    if isinstance(value, str):
        return number_of(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def number_at(document: Any, path: Path) -> float | None:
    """The first number at a path of a decoded JSON value, also one written as text; None: none that is finite."""
    for value in entries(follow(document, path)):
        number = number_in(value)
        if number is not None and abs(number) <= sys.float_info.max:
            return float(number)
    return None
