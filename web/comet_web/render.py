"""Templates rendered to HTML, and the static files of pages. One environment per process.

Autoescape is always on and nothing is marked safe: keys, values, headers and topic names are untrusted.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

import jinja2

from comet_web.components import numbers, sparkline
from comet_web.document import DASH

CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


@cache
def environment() -> jinja2.Environment:
    """The environment with every template compiled. That takes a while, so it runs before the first request."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("comet_web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"spark_path": sparkline.path, "short_figure": _short_figure}
    for name in made.list_templates():
        made.get_template(name)
    return made


def _short_figure(value: float | None) -> str:
    return DASH if value is None else numbers.short(value)


def page(template: str, **context: Any) -> str:
    return environment().get_template(template).render(**context)


@cache
def static() -> dict[str, bytes]:
    """All static files, by path."""
    return dict(_files(files("comet_web") / "static", ""))


@cache
def version() -> str:
    """Hash of all static files. It is part of their addresses, so browsers may cache them for ever."""
    digest = hashlib.sha256()
    for path, body in sorted(static().items()):
        digest.update(f"{path}\0{len(body)}\0".encode() + body)
    return digest.hexdigest()[:12]


def _files(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _files(entry, f"{prefix}{entry.name}/")
        elif any(entry.name.endswith(suffix) for suffix in CONTENT_TYPES):
            found.append((f"{prefix}{entry.name}", entry.read_bytes()))
    return found
