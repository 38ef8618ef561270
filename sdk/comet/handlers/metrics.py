"""The counters of an app's handlers as metrics, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_COUNTERS: Final = {
    "handled": "Calls that succeeded.",
    "failed": "Records given up after an error.",
    "retried": "Calls that were repeated after an error.",
    "delayed": "Records written to a retry topic.",
    "dead_lettered": "Records written to a dead-letter topic.",
    "skipped": "Malformed records that were skipped.",
}


def prometheus(statistics: Iterable[Mapping[str, Any]], *, up: bool) -> str:
    """The metrics of all handlers.

    >>> one = {"handler": "app.show", "topic": "quotes", "handled": 3, "failed": 0, "retried": 0, "dead_lettered": 0}
    >>> text = prometheus([one | {"delayed": 0, "skipped": 0, "blocked_ms": 1.5, "ready": True}], up=True)
    >>> 'comet_app_handled_total{handler="app.show",topic="quotes"} 3' in text.splitlines()
    True
    """
    handlers = list(statistics)
    lines = _family("comet_app_up", "gauge", "Whether the app runs and all its handlers read.", [("", int(up))])
    for name, text in _COUNTERS.items():
        values = [(_labels(one), one[name]) for one in handlers]
        lines += _family(f"comet_app_{name}_total", "counter", text, values)
    blocked = [(_labels(one), one["blocked_ms"] / 1000) for one in handlers]
    lines += _family("comet_app_blocked_seconds", "gauge", "The longest time that it blocked the event loop.", blocked)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, values: Iterable[tuple[str, float]]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(f"{name}{labels} {value}" for labels, value in values)]


def _labels(one: Mapping[str, Any]) -> str:
    return f'{{handler="{_escaped(one["handler"])}",topic="{_escaped(one["topic"])}"}}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
