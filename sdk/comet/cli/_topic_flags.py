"""A flag for every topic setting, made from the table: `--retention-ms 7d`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, ParamSpec

import typer

from comet.cli._values import parse_settings
from comet.errors import InvalidArgument
from comet.settings.topic import TOPIC_SETTINGS, TopicSetting

P = ParamSpec("P")
_METAVAR: Final = {"ms": "TIME", "bytes": "SIZE"}
_PANEL: Final = "Settings"


def with_setting_flags(*, defaults: bool) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Gives a command a flag for every topic setting, in place of its last parameter, `**flags`. `defaults`: the help
    shows the built-in ones."""

    def decorated(command: Callable[P, None]) -> Callable[P, None]:
        signature = inspect.signature(command, eval_str=True)
        *own, flags = signature.parameters.values()
        assert flags.kind is inspect.Parameter.VAR_KEYWORD
        made = [_parameter(row, defaults) for row in TOPIC_SETTINGS.values()]
        # Typer reads the signature, and the annotations beside it.
        command.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in (*own, *made)}
        return command

    return decorated


def _parameter(row: TopicSetting, defaults: bool) -> inspect.Parameter:
    about = row.about + (f" Built-in default: {row.shown_default}." if defaults else "")
    option = typer.Option(
        f"--{row.name.replace('_', '-')}",
        metavar="|".join(row.words) or _METAVAR.get(row.unit, "N"),
        help=about,
        rich_help_panel=_PANEL,
        show_default=False,
    )
    kind = Annotated[str | None, option]
    return inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def given_settings(flags: Mapping[str, str | None], pairs: list[str] | None) -> dict[str, Any]:
    """The settings given as flags and as `--set NAME=VALUE`. Raises InvalidArgument."""
    settings = parse_settings(pairs or [])
    for name, text in flags.items():
        if text is None:
            continue
        if name in settings:
            raise InvalidArgument(f"{name} is given twice")
        settings[name] = TOPIC_SETTINGS[name].parse(text)
    return settings


def markdown() -> str:
    """The table of docs/cli.md."""
    lines = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, row in TOPIC_SETTINGS.items():
        lines.append(f"| `{name}` | {row.shown_default} | {row.bounds} | {row.about} |")
    return "\n".join(lines)
