"""The command palette: pages, topics, groups, brokers and actions that match a query. Pure.

    GET /palette?q=produce+ord

    {"entries": [{"label": "Produce to orders", "hint": "Topic", "href": "/topics/orders", "action": "produce"}, …],
     "more": false}

A query matches a text if it is its beginning, a part of it, or its letters in this order. A query that begins like an
action, such as `reset`, finds the action; what follows finds the topic, group or broker to act on. An entry with
`complete` is the beginning of such a query. `action` names the button that the page at `href` has for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from comet_web.components.navigation import NAV
from comet_web.page_request import ADMIN, OPERATOR, VIEWER, PageRequest, path

QUERY_CHARACTERS_MAX: Final = 100
ENTRIES_MAX: Final = 30  # of one answer
OF_ACTION_MAX: Final = 6  # of them, of one action
NAMES_MAX: Final = 20_000  # of one kind that are compared
TOPIC: Final = "topic"
GROUP: Final = "group"
BROKER: Final = "broker"
HINTS: Final = {TOPIC: "Topic", GROUP: "Group", BROKER: "Broker"}
_FOLDERS: Final = {TOPIC: "topics", GROUP: "groups", BROKER: "brokers"}


@dataclass(frozen=True, slots=True)
class PaletteAction:
    """An action of a page: of that at `href`, or of a topic's, group's or broker's (`of`), there under `part`."""

    label: str
    button: str = ""  # its `data-action`; empty: the page itself is the aim
    role: int = VIEWER
    href: str = ""
    of: str = ""
    part: str = ""


ACTIONS: Final[tuple[PaletteAction, ...]] = (
    PaletteAction("Create topic", "create-topic", OPERATOR, "/topics"),
    PaletteAction("Create schedule", "new-schedule", OPERATOR, "/schedules"),
    PaletteAction("Produce to", "produce", OPERATOR, of=TOPIC),
    PaletteAction("Records of", of=TOPIC, part="records"),
    PaletteAction("Settings of topic", of=TOPIC, part="config"),
    PaletteAction("Consumers of", of=TOPIC, part="consumers"),
    PaletteAction("Add partitions to", "add-partitions", OPERATOR, of=TOPIC),
    PaletteAction("Purge topic", "purge-topic", ADMIN, of=TOPIC),
    PaletteAction("Delete topic", "delete-topic", ADMIN, of=TOPIC),
    PaletteAction("Reset offsets of", "reset-group", OPERATOR, of=GROUP),
    PaletteAction("Delete group", "delete-group", ADMIN, of=GROUP),
    PaletteAction("Drain broker", "drain", ADMIN, of=BROKER),
    PaletteAction("Spread leaders over brokers", "spread-leaders", ADMIN, "/brokers"),
    PaletteAction("Add access rule", "add-rule", ADMIN, "/access"),
    PaletteAction("Grant role", "grant-role", ADMIN, "/access"),
    PaletteAction("Create access key", "create-key", ADMIN, "/access"),
    PaletteAction("Set quota", "set-quota", ADMIN, "/access"),
)


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """One line of the palette; `rank` orders them, the best first."""

    rank: tuple[int, int, int, str]
    label: str
    hint: str
    href: str
    action: str = ""
    complete: str = ""  # the text to go on with, instead of an address

    def wire(self) -> dict[str, Any]:
        found = {"label": self.label, "hint": self.hint, "href": self.href}
        return found | {name: text for name in ("action", "complete") if (text := getattr(self, name))}


def view(names: Mapping[str, Iterable[str]], request: PageRequest) -> dict[str, Any]:
    """The entries for the query of a request. `names` are those that the user may see, by kind."""
    query = request.query.get("q", "")[:QUERY_CHARACTERS_MAX].strip().casefold()
    found = nsmallest(ENTRIES_MAX + 1, _entries(names, query, request), key=lambda entry: entry.rank)
    return {"entries": [entry.wire() for entry in found[:ENTRIES_MAX]], "more": len(found) > ENTRIES_MAX}


def _entries(names: Mapping[str, Iterable[str]], query: str, request: PageRequest) -> Iterator[PaletteEntry]:
    for at, entry in enumerate(NAV):
        if request.may(entry.role) and (score := scored(query, entry.label)) is not None:
            yield PaletteEntry((score, 0, at, ""), entry.label, "Page", entry.href)
    if query:
        for order, kind in enumerate(HINTS, 1):
            for score, name in _matching(query, names.get(kind, ())):
                yield PaletteEntry((score, order, len(name), name), name, HINTS[kind], path(_FOLDERS[kind], name))
    for at, action in enumerate(ACTIONS):
        if request.may(action.role):
            yield from _of_action(action, at, names, query)


def _of_action(
    action: PaletteAction, at: int, names: Mapping[str, Iterable[str]], query: str
) -> Iterator[PaletteEntry]:
    if not action.of:
        if (score := scored(query, action.label)) is not None:
            yield PaletteEntry((score, 9, at, ""), action.label, "Action", action.href, action.button)
        return
    rest = _rest(query.split(), action.label.casefold().split())
    if rest is None:
        return
    if not rest and query != action.label.casefold():
        label = f"{action.label} …"
        yield PaletteEntry((1 if query else 0, 9, at, ""), label, "Action", "", complete=f"{action.label} ")
        return
    matching = ((score, len(name) if rest else 0, name) for score, name in _matching(rest, names.get(action.of, ())))
    for score, _, name in nsmallest(OF_ACTION_MAX, matching):
        href = path(_FOLDERS[action.of], name, *filter(None, [action.part]))
        yield PaletteEntry((score, 10, at, name), f"{action.label} {name}", HINTS[action.of], href, action.button)


def _rest(words: Sequence[str], label: Sequence[str]) -> str | None:
    """The words after those that are an action's, each the beginning of one, in its order; None: not this action. Short
    ones, such as `to`, are typed whole: `produce t` looks for topics.

    >>> _rest(["reset", "eng"], ["reset", "offsets", "of"])
    'eng'
    """
    left = list(label)
    taken = 0
    for word in words:
        at = next((number for number, each in enumerate(left) if _begins(each, word)), None)
        if at is None or (not taken and at):
            break
        left = left[at + 1 :]
        taken += 1
    return None if words and not taken else " ".join(words[taken:])


def _begins(label: str, word: str) -> bool:
    return label == word if len(label) < 5 else label.startswith(word)


def _matching(query: str, names: Iterable[str]) -> Iterator[tuple[int, str]]:
    for name in islice(names, NAMES_MAX):
        if (score := scored(query, name)) is not None:
            yield score, name


def scored(query: str, text: str) -> int | None:
    """How well a text matches a query in small letters, 0 the best; None: it does not.

    >>> [scored("ord", text) for text in ("ord", "orders", "eu.orders", "fjords", "o-r-d", "dro")]
    [0, 1, 2, 3, 4, None]
    """
    small = text.casefold()
    if not query or small == query:
        return 0
    at = small.find(query)
    if at >= 0:
        return 1 if at == 0 else 2 if not small[at - 1].isalnum() else 3
    left = iter(small)
    return 4 if all(character in left for character in query if not character.isspace()) else None
