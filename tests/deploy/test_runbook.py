"""The runbook has what alerts lead to: a section for each, with commands that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from comet.cli._commands import COMMANDS, loaded_command
from tests.deploy.expressions import rules

RUNBOOK: Final = Path(__file__).parents[2] / "docs/runbook.md"
COMMAND: Final = re.compile(r"`comet ([^`]+)`")


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    alerts = {rule["alert"]: rule for rule in rules("alerts.yml")}
    assert re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE) == list(alerts)
    for name, rule in alerts.items():
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_every_section_says_how_to_look_and_what_to_do() -> None:
    for section in RUNBOOK.read_text().split("\n## ")[1:]:
        assert "**Look:**" in section and "**Do:**" in section, section.splitlines()[0]


def test_every_command_exists_with_its_options() -> None:
    found = COMMAND.findall(RUNBOOK.read_text())
    assert len(found) > 20
    for text in found:
        words = text.split()
        assert words[0] in COMMANDS, text
        command, options = loaded_command(words[0]), [word for word in words if word.startswith("--")]
        if hasattr(command, "commands") and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in command.commands, text
            command = command.commands[words[1]]
        assert not [option for option in options if option not in _options(command)], text


def _options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
