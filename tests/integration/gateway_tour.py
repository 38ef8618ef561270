"""The tour of docs/gateway/index.md: its commands, run one after the other in one shell, against a real `comet up`.

A block of `sh` is what a reader copies; a block of `text` right behind it is what that printed. What differs from run
to run (times, cursors, tokens, ids) is compared by its form only.

`python -m tests.integration.gateway_tour` writes into the document what is printed now, and into the pages beside it
the tables that are the code's: limits, settings, problems, close codes, roles.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Final, NamedTuple

from comet.admin.acts import ACTS, Act
from comet.processes.child import Child, started
from comet_gateway import settings
from comet_gateway.config import Limits
from comet_gateway.http import problems
from comet_gateway.http.auth import ROLES
from comet_gateway.push.close_codes import Close

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs/gateway"
DOCUMENT: Final = FOLDER / "index.md"
STEP: Final = re.compile(r"^```sh\n(.*?)^```\n\n?```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
MARK: Final = "--- the next step ---"
# What a reader sees in three seconds may take longer on a busy machine, and more does not come.
SUMMARY: Final = re.compile(r"\d+ records?, ")  # of `comet produce`, on stderr
WAITS: Final = {"--max-time 3": "--max-time 10", "timeout --signal INT 5": "timeout --signal INT 15"}
# What is different each time, and what stands for it.
CHANGING: Final = (
    (re.compile(r"c1\.[0-9a-f]{32}"), "c1.ID"),
    (re.compile(r'"token":"[^"]+"'), '"token":"TOKEN"'),
    (re.compile(r"\b1\d{15}\b"), "TIME_US"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{12}-[0-9a-f]+\b"), "REQUEST_ID"),
    (re.compile(r'"id":"[0-9a-f]{32}"'), '"id":"ID"'),
    (re.compile(r'"bytes":"\d+"'), '"bytes":"SIZE"'),
)


class Step(NamedTuple):
    """One block and what it is to print."""

    commands: str
    printed: str


class Up(NamedTuple):
    """A running `comet up`."""

    broker: str
    gateway: str


def steps(text: str) -> list[Step]:
    return [Step(*found.groups()) for found in STEP.finditer(text)]


@contextmanager
def up(*options: str, python: Path = Path(sys.executable)) -> Iterator[Up]:
    """`comet up` with nothing in it, on free ports."""
    words = ("up", "--ephemeral", "--port", "0", "--gateway-port", "0", "--json", *options)
    command = [str(python), "-m", "comet.cli", *words]
    with started(Child("comet up", command, piped=True)) as child:
        told = json.loads(child.line(60))
        yield Up(told["address"], told["gateway"])


def play(tour: list[Step], there: Up, folder: Path) -> list[str]:
    """What each step prints, with the addresses that the document has."""
    ours = {"localhost:8080": there.gateway.removeprefix("http://"), "localhost:9092": there.broker}
    script = "".join(f"{step.commands}\necho\necho '{MARK}'\n" for step in tour)
    for usual, actual in ours.items():
        script = script.replace(usual, actual)
    for shown, enough in WAITS.items():
        script = script.replace(shown, enough)
    # `python`, `python3` and `comet` are the ones that run this.
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environ = {**os.environ, "PATH": found, "COLUMNS": "100", "COMET_BOOTSTRAP": there.broker}
    (folder / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, timeout=250, env=environ, cwd=folder, check=True
    )
    said = done.stdout
    for usual, actual in ours.items():
        said = said.replace(actual, usual)
    assert not [line for line in done.stderr.splitlines() if not SUMMARY.match(line)], done.stderr
    return [part.strip("\n") + "\n" for part in said.split(MARK)[:-1]]


def tables() -> dict[tuple[str, str], list[tuple[str, ...]]]:
    """The rows of each table that is the code's, by its page and the heading above it."""
    told = [[cell.strip() for cell in line.strip("|").split("|")] for line in settings.markdown().splitlines()[2:]]
    limits = {f"`{field.name}`" for field in fields(Limits)}
    problem_rows = [(str(kind.status), f"`{code}`", kind.title) for code, kind in problems.KINDS.items()]
    return {
        ("running.md", "Limits"): [(name, default, about) for name, _, _, default, about in told if name in limits],
        ("running.md", "Other settings"): [
            (name, default, about) for name, _, _, default, about in told if name not in limits
        ],
        ("rest.md", "Problems"): sorted(problem_rows),
        ("streams.md", "Close codes"): [
            (str(close.value.code), "yes" if close.value.again else "no", close.value.reason) for close in Close
        ],
        ("rest.md", "Acts"): [acts_row(act) for act in ACTS.values()],
        ("running.md", "Roles"): [(method, f"`{path}`", role.name.lower()) for (method, path), role in ROLES.items()],
    }


def acts_row(act: Act) -> tuple[str, ...]:
    """An act of administration as the table shows it."""
    routes = "<br>".join(f"`{one.method} {one.path}`" for one in act.routes)
    method, command = (f"`Admin.{act.method}`" if act.method else "", f"`comet {act.command}`" if act.command else "")
    return (act.summary, routes or f"none: {act.missing}", act.role, method, command, "yes" if act.dry_run else "")


def with_tables(text: str, page: str) -> str:
    """The page with its tables as they are now."""
    for (named, heading), found in tables().items():
        if named != page:
            continue
        table = re.compile(rf"(^#+ {heading}\n.*?\n\|[^\n]*\n\|---[^\n]*\n)(?:\|[^\n]*\n)+", re.MULTILINE | re.DOTALL)
        body = "".join(f"| {' | '.join(cells)} |\n" for cells in found)
        text, count = table.subn(lambda it, body=body: it[1] + body, text, count=1)  # type: ignore[misc]
        assert count == 1, heading
    return text


def plain(printed: str) -> str:
    """Without what changes."""
    for pattern, name in CHANGING:
        printed = pattern.sub(name, printed)
    return printed


def main() -> None:
    import tempfile

    text = DOCUMENT.read_text()
    tour = steps(text)
    with up() as there, tempfile.TemporaryDirectory() as folder:
        printed = iter(play(tour, there, Path(folder)))
    written = STEP.sub(lambda found: f"```sh\n{found[1]}```\n\n```text\n{next(printed)}```\n", text)
    DOCUMENT.write_text(written)
    for page in FOLDER.glob("*.md"):
        page.write_text(with_tables(page.read_text(), page.name))


if __name__ == "__main__":
    main()
