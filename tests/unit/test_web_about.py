"""The page About: what is set, what is installed, who one is."""

from __future__ import annotations

from comet_web.facts import About, Login, Package, Setting
from comet_web.page_request import ADMIN, VIEWER, PageRequest
from comet_web.views.about import view

ABOUT = About(
    time_us=100_000_000,
    version="1.2",
    python="CPython 3.11",
    machine="Linux",
    started_us=40_000_000,
    bootstrap="b1:9092",
    packages=(Package("grpcio", "1.85", "Apache-2.0", "the protocol"),),
    settings=(
        Setting("host", "127.0.0.1", "127.0.0.1", "default", "The address."),
        Setting("page_max", "10", "1000", "set", "Entries of a list."),
        Setting("tls_key", "", "", "default", "The key."),
    ),
    logins=(Login("zoe", 1), Login("ann", 3)),
)


def test_what_was_changed_stands_first() -> None:
    document = view(ABOUT, PageRequest(path="/about"))
    settings = document.tables["settings"]
    assert [row.key for row in settings.rows] == ["page_max", "host", "tls_key"]
    assert [cell.text for cell in settings.rows[0].cells] == ["page_max", "10", "1000", "set", "Entries of a list."]
    assert settings.rows[2].cells[1].text == "not set"
    assert document.fields["started"].text == "1 min ago"


def test_the_filter_looks_at_everything_that_is_said_of_a_setting() -> None:
    document = view(ABOUT, PageRequest(path="/about", matches=lambda text: "Entries" in text))
    assert [row.key for row in document.tables["settings"].rows] == ["page_max"]
    assert [row.key for row in document.tables["packages"].rows] == ["grpcio"]


def test_whoever_looks_is_told_who_they_are() -> None:
    fields = view(ABOUT, PageRequest(path="/about", principal="zoe", role=VIEWER, open=False)).fields
    assert (fields["principal"].text, fields["role"].text, fields["may"].text) == ("zoe", "viewer", "view everything")
    assert view(ABOUT, PageRequest(path="/about")).fields["principal"].text == "anonymous"


def test_who_has_tokens_is_for_admins() -> None:
    tables = view(ABOUT, PageRequest(path="/about", principal="ann", role=ADMIN, open=False)).tables
    assert [(row.key, row.cells[1].text) for row in tables["logins"].rows] == [("ann", "admin"), ("zoe", "viewer")]
    assert "logins" not in view(ABOUT, PageRequest(path="/about", principal="zoe", role=VIEWER, open=False)).tables
    assert "logins" not in view(ABOUT, PageRequest(path="/about")).tables
