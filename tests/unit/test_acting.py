"""The user of a gateway's call, in the metadata of the call."""

from __future__ import annotations

import pytest

from comet.errors import InvalidArgument
from comet.wire.acting import BYTES_MAX, HEADER, ActingFor, acting_for


@pytest.mark.parametrize("user", [ActingFor("user:ann"), ActingFor("user:björn@example.com", ("role:a", "role:ü"))])
def test_what_is_written_is_read_back(user: ActingFor) -> None:
    assert acting_for([("authorization", "Bearer x"), user.metadata()]) == user


def test_without_it_a_call_is_the_callers_own() -> None:
    assert acting_for(None) is None and acting_for([("authorization", "Bearer x")]) is None


@pytest.mark.parametrize("value", [b"\xff", "user:ann", b"u" * (BYTES_MAX + 1)])
def test_what_is_none_is_refused(value: str | bytes) -> None:
    with pytest.raises(InvalidArgument):
        acting_for([(HEADER, value)])


def test_two_users_of_one_call_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="one comet-acting-for-bin at most"):
        acting_for([ActingFor("user:ann").metadata(), ActingFor("user:bob").metadata()])


def test_a_user_with_too_many_roles_for_a_call_is_refused() -> None:
    user = ActingFor("user:ann", tuple(f"role:{'r' * 100}{number}" for number in range(50)))
    with pytest.raises(InvalidArgument, match="the roles of user:ann take"):
        user.metadata()
