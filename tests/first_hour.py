"""A newcomer's first hour, in an environment that has nothing of Comet: `python -m tests.first_hour [--without-demo]`.

    a clone ─► a venv, pip install . ─► README, "One minute" ─► the tutorial ─► mistakes ─► make demo

Each command is typed as the documents have it, on the default ports, and what it prints is compared with what they
say. Prints how long each part took; exit code 1 if anything was different. Not a test of the suite: it takes those
ports, and the demo installs Spark.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from tests import waiting
from tests.integration.gateway_tour import ROOT, plain, steps
from tests.integration.readme import blocks
from tests.integration.walkthroughs import files

BROKER, GATEWAY = "localhost:9092", "http://localhost:8080"
INSTALL_S_MAX: Final = 1_200
COMMAND_S_MAX: Final = 60
DEMO_S_MAX: Final = 600
STOP_S_MAX: Final = 60


class Different(Exception):
    """What was printed or happened is not what the documents say."""


class Mistake(NamedTuple):
    """What a newcomer types wrong, and what the answer has to name."""

    name: str
    line: str
    names: tuple[str, ...]  # in the output, in any order


# The partitions that are read now: the app has to read before the record comes.
READERS: Final = (
    'python -c \'import comet.sync; print(comet.sync.Admin().statistics(brief=True)["totals"]["readers"])\''
)
MODEL: Final = "import comet\n@comet.model\nclass Quote:\n    symbol: str\n    bid: float\n    ask: float\n"
PROGRAMS: Final = {
    "typo.py": f'{MODEL}app = comet.App()\n@app.on("qoutes")\nasync def trade(quote: Quote) -> None: ...\napp.run()\n',
    "skips.py": f'{MODEL}app = comet.App()\n@app.on("quotes", start="earliest")\n'
    "async def trade(quote: Quote) -> None: ...\napp.run()\n",
    "text.py": f"{MODEL}async def main() -> None:\n    async with comet.Producer() as producer:\n"
    '        await producer.publish("quotes", Quote("ACME", "9.5?", 9.75))\ncomet.run(main())\n',
    "frames.py": 'import comet\nprint(comet.read("quotes").to_polars())\n',
}
MISTAKES: Final = (
    Mistake("a topic that is missing", "echo 1 | comet produce orders", ("comet topic create orders",)),
    Mistake("a name with a typing error", "comet consume qoutes --count 1", ("qoutes", "comet topic list")),
    Mistake("a topic that exists", "comet topic create quotes", ("exists already", "comet topic alter")),
    Mistake("a name that is not valid", "comet topic create 'my quotes'", ("my quotes", "letters, digits")),
    Mistake("a second server on the port", "comet up --gateway-port 8081 --data second", ("9092", "--port")),
    Mistake("a broker that is not there", "comet topic list --bootstrap localhost:1", ("localhost:1", "comet up")),
    Mistake("a condition without its end", "comet consume quotes --filter 'bid >'", ("at character", "bid >")),
    Mistake("JSON that is cut off", f"curl -s --json '{{' {GATEWAY}/v1/topics/quotes/records", ("MALFORMED_BODY",)),
    Mistake(
        "a path of the API with a typing error",
        f"curl -s {GATEWAY}/v1/topics/qoutes/records",
        ("TOPIC_NOT_FOUND", "qoutes"),
    ),
    Mistake("an app of a topic that is missing", "timeout 20 python typo.py", ("comet topic create qoutes",)),
    Mistake(
        "a record that is not JSON",
        "echo 'not JSON' | comet produce quotes; timeout --signal INT 5 python skips.py",
        ("skipped malformed records", "of quotes/", "on_malformed"),
    ),
    Mistake("a text where a number belongs", "python text.py", ("'bid'", "float", "str")),
    Mistake("data frames without polars", "python frames.py", ("pip install",)),
)


class Newcomer:
    """A terminal in an empty folder, whose `python` and `comet` are those of a venv."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clone = folder / "comet"
        self.here = folder / "work"
        self.here.mkdir()
        self.differences: list[str] = []
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "JAVA_HOME"))}
        system = [path for path in os.environ["PATH"].split(os.pathsep) if ".venv" not in path]
        self.environment = kept | {
            "PATH": os.pathsep.join([str(folder / "venv/bin"), *system]),
            "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Says how long it took. What is different is said, and the hour goes on."""
        begun = time.monotonic()
        try:
            yield
        except (Different, OSError, subprocess.SubprocessError) as error:
            self.differences.append(name)
            print(f"{time.monotonic() - begun:8.1f} s  {name}: DIFFERENT\n{error}", flush=True)
        else:
            print(f"{time.monotonic() - begun:8.1f} s  {name}", flush=True)

    def run(
        self, line: str, *, cwd: Path | None = None, within_s: float = COMMAND_S_MAX
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], cwd=cwd or self.here, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=within_s, check=False,
        )  # fmt: skip

    def done(self, line: str, *, cwd: Path | None = None, within_s: float = COMMAND_S_MAX) -> str:
        """What a command prints that succeeds."""
        ended = self.run(line, cwd=cwd, within_s=within_s)
        if ended.returncode:
            raise Different(f"$ {line}\nended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    @contextmanager
    def running(self, line: str, *, cwd: Path | None = None) -> Iterator[Running]:
        """A command that runs until the end of the block."""
        with subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=cwd or self.here, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            running = Running(line, process)
            try:
                yield running
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


class Running:
    """A command that runs, and the lines that it has printed."""

    def __init__(self, line: str, process: subprocess.Popen[str]) -> None:
        self.line = line
        self.printed: list[str] = []
        self._process = process
        self._came = threading.Condition()
        assert process.stdout is not None
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, output: TextIO) -> None:
        with suppress(ValueError):  # the block has ended
            for text in output:
                with self._came:
                    self.printed.append(text.rstrip("\n"))
                    self._came.notify_all()

    def until(self, words: str, *, within_s: float = COMMAND_S_MAX, times: int = 1) -> str:
        """The line with these words; waits until `times` such lines are printed."""
        found: list[str] = []

        def there() -> bool:
            found[:] = [one for one in self.printed if words in one]
            return len(found) >= times

        with self._came:
            if not self._came.wait_for(there, within_s):
                raise Different(f"$ {self.line}\nnever printed {words!r}, but\n" + "\n".join(self.printed[-20:]))
        return found[times - 1]

    def interrupt(self) -> float:
        """Ctrl-C; the seconds until the command has ended."""
        begun = time.monotonic()
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(STOP_S_MAX)
        return time.monotonic() - begun


def get(path: str) -> bytes:
    with urllib.request.urlopen(GATEWAY + path, timeout=COMMAND_S_MAX) as answer:
        found: bytes = answer.read()
    return found


def eventually(found: Callable[[], object], what: str, within_s: float) -> None:
    """Returns once `found` returns something."""

    def there() -> bool:
        try:
            return bool(found())
        except OSError:  # the server is not up, or the topic not there
            return False

    if not asyncio.run(waiting.until(there, within_s=within_s)):
        raise Different(f"{what} did not come within {within_s:.0f} s")


def same(line: str, printed: str, expected: str) -> None:
    if plain(printed).splitlines() != plain(expected).splitlines():
        raise Different(f"$ {line}\nprinted\n{printed}\nand the document says\n{expected}")


def one_minute(newcomer: Newcomer) -> None:
    """README's section, block by block."""
    _, shell, reading, writing, http = blocks((newcomer.clone / "README.md").read_text())
    create, produce, consume = shell.commands()
    for command in (create, produce):
        same(command.line, newcomer.done(command.line), "".join(f"{one}\n" for one in command.printed))
    with newcomer.running(consume.bare) as following:
        for expected in consume.printed:
            following.until(expected)
        following.interrupt()
    (newcomer.here / "reading.py").write_text(reading.code)
    (newcomer.here / "writing.py").write_text(writing.code)
    spread = re.search(r"print\(.*# (.*)\n", reading.code)
    assert spread is not None, "README says what the handler prints"
    with newcomer.running("python reading.py") as app:
        eventually(lambda: int(newcomer.done(READERS)), "the app's subscription", COMMAND_S_MAX)
        newcomer.done("python writing.py")
        app.until(spread[1])
        post, stream = http.commands()
        newcomer.done(post.bare)
        app.until(spread[1], times=2)
        app.interrupt()
    with newcomer.running(stream.bare) as events:
        events.until("data: ", times=4)  # that it is subscribed, and three records


def tutorial(newcomer: Newcomer) -> None:
    text = (newcomer.clone / "docs/tutorial.md").read_text()
    for name, content in files(text).items():
        (newcomer.here / name).write_text(content)
    for step in steps(text):
        same(step.commands, newcomer.done(f"set -o pipefail\n{step.commands}"), step.printed)


def mistakes(newcomer: Newcomer) -> None:
    for name, content in PROGRAMS.items():
        (newcomer.here / name).write_text(content)
    for mistake in MISTAKES:
        with newcomer.part(f"mistake: {mistake.name}"):
            ended = newcomer.run(mistake.line)
            said = ended.stdout + ended.stderr
            missing = [words for words in mistake.names if words not in said]
            if missing:
                raise Different(f"$ {mistake.line}\nsaid\n{said}\nwithout {missing}")


def demo(newcomer: Newcomer) -> None:
    begun = time.monotonic()
    times: dict[str, float] = {}

    def note(name: str) -> None:
        times[name] = time.monotonic() - begun
        print(f"{times[name]:8.1f} s    make demo: {name}", flush=True)

    with newcomer.running("make demo", cwd=newcomer.clone) as running:
        running.until("", within_s=COMMAND_S_MAX)
        note("the first line")
        running.until("/quotes", within_s=DEMO_S_MAX)
        note("its address")
        for what, topic in (
            ("prices", "quotes"), ("bars of Spark", "quotes.bars.1s"), ("alerts of Spark", "quotes.alerts"),
        ):  # fmt: skip
            eventually(lambda: has_records(topic), what, DEMO_S_MAX)  # noqa: B023 - called in this turn
            note(what)
        seconds = running.interrupt()
        print(f"{seconds:8.1f} s    make demo: from Ctrl-C to the end", flush=True)
    left = subprocess.run(["pgrep", "-f", newcomer.clone], capture_output=True, text=True, check=False).stdout.split()
    if left:
        raise Different(f"processes of the demo still run: {left}")


def has_records(topic: str) -> bool:
    found = json.loads(get(f"/v1/topics/{topic}"))
    return any(int(partition["log_end"]) for partition in found["partitions"])


def play(folder: Path, *, with_demo: bool) -> list[str]:
    """Returns what was different."""
    newcomer = Newcomer(folder)
    with newcomer.part("git clone"):
        newcomer.done(f"git clone --quiet {ROOT} {newcomer.clone}")
    with newcomer.part("python3 -m venv, pip install ."):
        newcomer.done(f"{sys.executable} -m venv {folder / 'venv'}", within_s=INSTALL_S_MAX)
        newcomer.done("pip install --quiet .", cwd=newcomer.clone, within_s=INSTALL_S_MAX)
    with newcomer.running("comet up") as server:
        with newcomer.part("comet up"):
            server.until(GATEWAY.rpartition(":")[2])
            if b"<html" not in get("/"):
                raise Different("the dashboard is not a page")
        with newcomer.part('README, "One minute"'):
            one_minute(newcomer)
        newcomer.done("comet topic delete quotes --yes")
        with newcomer.part("the tutorial"):
            tutorial(newcomer)
        mistakes(newcomer)
        with newcomer.part("Ctrl-C of comet up"):
            server.interrupt()
    if with_demo:
        with newcomer.part("make demo"):
            demo(newcomer)
    return newcomer.differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--without-demo", action="store_true")
    options = parser.parse_args()
    for address in (BROKER, GATEWAY.removeprefix("http://")):
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                sys.exit(f"{address} is in use: stop what listens there; the documents have this address")
    folder = Path(tempfile.mkdtemp(prefix="comet-first-hour-"))
    try:
        different = play(folder, with_demo=not options.without_demo)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"different: {', '.join(different)}" if different else "all as the documents say")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
