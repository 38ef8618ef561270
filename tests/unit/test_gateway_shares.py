"""Shares: each principal gets its share, and administrators the last ones."""

from __future__ import annotations

from collections import Counter

import pytest

from comet_gateway.config import Limits
from comet_gateway.http.auth import UNRESTRICTED, Principal, Role
from comet_gateway.http.problems import Problem
from comet_gateway.http.shares import Holder, Shares, holder_of

ANN = Holder("ann", "10.0.0.1", is_admin=False)
BEN = Holder("ben", "10.0.0.1", is_admin=False)
ADA = Holder("ada", "10.0.0.1", is_admin=True)


def shares(turned_away: Counter[str] | None = None, **limits: int) -> Shares:
    found = turned_away if turned_away is not None else Counter()
    return Shares("replays", "replays_max", Limits(**{"replays_max": 20, **limits}), found)


def taken(shared: Shares, holder: Holder) -> Problem:
    """Takes places until one is refused."""
    for _ in range(1_000):
        try:
            shared.take(holder)
        except Problem as refused:
            return refused
    raise AssertionError("no place was refused")


def test_a_principal_gets_its_share_and_is_told_which_limit_that_is() -> None:
    turned_away: Counter[str] = Counter()
    shared = shares(turned_away)
    refused = taken(shared, ANN)
    assert (shared.taken, refused.code, refused.kind.status) == (10, "TOO_MANY_REQUESTS", 429)
    assert refused.detail == "'ann' has 10 of 20 replays, its share"
    assert refused.more == {"limit": "principal_share_percent", "share": 10}
    assert "principal_share_percent" in refused.hint
    assert turned_away == {"principal_share_percent": 1}
    shared.give_back(ANN)
    shared.take(ANN)


def test_the_last_places_are_for_administrators() -> None:
    shared = shares()
    taken(shared, ANN)
    refused = taken(shared, BEN)
    assert (shared.taken, refused.code) == (18, "OVERLOADED")
    assert refused.detail == "the last 2 of 20 replays are for administrators"
    refused = taken(shared, ADA)
    assert (shared.taken, refused.detail) == (20, "limit of 20 replays reached")
    assert refused.more == {"limit": "replays_max"}


@pytest.mark.parametrize(("most", "percent", "share"), [(1, 50, 1), (3, 50, 2), (20, 100, 20), (20, 1, 1)])
def test_a_share_is_at_least_one_place(most: int, percent: int, share: int) -> None:
    shared = shares(replays_max=most, principal_share_percent=percent)
    taken(shared, ADA)
    assert shared.taken == share


def test_a_place_is_given_back_after_an_error() -> None:
    shared = shares()
    with pytest.raises(ValueError, match="a bug"), shared.held(ANN):
        raise ValueError("a bug")
    assert shared.taken == 0


def test_a_holder_is_the_token_or_without_tokens_the_address() -> None:
    scope = {"client": ("10.0.0.7", 1234), "comet.principal": Principal("ann", Role.VIEWER)}
    assert holder_of(scope) == Holder("ann", "10.0.0.7", is_admin=False)
    assert holder_of({**scope, "comet.principal": UNRESTRICTED}) == Holder("10.0.0.7", "10.0.0.7", is_admin=True)
