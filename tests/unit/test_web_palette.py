"""The command palette: what a query finds, in which order, and what a role does not see."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_gateway.http.auth import ROLES
from comet_web.page_request import ADMIN, OPERATOR, VIEWER, PageRequest
from comet_web.pages import PAGES
from comet_web.views import palette

NAMES = {
    "topic": ["orders", "eu.orders", "fjords", "quotes", "quotes.bars.1s"],
    "group": ["billing", "engine"],
    "broker": ["1", "2"],
}


def found(query: str, role: int = ADMIN, names: Any = None) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = palette.view(
        NAMES if names is None else names, PageRequest(query={"q": query}, role=role)
    )["entries"]
    return entries


def labels(query: str, role: int = ADMIN) -> list[str]:
    return [entry["label"] for entry in found(query, role)]


def test_the_beginning_comes_before_a_word_a_part_and_single_letters() -> None:
    assert labels("ord") == ["orders", "eu.orders", "fjords"]
    assert labels("qb1") == ["quotes.bars.1s"]
    assert labels("QUOTES")[:3] == ["Quotes", "quotes", "quotes.bars.1s"], "the page, then topics, the shortest first"


def test_an_action_is_found_by_its_words_and_what_follows_finds_its_object() -> None:
    (entry,) = found("prod eu")
    assert entry == {"label": "Produce to eu.orders", "hint": "Topic", "href": "/topics/eu.orders", "action": "produce"}
    assert found("reset off eng") == [
        {"label": "Reset offsets of engine", "hint": "Group", "href": "/groups/engine", "action": "reset-group"}
    ]
    assert found("drain broker 2")[0]["href"] == "/brokers/2"
    assert found("records of fj")[0]["href"] == "/topics/fjords/records"


def test_an_action_without_its_object_is_completed_and_then_lists_them() -> None:
    (entry,) = found("reset")
    assert (entry["complete"], entry["href"]) == ("Reset offsets of ", "")
    assert labels("Reset offsets of ") == ["Reset offsets of billing", "Reset offsets of engine"]


def test_a_name_is_one_segment_of_its_address() -> None:
    assert found("produce a", names={"topic": ["a/b c"]})[0]["href"] == "/topics/a%2Fb%20c"


def test_what_a_role_may_not_do_is_not_listed() -> None:
    assert {"Access", "Audit log", "Create topic", "Grant role"} <= set(labels("", ADMIN))
    assert not {"Access", "Audit log", "Grant role"} & set(labels("", OPERATOR))
    assert "Create topic" in labels("", OPERATOR)
    assert "Create topic" not in labels("", VIEWER)
    assert labels("delete topic orders", OPERATOR) == []
    assert labels("produce orders", VIEWER) == []
    assert labels("records of orders", VIEWER) == ["Records of orders", "Records of eu.orders"]


def test_an_answer_is_bounded_and_says_so() -> None:
    many = palette.view({"topic": [f"t{number}" for number in range(1_000)]}, PageRequest(query={"q": "t"}))
    assert len(many["entries"]) == palette.ENTRIES_MAX
    assert many["more"] is True
    assert palette.view(NAMES, PageRequest(query={"q": "engine"}))["more"] is False
    assert len(labels("produce")) <= palette.OF_ACTION_MAX
    assert len(found("produce t", names={"topic": [f"t{number}" for number in range(1_000)]})) == palette.OF_ACTION_MAX


@given(st.text(max_size=200), st.text(max_size=40))
def test_any_query_of_any_name_has_an_answer(query: str, name: str) -> None:
    for entry in found(query, names={"topic": [name], "group": [name]}):
        assert entry["label"]
        assert entry["href"].startswith("/") or entry["complete"]


@pytest.mark.parametrize("action", palette.ACTIONS, ids=lambda action: action.label)
def test_every_action_leads_to_a_page_that_its_role_may_see(action: palette.PaletteAction) -> None:
    folder = {"topic": "/topics/{topic}", "group": "/groups/{group}", "broker": "/brokers/{broker}"}
    path = action.href or "/".join(filter(None, [folder[action.of], action.part]))
    (page,) = [page for page in PAGES if page.path == path]
    assert page.role <= action.role
    folder_of_page = files("comet_web") / "templates"
    shown = (folder_of_page / page.template).read_text() + (folder_of_page / "topic_base.html").read_text()
    assert not action.button or f'ui.button("{action.button}"' in shown
    assert ("GET", "/palette") in ROLES
