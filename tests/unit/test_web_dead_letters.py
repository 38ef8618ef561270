"""What the pages of dead letters say."""

from __future__ import annotations

from typing import Any

from comet_web import render
from comet_web.components.navigation import NAV
from comet_web.facts import DeadLetter, DeadLetterCause, DeadLetters, DeadLetterTopic, DeadLetterTopicDetail
from comet_web.page_request import VIEWER, PageRequest
from comet_web.pages import PAGES
from comet_web.views import dead_letter_topic, dead_letters

NOW_US = 1_800_000_000_000_000
MARKUP = '<img src=x onerror="alert(1)">'


def cause(text: str = "late", **more: Any) -> DeadLetterCause:
    return DeadLetterCause(**{
        "topic": "failed", "group": "work", "cause": text, "pending": 2, "redriven": 1, "discarded": 0,
        "newest_us": NOW_US - 5_000_000, "sources": ("orders",), **more,
    })  # fmt: skip


def topic(**more: Any) -> DeadLetterTopic:
    return DeadLetterTopic(**{"name": "failed", "pending": 2, "redriven": 1, "discarded": 0, **more})


def found(*causes: DeadLetterCause, **more: Any) -> DeadLetters:
    return DeadLetters(**{
        "time_us": NOW_US, "topics": (topic(),), "causes": causes, "causes_total": len(causes), "scanned": 3, "of": 3,
        **more,
    })  # fmt: skip


def letter(offset: int = 0, **more: Any) -> DeadLetter:
    return DeadLetter(**{
        "partition": 0, "offset": offset, "time_us": NOW_US - offset, "state": "pending", "topic": "orders",
        "source_partition": 1, "source_offset": 17, "group": "work", "attempts": 5, "reason": "order 17 is late",
        "cause": "order # is late", "times": 0, "key": "k", "size": 9, **more,
    })  # fmt: skip


def detail(*some: DeadLetter, **more: Any) -> DeadLetterTopicDetail:
    return DeadLetterTopicDetail(**{
        "time_us": NOW_US, "topic": topic(), "causes": (cause(), cause("no key", group="audit")), "causes_total": 2,
        "dead_letters": some, "matched": len(some), **more,
    })  # fmt: skip


def test_most_pending_come_first_and_lead_to_their_letters() -> None:
    document = dead_letters.view(found(cause("rare", pending=1), cause("often & more", pending=9)), PageRequest())
    rows = document.tables["causes"].rows
    assert [row.cells[0].text for row in rows] == ["often & more", "rare"]
    assert rows[0].href == "/dead-letters/failed?group=work&cause=often+%26+more"
    assert (document.fields["pending"].text, document.fields["pending"].tone) == ("2", "warn")


def test_what_is_settled_as_a_whole_leads_to_all_states() -> None:
    (row,) = dead_letters.view(found(cause(pending=0)), PageRequest()).tables["causes"].rows
    assert row.href.endswith("&state=all")


def test_the_same_reason_of_two_groups_is_two_rows() -> None:
    rows = (
        dead_letters.view(found(cause(), cause(group="audit"), cause(topic="other")), PageRequest())
        .tables["causes"]
        .rows
    )
    assert len({row.key for row in rows}) == 3


def test_hostile_reasons_and_groups_stay_text_and_one_part_of_an_address() -> None:
    (row,) = dead_letters.view(found(cause(MARKUP, group="a/../b?<b>")), PageRequest()).tables["causes"].rows
    assert row.cells[0].text == MARKUP
    assert "<" not in row.href and row.href.count("?") == 1
    assert row.cells[1].href == "/groups/a%2F..%2Fb%3F%3Cb%3E"


def test_letters_without_a_group_or_a_reason_say_so() -> None:
    (row,) = dead_letters.view(found(cause("", group="")), PageRequest()).tables["causes"].rows
    assert (row.cells[0].text, row.cells[1].text) == ("no reason given", "none")


def test_it_says_how_far_it_has_looked() -> None:
    partly = found(
        cause(), scanned=2, topics=(topic(records=1000, scanned=250, complete=False), topic(name="old", older=7)), of=5
    )
    assert dead_letters.view(partly, PageRequest()).fields["progress"].text == (
        "2 of 5 topics scanned so far · failed: 250 of 1,000 records scanned so far · old: 7 older records not scanned"
    )
    assert dead_letters.view(found(), PageRequest()).fields["progress"].text == ""


def test_letters_with_what_they_are_and_what_became_of_them() -> None:
    table = dead_letter_topic.view(
        detail(letter(3), letter(1, state="redriven", to="orders/1/99", by="me")), PageRequest("/dead-letters/failed")
    ).tables["dead_letters"]
    assert [row.key for row in table.rows] == ["0/1", "0/3"], "newest event first"
    cells = dict(zip((column.key for column in table.columns), table.rows[0].cells, strict=True))
    assert (cells["state"].text, cells["state"].title) == ("redriven", "by me")
    assert cells["source"].href == "/topics/orders/records?partition=1&offset=17"
    assert (cells["became"].text, cells["became"].href) == (
        "orders 1 / 99",
        "/topics/orders/records?partition=1&offset=99",
    )
    assert table.rows[0].href == "/topics/failed/records?partition=0&offset=1"


def test_where_a_note_says_that_it_went_is_no_address_unless_it_is_one() -> None:
    for to in ("javascript:alert(1)", "a/b/c", "orders/1", "orders/1/"):
        (row,) = dead_letter_topic.view(detail(letter(to=to)), PageRequest()).tables["dead_letters"].rows
        assert row.cells[-1].href == "" and row.cells[-1].text == to


def test_a_reason_shows_its_letters_alone_and_once_more_shows_all() -> None:
    asked = PageRequest("/dead-letters/failed", query={"group": "work", "cause": "late", "state": "all"})
    first, second = dead_letter_topic.view(detail(letter()), asked).tables["causes"].rows
    assert (first.cells[0].tone, first.href) == ("info", "/dead-letters/failed?state=all")
    assert second.href == "/dead-letters/failed?state=all&group=audit&cause=no+key"


def test_the_buttons_are_about_what_is_pending_of_what_is_shown() -> None:
    assert dead_letter_topic.view(detail(), PageRequest()).fields["meant"].value == 4
    assert dead_letter_topic.view(detail(), PageRequest(query={"group": "audit"})).fields["meant"].value == 2


def test_pending_is_what_is_asked_for_unless_it_is_said() -> None:
    assert [
        dead_letter_topic.state_of(PageRequest(query={"state": text})) for text in ("", "all", "nonsense", "redriven")
    ] == [
        "pending",
        "all",
        "pending",
        "redriven",
    ]


def test_more_letters_than_a_page_is_made_of_are_told() -> None:
    document = dead_letter_topic.view(detail(letter(), matched=12_345), PageRequest())
    assert document.fields["more"].text == "Newest 1 of 12,345"


def html(name: str, shown: Any, asked: PageRequest) -> str:
    page = next(page for page in PAGES if page.name == name)
    return render.page(
        page.template, doc=page.view(shown, asked), page=page, request=asked, root="", static="/static/x",
        cluster_name="demo", nav=NAV, csrf="", csv="/x.csv", acts="{}",
    )  # fmt: skip


def test_whatever_a_letter_says_is_no_markup() -> None:
    hostile = letter(1, reason=MARKUP, group=MARKUP, key=MARKUP, topic=MARKUP, to=MARKUP, by=MARKUP, state="redriven")
    text = html(
        "dead_letter_topic", detail(hostile, causes=(cause(MARKUP, group=MARKUP),)), PageRequest("/dead-letters/failed")
    )
    text += html("dead_letters", found(cause(MARKUP, group=MARKUP, topic=MARKUP, sources=(MARKUP,))), PageRequest())
    assert MARKUP not in text and "&lt;img src=x" in text


def test_who_may_only_look_sees_all_and_why_the_buttons_do_nothing() -> None:
    text = html("dead_letter_topic", detail(letter()), PageRequest("/dead-letters/failed", role=VIEWER))
    assert "order 17 is late" in text
    for name in ("redrive-all", "discard-all", "redrive-chosen", "discard-chosen", "edit-letter"):
        button = text[text.index(f'data-action="{name}"') :].split(">")[0]
        assert 'data-refusal="needs the role operator; you are viewer"' in button


def test_where_there_are_none_the_page_says_how_a_group_gets_some() -> None:
    text = html("dead_letters", found(topics=()), PageRequest("/dead-letters"))
    assert "No dead letters" in text
    assert "comet topic create orders-failed" in text
    assert "dead_letter=&#34;orders-failed&#34;" in text or 'dead_letter="orders-failed"' in text
    full = html("dead_letters", found(cause()), PageRequest())
    assert "<div data-nothing>" in text and "<div data-nothing hidden>" in full
