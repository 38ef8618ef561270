"""What the command line does before it reaches a broker: usage, help, exit codes, what it imports."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from comet.cli._coercion import converted
from comet.cli._commands import COMMANDS, app, loaded_command, module_of
from comet.cli._guard import guarded
from comet.settings.server import Table
from comet_broker.settings import TABLE as BROKER_TABLE
from comet_gateway.http.auth import TokenFile
from comet_gateway.settings import TABLE as GATEWAY_TABLE

NOBODY = "127.0.0.1:1"  # nothing listens on port 1

runner = CliRunner()


def test_help_lists_every_command() -> None:
    shown = runner.invoke(app, ["--help"])
    assert shown.exit_code == 0
    for command in ("up", "broker", "gateway", "topic", "produce", "consume", "group", "cluster", "doctor", "bench"):
        assert f"\n  {command} " in shown.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["up"],
        ["broker"],
        ["gateway"],
        ["cluster", "drain"],
        ["produce"],
        ["consume"],
        ["search"],
        ["export"],
        *(["dead-letters", name] for name in ("list", "show", "redrive", "discard")),
        ["cluster"],
        ["doctor"],
        ["bench"],
        ["demo"],
        *(
            ["topic", name]
            for name in ("create", "list", "describe", "alter", "move", "elect", "delete", "delete-records")
        ),
        *(["group", name] for name in ("list", "describe", "lag", "reset", "delete")),
        *(["context", name] for name in ("add", "use", "list", "show", "remove")),
    ],
)
def test_every_command_explains_itself_and_knows_json(words: list[str]) -> None:
    shown = runner.invoke(app, [*words, "--help"], terminal_width=200)
    assert shown.exit_code == 0
    assert "--json" in shown.stdout


PANELS = {
    "broker": {"Address": "--host", "Metrics": "--metrics-port", "Defaults of new topics": "--topic-retention-ms"},
    "gateway": {"Gateway": "--bootstrap", "Access": "--origins", "Searches and exports": "--searches-max"},
}


@pytest.mark.parametrize("command", PANELS)
def test_the_settings_of_a_server_stand_in_panels(command: str) -> None:
    shown = runner.invoke(app, [command, "--help"], prog_name="comet").stdout
    assert shown.startswith(f"Usage: comet {command} [OPTIONS]")
    _, *parts = re.split(r"\n\n(\w[^\n]*):\n", shown)
    panels = dict(zip(parts[::2], parts[1::2], strict=True))
    assert "--help" in panels["Options"] and "--json" in panels["Options"] and "--config" in panels["Options"]
    for panel, flag in PANELS[command].items():
        assert panels[panel].lstrip().startswith(flag)
    assert "Other settings" not in panels
    assert shown.count("\n  --") > 40


@pytest.mark.parametrize(("command", "table"), [("broker", BROKER_TABLE), ("gateway", GATEWAY_TABLE)])
def test_each_setting_of_a_server_is_an_option_but_secrets(command: str, table: Table) -> None:
    with loaded_command(command).make_context(command, [], resilient_parsing=True) as context:
        options = {one.name: one for one in context.command.get_params(context)}
    assert options.keys() - {"json_output", "config", "help"} == {row.name for row in table.rows if row.flag}
    assert not [row.name for row in table.rows if row.secret and row.name in options]
    for row in table.rows:
        if row.flag:
            assert options[row.name].opts == [row.flag]
            assert row.about in options[row.name].help and row.shown_default in options[row.name].help


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["broker", "--prot", "1"], "No such option: --prot (Possible options: --host, --port)"),
        (["broker", "--port", "x"], "Invalid value for '--port': port takes a whole number, not 'x'"),
        (["broker", "--port", "70000"], "Invalid value for '--port': port must be between 0 and 65535"),
        (["broker", "--topic-flush", "never"], "Invalid value for '--topic-flush': flush must be always, interval or"),
        (["broker", "extra"], "Got unexpected extra argument(s) (extra)"),
        (["broker", "--por", "1"], "No such option: --por"),  # no abbreviation: a later option could change its meaning
        (["gateway", "--drain-s", "soon"], "Invalid value for '--drain-s'"),
        (["gateway", "tokn"], "No such command 'tokn'. Did you mean 'token'?"),
        (["gateway", "token"], "Missing argument 'NAME'"),
        (["gateway", "token", "me", "--role", "root"], "'root' is not one of 'viewer', 'operator', 'admin'"),
    ],
)
def test_a_server_refuses_options_as_other_commands_do(words: list[str], message: str) -> None:
    shown = runner.invoke(app, words, prog_name="comet")
    usage, tried, _, error = shown.stderr.rstrip("\n").split("\n", 3)
    command = " ".join(words[:2] if words[:2] == ["gateway", "token"] else words[:1])
    assert usage.startswith(f"Usage: comet {command} [OPTIONS]")
    assert tried == f"Try 'comet {command} -h' for help."
    assert error.startswith("Error: ") and message in error
    assert (shown.exit_code, shown.stdout) == (2, "")


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("comet broker --wire", ["--wire", "--wire-socket", "--wire-port"]),
        ("comet broker --topic-flush ", ["always", "interval", "os"]),
        ("comet broker --wire y", ["yes"]),
        ("comet broker --log-level w", ["warning"]),
        ("comet broker --data ne", ["near/", "nearest.pem"]),
        ("comet broker --data near/", ["near/data"]),
        ("comet broker --data none/", []),
        ("comet gateway --config near/d", ["near/data"]),
        ("comet gateway --sea", ["--searches-max", "--search-records-max", "--search-bytes-max", "--search-s"]),
        ("comet gateway to", ["token"]),
        ("comet gateway token me --role o", ["operator"]),
    ],
)
def test_options_of_a_server_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, completed: list[str]
) -> None:
    (tmp_path / "near").mkdir()
    (tmp_path / "near/data").touch()
    (tmp_path / "nearest.pem").touch()
    monkeypatch.chdir(tmp_path)
    asked = {"_COMET_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    shown = runner.invoke(app, [], prog_name="comet", env=asked)
    assert shown.stdout.split() == completed


def test_a_token_is_shown_once_with_the_row_that_knows_it(tmp_path: Path) -> None:
    made = runner.invoke(app, ["gateway", "token", "ci@example", "--role", "operator", "--json"])
    assert made.exit_code == 0
    document = json.loads(made.stdout)
    path = tmp_path / "tokens.toml"
    path.write_text(document["row"])
    who = TokenFile.load(path).principal_of(document["token"])
    assert who is not None
    assert (who.name, who.role.name) == ("ci@example", "OPERATOR")
    plain = runner.invoke(app, ["gateway", "token", "me"])
    assert plain.stdout.startswith("[[token]]")
    assert 'role = "viewer"' in plain.stdout
    assert "comet_" in plain.stderr
    assert "comet_" not in plain.stdout


def test_version() -> None:
    shown = runner.invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout.split()[0]) == (0, "comet")


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["topic", "create"],
        ["topic", "create", "quotes", "--partitions", "0"],
        ["topic", "create", "quotes", "--set", "retention=7d"],
        ["topic", "create", "quotes", "--set", "retention_ms=soon"],
        ["topic", "alter", "quotes"],
        ["consume", "quotes", "--until", "latest", "--follow"],
        ["consume", "quotes", "--from", "yesterday"],
        ["consume", "quotes", "--format", "xml"],
        ["produce", "quotes", "--acks", "2"],
        ["produce", "quotes", "--header", "nonsense"],
        ["produce", "quotes", "--file", "/nowhere/at/all"],
        ["up", "--port", "70000"],
        ["up", "--log-level", "loud"],
        ["up", "--brokers", "0"],
        ["up", "--brokers", "3", "--broker-id", "2"],
        ["broker", "--nonsense", "1"],
        ["up", "--gateway-port", "70000"],
        ["gateway", "--nonsense", "1"],
        ["gateway", "--host", "0.0.0.0"],
        ["gateway", "--drain-s", "soon"],
        ["gateway", "token", "me", "--role", "root"],
        ["broker", "--port", "many"],
        ["broker", "--etcd", "127.0.0.1:2379"],
        ["broker", "--config", "/nowhere/at/all"],
        ["cluster", "drain"],
        ["cluster", "drain", "first"],
        ["topic", "create", "quotes", "--consistency", "eventual"],
        ["topic", "create", "quotes", "--min-insync", "2", "--set", "min_insync=2"],
        ["topic", "move", "quotes", "0"],
        ["topic", "move", "quotes", "0", "--to", "1,1"],
        ["topic", "elect", "quotes", "0", "first"],
        ["bench", "everything"],
        ["bench", "groups", "live"],
        ["bench", "live", "--transport", "udp"],
        ["group", "reset", "engine"],
        ["group", "reset", "engine", "--to", "latest", "--shift", "1"],
        ["group", "reset", "engine", "--to", "soon"],
        ["group", "reset", "engine", "--to", "latest", "--topic", "quotes:a"],
        ["consume", "quotes", "--group", "engine", "--no-follow"],
        ["consume", "quotes", "--group", "engine", "--partition", "0"],
    ],
)
def test_wrong_usage_ends_with_2_and_no_traceback(words: list[str]) -> None:
    shown = runner.invoke(app, words)
    assert shown.exit_code == 2, shown.output
    assert "Traceback" not in shown.output
    assert shown.stderr.strip()


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list"],
        ["cluster"],
        ["consume", "quotes"],
        ["produce", "quotes"],
        ["topic", "describe", "x"],
        ["cluster", "drain", "1"],
        ["group", "list"],
        ["group", "delete", "x", "--yes"],
        ["topic", "move", "x", "0", "--to", "1"],
        ["topic", "elect", "x", "0", "1", "--accept-loss"],
    ],
)
def test_no_broker_ends_with_4_and_says_how_to_start_one(words: list[str]) -> None:
    shown = runner.invoke(app, [*words, "--bootstrap", NOBODY])
    assert shown.exit_code == 4, shown.output
    assert "Traceback" not in shown.output
    assert shown.stderr.startswith("error: ") and "hint: start a broker: comet up" in shown.stderr
    assert shown.stdout == ""


def test_the_address_comes_from_the_environment_too() -> None:
    shown = runner.invoke(app, ["cluster", "--json"], env={"COMET_BOOTSTRAP": NOBODY})
    assert shown.exit_code == 4
    error = json.loads(shown.stderr)["error"]
    assert error["code"] == "UNAVAILABLE" and error["retriable"] and NOBODY in error["message"]


def test_bench_lists_what_it_measures() -> None:
    shown = runner.invoke(app, ["bench", "--list"])
    assert shown.exit_code == 0
    assert "produce_many" in shown.stdout and "limit_memcpy" in shown.stdout


def test_doctor_as_json_says_what_it_found() -> None:
    shown = runner.invoke(app, ["doctor", "--json", "--port", "9"])
    findings = {finding["name"]: finding for finding in json.loads(shown.stdout)}
    assert {"python", "packages", "data folder", "disk space", "fsync", "port", "clock"} <= findings.keys()
    assert findings["python"]["status"] == "ok"
    assert all(finding["status"] in {"ok", "warn", "fail"} for finding in findings.values())
    failed = any(finding["status"] == "fail" for finding in findings.values())
    assert shown.exit_code == (1 if failed else 0)


def test_doctor_fails_for_a_folder_that_cannot_be(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    shown = runner.invoke(app, ["doctor", "--data", str(in_the_way / "data"), "--json"])
    findings = {finding["name"]: finding for finding in json.loads(shown.stdout)}
    assert shown.exit_code == 1
    assert findings["data folder"]["status"] == "fail" and findings["data folder"]["advice"]


def _imported(statement: str) -> set[str]:
    """The modules that a statement imports in a process of its own."""
    probe = f"import sys\n{statement}\nprint(*sorted(sys.modules), file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(found.stderr.splitlines()[-1].split())


def _running(*words: str) -> str:
    return f"try:\n    import comet.cli; comet.cli.main({list(words)!r})\nexcept SystemExit: pass"


HEAVY = {
    *("grpc", "google.protobuf", "asyncio", "comet_broker", "comet_demo", "msgspec", "uvloop", "numpy", "rich"),
    "textual",
}


def test_help_imports_nothing_heavy() -> None:
    commands = set(map(module_of, COMMANDS))
    found = _imported(_running("--help"))
    assert not found & HEAVY
    assert found >= commands


def test_a_command_imports_itself_alone() -> None:
    commands = set(map(module_of, COMMANDS))
    assert not _imported(_running("--version")) & (HEAVY | commands | {"pydantic"})
    assert _imported(_running("context", "--help")) & commands == {"comet.cli.context"}
    found = _imported(_running("topic", "list", "--bootstrap", NOBODY))
    assert "grpc" in found
    assert not found & {"pydantic", "rich", "numpy", "pyarrow", "comet_broker", "comet_gateway", "comet.producer"}
    assert found & commands == {"comet.cli.topic"}


def test_the_help_of_a_server_imports_its_settings_alone() -> None:
    found = _imported(_running("broker", "--help"))
    assert "comet_broker.settings" in found
    assert not found & ((HEAVY | {"pydantic", "comet_broker.server", "comet.admin"}) - {"comet_broker"})
    found = _imported(_running("gateway", "--help"))
    assert "comet_gateway.settings" in found
    assert not found & {"grpc", "asyncio", "fastapi", "pydantic", "rich", "uvicorn", "comet_web", "comet_gateway.app"}


def test_an_interrupt_before_the_commands_are_loaded_is_none_of_pythons() -> None:
    script = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "import comet.cli\n"
        "comet.cli.main(['--help'])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


class Command(Enum):
    WORD = "word"


@pytest.mark.parametrize(
    ("value", "annotation", "option", "expected"),
    [
        ("text", str, {}, "text"),
        ("text", str | None, {}, "text"),
        ("007", int, {}, 7),
        ("-7", int | None, {}, -7),
        ("1", int, {"min": 1, "max": 1}, 1),
        (True, bool, {}, True),
        (False, bool | None, {}, False),
        (("a", "b"), list[str], {}, ["a", "b"]),
        ("word", Command, {}, Command.WORD),
        (Command.WORD, Command, {}, Command.WORD),
    ],
)
def test_common_values_are_converted_without_pydantic(
    value: object, annotation: Any, option: dict[str, Any], expected: object
) -> None:
    found = converted(value, annotation, typer.Option(**option))
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "option"),
    [
        ("0", int, {"min": 1}),
        ("2", int, {"max": 1}),
        ("2", int, {"max": 1, "clamp": True}),
        ("1.5", int, {}),
        ("१", int, {}),  # a digit of another script
        ("9" * 19, int, {}),
        ("1", bool, {}),
        ("WORD", Command, {}),
        ("x", Path, {}),
        ("x", list[str], {}),
        (True, str, {}),
        ("1", int, {"parser": str}),
    ],
)
def test_other_values_are_left_to_typer(value: object, annotation: Any, option: dict[str, Any]) -> None:
    assert converted(value, annotation, typer.Option(**option)) is None


def test_garbage_is_collected_while_a_command_works() -> None:
    seen: list[bool] = []

    async def waits() -> None:
        seen.append(gc.isenabled())
        await asyncio.sleep(0)
        seen.append(gc.isenabled())

    def works() -> None:
        seen.append(gc.isenabled())

    enabled = gc.isenabled()
    try:
        for command in (waits, works):
            gc.disable()
            guarded(command)()
    finally:
        (gc.enable if enabled else gc.disable)()
    assert seen == [False, True, True]
