"""Parsing of addresses: the page, its path parameters, and its compiled filter.

The same for HTTP requests and subscriptions.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

from starlette.routing import compile_path

from comet import patterns
from comet.errors import InvalidArgument
from comet_gateway.http.auth import Principal
from comet_gateway.http.problems import Problem
from comet_gateway.http.topic_roles import require_topic
from comet_web.page_request import PageRequest
from comet_web.pages import PAGES, Page

QUERY_CHARACTERS_MAX: Final = 4_096
PARAMETERS_MAX: Final = 32
FILTERED_CHARACTERS_MAX: Final = 256  # of one filtered text: bounds the time of a match
FILTER_S: Final = 0.25  # for filters: of one request, and per second of all live pages
FILTER_WAYS_MAX: Final = (10_000, 1_000, 100, 10)  # see comet.patterns; more than of topics, as its time is bounded
_PLAIN: Final = re.compile(r"[\w\s.:/@-]*")
_PARAMETER: Final = re.compile(r"{([a-z_]+)(?::[a-z]+)?}")


class FilterTime:
    """The time budget of filters: of one request, or shared by all live pages and refilled over time."""

    def __init__(self) -> None:
        self.left_s = FILTER_S
        self._filled_at = 0.0

    def fill(self, now: float) -> None:
        self.left_s = min(FILTER_S, self.left_s + FILTER_S * (now - self._filled_at))
        self._filled_at = now


class Addresses:
    """Finds the page of an address."""

    def __init__(self, pages: Iterable[Page] = PAGES) -> None:
        self._known = [(compile_path(page.path)[0], page) for page in pages]

    def find(self, url: str, principal: Principal, *, is_open: bool) -> tuple[Page, PageRequest]:
        """The page and request for a path and query. Raises Problem."""
        path, _, query = url.partition("?")
        plain = unquote(path)
        for pattern, page in self._known:
            if found := pattern.fullmatch(plain):
                return page, page_request_of(page, found.groupdict(), query, principal, is_open=is_open)
        raise Problem("NOT_FOUND", f"page {path[:200]!r} does not exist")


def page_request_of(
    page: Page,
    params: Mapping[str, str],
    query_string: str,
    principal: Principal,
    *,
    is_open: bool,
    whole: bool = False,
) -> PageRequest:
    """The request for a page. Raises Problem for an invalid query, or a topic that needs a higher role; an invalid
    filter is shown on the page instead."""
    query = _query(query_string)
    for topic in (params.get("topic"), query.get("topic")):
        require_topic(principal, topic)
    matches, problem = filter_of(query.get("filter", ""), FilterTime()) if page.main else (None, "")
    return PageRequest(
        path=address(page.path, params),
        params=dict(params),
        query=query,
        now_us=time.time_ns() // 1_000,
        principal=principal.name,
        role=int(principal.role),
        open=is_open,
        matches=matches,
        filter_problem=problem,
        whole=whole,
    )


def again(before: PageRequest, time_left: FilterTime) -> PageRequest:
    """The same request with the current time and filter budget."""
    text = before.query.get("filter", "")
    matches, problem = filter_of(text, time_left) if before.matches else (None, before.filter_problem)
    return replace(before, now_us=time.time_ns() // 1_000, matches=matches, filter_problem=problem)


def address(template: str, params: Mapping[str, str]) -> str:
    """The path of a page with its parameters filled in.

    >>> address("/groups/{group:path}/x", {"group": "a/b"})
    '/groups/a%2Fb/x'
    """
    return _PARAMETER.sub(lambda found: quote(params[found[1]], safe=""), template)


def _query(query_string: str) -> dict[str, str]:
    if len(query_string) > QUERY_CHARACTERS_MAX:
        raise Problem("VALIDATION", f"the query has more than {QUERY_CHARACTERS_MAX} characters")
    try:
        pairs = parse_qsl(query_string, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError:
        raise Problem("VALIDATION", f"the query has more than {PARAMETERS_MAX} parameters") from None
    return dict(reversed(pairs))  # the first of a duplicated name wins


def filter_of(text: str, time_left: FilterTime) -> tuple[Callable[[str], bool] | None, str]:
    """The predicate of a filter, or why it is invalid: a text or a regular expression, case-insensitive. An expression
    uses up `time_left`, and fails when none is left."""
    if not text:
        return None, ""
    if _PLAIN.fullmatch(text):
        part = text.casefold()
        return (lambda value: part in value.casefold()), ""
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of syntax that may change
        core, problem = _core(text), _problem(text)
        if problem:
            return None, problem
        search = re.compile(core, re.ASCII | re.IGNORECASE).search

    def matches(value: str) -> bool:
        if time_left.left_s < 0:
            raise Problem("VALIDATION", "the filter takes too long; use plain text")
        began = perf_counter()
        found = search(value[:FILTERED_CHARACTERS_MAX]) is not None
        time_left.left_s -= perf_counter() - began
        return found

    return matches, ""


def _core(text: str) -> str:
    """Without what a search has around it anyway."""
    return patterns.without_rest(text.removeprefix(".*"))


def _problem(text: str) -> str:
    """Why an expression is refused; empty if it is not."""
    try:
        patterns.check(text, FILTER_WAYS_MAX)
        patterns.check(_core(text), FILTER_WAYS_MAX)
    except InvalidArgument as error:
        return error.message
    try:
        # To search is to match with anything before it, which is one repetition more.
        patterns.check(f".*(?:{_core(text)})", FILTER_WAYS_MAX)
    except InvalidArgument:
        return "this could take too long: take away a repetition, or a choice"
    return ""
