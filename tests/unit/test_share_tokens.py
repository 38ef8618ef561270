"""Tokens of locks: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.errors import InvalidArgument
from comet.share.tokens import Token

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,248}", fullmatch=True)
TOKENS = st.builds(
    Token,
    group=NAMES,
    topic=NAMES,
    topic_id=st.binary(min_size=16, max_size=16),
    partition=st.integers(0, 2**32 - 1),
    lock=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**63 - 1),
)
ONE = Token("work", "quotes", bytes(range(16)), 3, 0x0123456789ABCDEF, 42)
URL_SAFE = set(string.ascii_letters + string.digits + "-_")


@given(TOKENS)
def test_what_goes_in_comes_out(token: Token) -> None:
    text = token.text()
    assert Token.parse(text) == token
    assert set(text) <= URL_SAFE


def test_a_token_is_what_it_was() -> None:
    """Tokens that are out there have to be read by the next version."""
    text = "ARU7EMTvzauJZ0UjAQABAgMEBQYHCAkKCwwNDg8DAAAAKgAAAAAAAAAEd29ya3F1b3Rlcw"
    assert ONE.text() == text
    assert Token.parse(text) == ONE


@given(TOKENS, st.data())
def test_one_wrong_letter_spoils_it(token: Token, data: st.DataObject) -> None:
    text = token.text()
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from(sorted(URL_SAFE - {text[at]})))
    with pytest.raises(InvalidArgument):
        Token.parse(text[:at] + letter + text[at + 1 :])


@given(st.one_of(st.text(max_size=200), st.text(alphabet=sorted(URL_SAFE), max_size=200)))
def test_whatever_else_comes_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Token.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ONE.text()[:-1],
        ONE.text() + "A",
        ONE.text() + "=",
        " " + ONE.text(),
        ONE.text() + "\n",
        "é" * 80,
        "A" * 5000,
    ],
)
def test_what_is_nearly_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Token.parse(text)
