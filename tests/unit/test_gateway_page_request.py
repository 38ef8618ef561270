"""What an address asks for: the page, the parts of its path, a filter that holds nobody up; and tables as CSV."""

from __future__ import annotations

import csv as stdlib_csv
from io import StringIO
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from comet_gateway.dashboard.page_request import (
    FILTER_S,
    Addresses,
    FilterTime,
    address,
    again,
    filter_of,
    page_request_of,
)
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.problems import Problem
from comet_gateway.records import csv
from comet_web.document import UNKNOWN, Cell, Column, Document, Row, Table
from comet_web.pages import PAGES, Page

ANNA = Principal("anna", Role.OPERATOR)
NAMES = ["orders", "orders.eu", "Quotes", "quotes-1m", "__offsets"]


def _page(path: str, main: str = "rows") -> Page:
    return Page("p", path, "", "nothing", lambda _, request: Document(request.now_us, ""), main=main)


def kept(text: str) -> list[str]:
    plenty = FilterTime()
    plenty.left_s = 3_600.0  # it counts what a process stands still as well
    matches, problem = filter_of(text, plenty)
    assert problem == ""
    return [name for name in NAMES if matches is None or matches(name)]


# ---- filters


@pytest.mark.parametrize(("text", "names"), [
    ("", NAMES), ("ORD", ["orders", "orders.eu"]), ("orders.eu", ["orders.eu"]), ("quotes", ["Quotes", "quotes-1m"]),
    ("^orders$", ["orders"]), ("s(-|\\.)", ["orders.eu", "quotes-1m"]), ("^__", ["__offsets"]),
    (".*QUOTES.*", ["Quotes", "quotes-1m"]), ("^[^_]*$", NAMES[:4]), ("x|eu", ["orders.eu"]), (".*", NAMES),
])  # fmt: skip
def test_a_filter_is_a_part_of_a_name_or_an_expression(text: str, names: list[str]) -> None:
    assert kept(text) == names


@pytest.mark.parametrize(
    "text", ["((", "(a+)+b", "(?=a)b", "a**", "(a|b|ab)*c", ".*a.*b.*c.*d.*", "\\1(a)", "[", "a\\"]
)
def test_a_filter_that_is_none_says_why(text: str) -> None:
    matches, problem = filter_of(text, FilterTime())
    assert matches is None
    assert problem
    assert ".*(?:" not in problem  # not what was put around it


@given(some.text(alphabet="ab.*+?()|[]{}^$\\,1", max_size=12), some.text(alphabet="ab", max_size=2_000))
def test_no_filter_holds_anybody_up(text: str, name: str) -> None:
    matches, _ = filter_of(text, FilterTime())
    if matches is None:
        return
    began = thread_time()
    try:
        for _ in range(3):
            matches(name)
    except Problem as problem:
        assert problem.code == "VALIDATION"  # noqa: PT017 - it may go either way
    assert thread_time() - began < FILTER_S + 2


def test_a_look_asks_the_same_a_while_later() -> None:
    before = page_request_of(_page("/topics"), {}, "filter=^a.*b", ANNA, is_open=True)
    later = again(before, FilterTime())
    assert later.matches is not before.matches
    assert later.now_us >= before.now_us
    assert later.query == before.query
    assert again(page_request_of(_page("/topics"), {}, "filter=((", ANNA, is_open=True), FilterTime()).filter_problem


# ---- addresses


def test_an_address_is_of_one_page() -> None:
    addresses = Addresses([_page("/topics"), _page("/topics/{topic}"), _page("/groups/{group:path}")])
    _, found = addresses.find("/topics/a.b?x=1&x=2&y=", ANNA, is_open=False)
    assert (found.path, found.params, found.query) == ("/topics/a.b", {"topic": "a.b"}, {"x": "1", "y": ""})
    _, found = addresses.find("/groups/a%2Fb", ANNA, is_open=False)
    assert (found.path, found.params) == ("/groups/a%2Fb", {"group": "a/b"})
    for nowhere in ("", "/", "/topic", "/topics/", "/topics/a/b", "//topics", "/topics/../about"):
        with pytest.raises(Problem, match="does not exist"):
            addresses.find(nowhere, ANNA, is_open=False)


@given(some.text(min_size=1, max_size=20))
def test_what_varies_in_a_path_stays_in_its_place(text: str) -> None:
    try:
        made = address("/topics/{topic}/records", {"topic": text})
    except UnicodeEncodeError:
        return  # half a character, which no address can have
    assert made.count("/") == 3
    assert "?" not in made
    assert "#" not in made


@pytest.mark.parametrize("query", ["a" * 5_000, "&".join(f"a{number}=1" for number in range(40))])
def test_a_query_has_its_bounds(query: str) -> None:
    with pytest.raises(Problem, match="the query has more than"):
        page_request_of(_page("/topics"), {}, query, ANNA, is_open=True)


def test_every_page_with_a_table_has_it_as_csv_where_nothing_else_can_be() -> None:
    for page in PAGES:
        assert bool(page.csv) == bool(page.main)
        if page.csv:
            assert not page.csv.removesuffix(".csv").endswith("}"), page.csv


# ---- CSV


def table(*texts: str) -> Table:
    columns = (Column("name", "Name"), Column("size", "Size", "bytes", numeric=True))
    rows = [Row(text, (Cell(text), Cell("1 kB", 1_000))) for text in texts]
    return Table("t", columns, (*rows, Row("?", (Cell("?"), UNKNOWN))), total=len(rows) + 1, matched=len(rows) + 1)


def test_values_are_as_they_are_and_what_is_not_known_is_empty() -> None:
    rows = list(stdlib_csv.reader(StringIO(csv.encoded(table("quotes")).decode())))
    assert rows == [["Name", "Size (bytes)"], ["quotes", "1000"], ["?", ""]]


@given(some.text(max_size=20))
def test_no_text_becomes_a_formula_and_none_is_lost(text: str) -> None:
    if "\r" in text or "\n" in text or "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        return
    cell = next(stdlib_csv.reader(StringIO(csv.encoded(table(text)).decode().split("\r\n")[1])))[0]
    assert cell in (text, f"'{text}")
    assert not cell.startswith(("=", "+", "-", "@", "\t"))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a", "\t=1", "  =1", "\r=1", "＝1"])
def test_what_looks_like_a_formula_is_marked_as_text(text: str) -> None:
    assert csv.safe(text) == f"'{text}"


def test_those_who_share_their_time_are_given_more_as_it_goes_by() -> None:
    shared = FilterTime()
    shared.left_s = -0.01  # used up by somebody
    shared.fill(100.0)
    assert shared.left_s == FILTER_S
    matches, _ = filter_of("^a.*c", shared)
    assert matches is not None
    assert matches("abc")
    shared.left_s = -0.01
    with pytest.raises(Problem, match="too long"):
        matches("abc")
    shared.fill(100.5)
    assert shared.left_s == pytest.approx(FILTER_S / 2 - 0.01)
    assert matches("abc")
    plain, _ = filter_of("abc", shared)
    shared.left_s = -1
    assert plain is not None
    assert plain("abc"), "a text takes no time worth counting"
