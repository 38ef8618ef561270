"""Sessions: a cookie is taken as it was written, by whoever has the key, while its time lasts, and in no other case."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from comet_gateway.http import sessions
from comet_gateway.http.sessions import (
    IDLE_S,
    LIFE_S,
    RENEW_S,
    SKEW_S,
    BrowserSession,
    Visit,
    key_of,
    read,
    written,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", fullmatch=True)
DIGESTS = st.binary(min_size=32, max_size=32)
TIMES = st.integers(1_000_000_000, 5_000_000_000)
SESSIONS = st.builds(
    lambda name, began, after, id_: BrowserSession(name, began, began + after, id_),
    NAMES, TIMES, st.integers(0, LIFE_S - 1), st.binary(min_size=16, max_size=16),
)  # fmt: skip
ROLES = st.sampled_from(["viewer", "operator", "admin"])


def taken(text: str, key: bytes, now_s: float, name: str) -> Visit | None:
    return read(text, lambda asked: key if asked == name else None, now_s)


@given(SESSIONS, DIGESTS, ROLES)
def test_what_was_written_is_read(session: BrowserSession, digest: bytes, role: str) -> None:
    key = key_of(digest, session.name, role)
    text = written(session, key)
    assert len(text) <= sessions.COOKIE_CHARS_MAX
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
    assert taken(text, key, session.seen_s, session.name) == Visit(session, key)
    assert taken(text, key, session.seen_s, session.name + "x") is None


@given(SESSIONS, DIGESTS, DIGESTS, ROLES, ROLES, NAMES)
def test_another_row_opens_nothing(
    session: BrowserSession, digest: bytes, other: bytes, role: str, other_role: str, other_name: str
) -> None:
    assume((digest, role, session.name) != (other, other_role, other_name))
    text = written(session, key_of(digest, session.name, role))
    assert taken(text, key_of(other, other_name, other_role), session.seen_s, session.name) is None


@given(SESSIONS, DIGESTS, st.data())
def test_one_that_was_changed_anywhere_opens_nothing(
    session: BrowserSession, digest: bytes, data: st.DataObject
) -> None:
    key = key_of(digest, session.name, "admin")
    text = written(session, key)
    at = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(st.text("ABCabc019-_.=+/ ~", max_size=3))
    changed = text[:at] + put + text[at + data.draw(st.integers(0, 2)) :]
    assume(changed != text)
    assert taken(changed, key, session.seen_s, session.name) is None


@given(SESSIONS, DIGESTS, st.data())
def test_one_that_was_cut_opens_nothing(session: BrowserSession, digest: bytes, data: st.DataObject) -> None:
    key = key_of(digest, session.name, "viewer")
    text = written(session, key)
    length = data.draw(st.integers(0, len(text) - 1))
    assert taken(text[:length], key, session.seen_s, session.name) is None


@given(st.text(max_size=2_000) | st.binary(max_size=600).map(lambda raw: raw.decode("latin-1")), DIGESTS)
def test_nonsense_opens_nothing_and_harms_nobody(text: str, digest: bytes) -> None:
    assert read(text, lambda name: key_of(digest, name, "admin"), 1e9) is None


@given(SESSIONS, DIGESTS, st.integers(-2 * LIFE_S, 2 * LIFE_S))
def test_it_lasts_as_long_as_it_says(session: BrowserSession, digest: bytes, after_s: int) -> None:
    key = key_of(digest, session.name, "viewer")
    now_s = session.seen_s + after_s
    lasts = -SKEW_S <= after_s < IDLE_S and now_s < session.began_s + LIFE_S and now_s >= session.began_s - SKEW_S
    assert (taken(written(session, key), key, now_s, session.name) is not None) == lasts


@given(SESSIONS, DIGESTS, st.integers(0, IDLE_S - 1))
def test_being_seen_moves_the_idle_end_and_never_the_other(
    session: BrowserSession, digest: bytes, after_s: int
) -> None:
    again = sessions.renewed(session, session.seen_s + after_s)
    assert (again is None) == (after_s < RENEW_S)
    if again is not None:
        assert again == replace(session, seen_s=session.seen_s + after_s)
        assert again.ends_s == session.ends_s
        key = key_of(digest, session.name, "viewer")
        assert Visit(again, key).csrf == Visit(session, key).csrf  # pages that are open go on


@given(SESSIONS, SESSIONS, DIGESTS, DIGESTS)
def test_a_page_acts_for_its_own_session_alone(
    one: BrowserSession, two: BrowserSession, digest: bytes, other: bytes
) -> None:
    mine = Visit(one, key_of(digest, one.name, "admin"))
    assert mine.shows(mine.csrf)
    assert not mine.shows("") and not mine.shows("é") and not mine.shows(written(one, mine.key).split(".")[2])
    assume(one.id != two.id or digest != other or one.name != two.name)
    assert not mine.shows(Visit(two, key_of(other, two.name, "admin")).csrf)


@given(NAMES, TIMES)
def test_each_login_is_another_session(name: str, now_s: int) -> None:
    one, two = sessions.begun(name, now_s), sessions.begun(name, now_s)
    assert one.id != two.id and (one.began_s, one.seen_s) == (now_s, now_s)


def test_the_cookie_of_a_session_is_the_only_one_of_its_name() -> None:
    for tls, name in ((False, "comet_session"), (True, "__Host-comet_session")):
        assert sessions.cookie({b"cookie": f"a=b; {name}=v1.x.y; c".encode()}, tls=tls) == "v1.x.y"
        assert sessions.cookie({b"cookie": f"{name}=one; {name}=two".encode()}, tls=tls) is None
        assert sessions.cookie({b"cookie": b"other=one"}, tls=tls) is None
        assert sessions.cookie({}, tls=tls) is None
    assert sessions.cookie({b"cookie": b"comet_session=v1.x.y"}, tls=True) is None


def test_what_browsers_are_told_of_it() -> None:
    visit = Visit(BrowserSession("ann", 1_000, 1_000, bytes(16)), key_of(bytes(32), "ann", "admin"))
    plain, secure = (sessions.session_cookie(visit, 1_000, tls=tls).decode() for tls in (False, True))
    attributes = "; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"
    assert plain.startswith("comet_session=v1.") and plain.endswith(attributes)
    assert secure.startswith("__Host-comet_session=v1.") and secure.endswith(attributes + "; Secure")
    assert "Max-Age=10;" in sessions.session_cookie(visit, 1_000 + LIFE_S - 10, tls=False).decode()
    assert sessions.expired_cookie(tls=False) == b"comet_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
