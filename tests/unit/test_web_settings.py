"""What forms of the dashboard take for settings and names of topics is what the SDK and the brokers take."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import pytest

import comet
from comet.types import TOPIC_NAME, Consistency, Flush, TopicConfig
from comet_web import render

SCRIPT = render.static()["js/settings.js"].decode()
found = re.search(r"SETTINGS = ({.*?\n});", SCRIPT, re.DOTALL)
assert found is not None
SETTINGS: dict[str, dict[str, Any]] = json.loads(found[1])
NUMBERS = sorted(name for name, rule in SETTINGS.items() if "options" not in rule)


def taken(name: str, value: object) -> bool:
    try:
        TopicConfig(**{name: value})  # type: ignore[arg-type] # wrong on purpose
    except comet.InvalidArgument:
        return False
    return True


def test_every_setting_has_its_rule_and_its_default() -> None:
    defaults = {name: getattr(value, "value", value) for name, value in asdict(TopicConfig()).items()}
    assert {name: rule["default"] for name, rule in SETTINGS.items()} == defaults


@pytest.mark.parametrize("name", NUMBERS)
def test_bounds_are_those_of_the_broker(name: str) -> None:
    low, high = SETTINGS[name]["low"], SETTINGS[name]["high"]
    assert [taken(name, value) for value in (low - 1, low, high, high + 1)] == [False, True, True, False]
    assert SETTINGS[name].get("none", False) == (low == -1)


def test_choices_are_those_of_the_broker() -> None:
    assert SETTINGS["flush"]["options"] == [one.value for one in Flush]
    assert SETTINGS["consistency"]["options"] == [one.value for one in Consistency]


def test_names_are_those_of_the_broker() -> None:
    pattern = re.search(r"NAME = /\^(.*)\$/;", SCRIPT)
    assert pattern is not None
    assert pattern[1] == TOPIC_NAME.pattern
