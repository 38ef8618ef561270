"""Who may search while others do."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.http.auth import UNRESTRICTED, Principal, Role
from comet_gateway.http.problems import Problem
from comet_gateway.routes.redrive_answer import SettlingSlots
from comet_gateway.search.slots import Slots, share_key

SOURCES: Any = SimpleNamespace(config=GatewayConfig(limits=Limits(searches_max=4, redrives_max=2)))


def test_one_leaves_room_for_others() -> None:
    slots = Slots(SOURCES)
    with ExitStack() as anna:
        for _ in range(3):
            anna.enter_context(slots.take("anna"))
        with pytest.raises(Problem, match="3 searches and exports are under way for anna"):
            slots.check("anna")
        with slots.take("berta"), pytest.raises(Problem, match="4 searches and exports are under way, the limit"):
            slots.check("carla")
    assert (slots.taken, slots.refused) == (0, 2)
    with slots.take("anna"):
        assert slots.taken == 1


def test_where_nobody_is_known_all_slots_are_for_everybody() -> None:
    slots = Slots(SOURCES)
    with ExitStack() as all_:
        for _ in range(4):
            all_.enter_context(slots.take(share_key(UNRESTRICTED)))
        with pytest.raises(Problem, match="4 searches"):
            slots.check(share_key(UNRESTRICTED))
    assert share_key(Principal("anna", Role.VIEWER)) == "anna"


def test_settling_has_slots_of_its_own() -> None:
    slots = SettlingSlots(SOURCES)
    with (
        slots.take("anna"),
        slots.take("berta"),
        pytest.raises(Problem, match="2 requests redrive or discard dead letters"),
    ):
        slots.check("carla")
