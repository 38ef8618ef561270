"""For the documentation site: examples in docstrings (`>>>`) are shown as code. An extension of griffe's."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Each example, from its first `>>>` to the next empty line, in a fence."""
    lines: list[str] = []
    within = False
    for line in text.splitlines():
        if not within and line.lstrip().startswith(">>>"):
            within = True
            lines += ["", "```pycon"]
        elif within and not line.strip():
            within = False
            lines.append("```")
        lines.append(line.strip() if within and line.lstrip().startswith(">>>") else line)
    return "\n".join([*lines, "```"] if within else lines)
