"""Contexts of the command line: their file, and the order of the places that a value comes from."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from comet.cli import _commands
from comet.cli._connection import complete_context
from comet.cli._options import complete_topic
from comet.client.contexts import FILE_BYTES_MAX, Contexts, changed_contexts, read_contexts
from comet.client.default_cluster import connection_of
from comet.errors import InvalidArgument
from comet.security.certificates import Authority
from comet.settings.client import VARIABLES

NONE_THERE = "127.0.0.1:1"  # nothing listens on port 1
DEFAULT = "localhost:9092"
runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user without variables of its own; its file of contexts, which is not there yet."""
    for name in ("COMET_CONTEXT", *VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield tmp_path / "config/comet/contexts.toml"
    forget()


def forget() -> None:
    """Removes the variables that a command has set in this process."""
    for name in VARIABLES.values():
        os.environ.pop(name, None)


def comet(*words: str, code: int = 0, **environ: str) -> str:
    """What a command prints: stdout, or stderr with another exit code."""
    shown = runner.invoke(_commands.app, list(words), env=environ)
    assert shown.exit_code == code, shown.output
    assert "Traceback" not in shown.output
    return shown.stdout if code == 0 else shown.stderr


def written(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o600)


# ---- the file


def test_a_context_is_added_used_listed_and_removed(home: Path) -> None:
    assert "comet context use dev" in comet("context", "add", "dev", "-b", "one, two:1")
    comet("context", "add", "eu.prod", "--bootstrap", "three:3", "--use")
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    assert json.loads(comet("context", "list", "--json")) == [
        {"context": "dev", "current": False, "bootstrap": "one:9092,two:1"},
        {"context": "eu.prod", "current": True, "bootstrap": "three:3"},
    ]
    assert comet("context", "list").splitlines()[2].split() == ["*", "eu.prod", "three:3", "nothing"]
    assert comet("context", "use", "dev") == "the current context is dev\n"
    assert read_contexts().current == "dev"
    assert "no context is current now" in comet("context", "remove", "dev")
    assert (read_contexts().current, [*read_contexts().settings]) == ("", ["eu.prod"])
    comet("context", "use", "eu.prod")
    comet("context", "use", "none")
    assert json.loads(comet("context", "show", "--json"))["context"] is None


def test_a_context_holds_paths_that_hold_from_any_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.create(tmp_path / "security", "comet")
    authority.issue_client("ann")
    monkeypatch.chdir(tmp_path)
    files = ("--ca", "security/ca.pem", "--cert", "security/ann.pem", "--key", "security/ann.key")
    comet("context", "add", "prod", "-b", "a", *files)
    assert read_contexts().settings["prod"] == {
        "bootstrap": "a:9092",
        "ca": str(tmp_path / "security/ca.pem"),
        "cert": str(tmp_path / "security/ann.pem"),
        "key": str(tmp_path / "security/ann.key"),
    }
    assert (tmp_path / "security/ann.key").read_text() not in home.read_text()
    assert "certificate" in comet("context", "list")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["none", "-b", "a"], "cannot name a context"),
        (["a b", "-b", "a"], "cannot name a context"),
        (["dev", "-b", "http://a"], "invalid broker address"),
        (["there", "-b", "a"], "--replace"),
        (["dev", "-b", "a", "--ca", "missing.pem"], "missing.pem"),
        (["dev", "-b", "a", "--cert", "missing.pem"], "without its key"),
        (["dev", "-b", "a", "--access-key", "x", "--token", "y"], "give --access-key or --token"),
        (["dev", "-b", "a", "--access-key", "x"], "cannot read"),
        (["dev", "-b", "a", "--oauth-url", "https://login.example"], "--oauth-id, --oauth-secret, --oauth-url"),
        (["dev", "-b", "a", "--oauth-scope", "x"], "--oauth-id, --oauth-secret, --oauth-url"),
        (
            ["dev", "-b", "a", "--oauth-url", "http://login.example", "--oauth-id", "x", "--oauth-secret", "y"],
            "https URL",
        ),
        (["dev", "-b", "a\nb"], "one line"),
    ],
)
def test_what_no_client_could_use_is_not_added(words: list[str], reason: str, home: Path) -> None:
    comet("context", "add", "there", "-b", "old")
    before = home.read_bytes()
    said = comet("context", "add", *words, code=2)
    assert reason in said and said.startswith("error: ") and said.count("\n") == 1
    assert home.read_bytes() == before


def test_a_context_is_replaced_on_request_only() -> None:
    comet("context", "add", "dev", "-b", "old")
    comet("context", "add", "dev", "-b", "new", "--replace")
    assert read_contexts().settings == {"dev": {"bootstrap": "new:9092"}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("current = ", "is not valid TOML"),
        ("[context.dev]\nbootstrap = '\xff'", ""),
        ("curent = 'dev'", "unknown field 'curent'"),
        ("current = 3", "current is the name of a context"),
        ("context = 3", "each context a table"),
        ("context.dev = 3", "context 'dev' is not a table"),
        ("[context.dev]\nca = '/ca.pem'", "context 'dev' has no bootstrap"),
        ("[context.dev]\nbootstrap = 'a'\nacces-key = 'x'", "did you mean access_key?"),
        ("[context.dev]\nbootstrap = ['a']", "bootstrap of context 'dev' is a text of one line"),
        ("[context.dev]\nbootstrap = ''", "bootstrap of context 'dev' is a text of one line"),
        ("[context.'../x']\nbootstrap = 'a'", "cannot name a context"),
        ("current = 'gone'\n[context.dev]\nbootstrap = 'a'", "unknown context 'gone' (current in"),
        ("# " + "x" * FILE_BYTES_MAX, "is larger than"),
    ],
)
def test_a_malformed_file_is_one_line_and_exit_code_2(text: str, reason: str, home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_bytes(text.encode("latin-1"))
    home.chmod(0o600)
    said = comet("topic", "list", code=2)
    assert reason in said and str(home) in said and said.startswith("error: ") and said.count("\n") == 1
    error = json.loads(comet("cluster", "--json", code=2))["error"]
    assert error["code"] == "INVALID_ARGUMENT"
    comet("topic", "list", "--context", "none", "-b", NONE_THERE, code=4)  # the way without the file


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused(mode: int, home: Path) -> None:
    comet("context", "add", "dev", "-b", "a", "--use")
    home.chmod(mode)
    for words in (["topic", "list"], ["context", "list"], ["context", "use", "dev"]):
        assert f"chmod 600 {home}" in comet(*words, code=2)


def test_a_file_of_another_user_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comet("context", "add", "dev", "-b", "a", "--use")
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    assert "belongs to another user" in comet("topic", "list", code=2)


def test_a_service_with_the_home_of_another_user_has_no_contexts(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    def closed(self: Path, **_: Any) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", closed)
        assert read_contexts() == Contexts(home)
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert read_contexts().settings == {}
    assert "set XDG_CONFIG_HOME" in comet("context", "add", "dev", "-b", "a", code=2)


def test_a_failed_change_leaves_the_file(home: Path) -> None:
    comet("context", "add", "dev", "-b", "a")
    before = home.read_bytes()
    with pytest.raises(KeyError), changed_contexts() as contexts:
        del contexts.settings["dev"], contexts.settings["gone"]
    with pytest.raises(InvalidArgument, match="would be larger"), changed_contexts() as contexts:
        contexts.settings["big"] = {"bootstrap": "x" * FILE_BYTES_MAX}
    assert home.read_bytes() == before
    assert [one.name for one in home.parent.iterdir()] == [home.name]


def _add(name: str) -> None:
    with changed_contexts() as contexts:
        contexts.settings[name] = {"bootstrap": "a:1"}


def test_changes_at_once_are_all_kept() -> None:
    names = [f"context-{number}" for number in range(12)]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.map(_add, names, chunksize=1)
    assert sorted(read_contexts().settings) == sorted(names)


@pytest.mark.parametrize("text", ['say "hello"', "back\\slash", "ünïcode \U0001f680", "a b = [c] # d"])
def test_each_printable_text_comes_back(text: str) -> None:
    with changed_contexts() as contexts:
        contexts.settings["dev"] = {"bootstrap": "a:1", "oauth_scope": text}
    assert read_contexts().settings["dev"]["oauth_scope"] == text


# ---- the order of the places


def found(
    settings: Mapping[str, str], environ: Mapping[str, str], address: str | None = None, context: str | None = None
) -> dict[str, tuple[str, str]]:
    """Name -> value and source, with a current context `now` of these settings, and another one, `other`."""
    contexts = Contexts(Path("file"), "now", {"now": dict(settings), "other": {"bootstrap": "other:1"}})
    connection = connection_of(environ, lambda: contexts, default=DEFAULT, address=address, context=context)
    return {one.name: (one.value, one.source) for one in connection.values}


def test_an_address_comes_from_the_first_place_that_has_one() -> None:
    now = {"bootstrap": "now:1"}
    both = {"COMET_BOOTSTRAP": "env:1", "COMET_CONTEXT": "other"}
    assert found(now, both, "flag:1")["bootstrap"] == ("flag:1", "--bootstrap")
    assert found(now, both, context="now")["bootstrap"] == ("env:1", "COMET_BOOTSTRAP")
    assert found(now, {"COMET_CONTEXT": "other"}, context="now")["bootstrap"] == ("now:1", "context now")
    assert found(now, {"COMET_CONTEXT": "other"})["bootstrap"] == ("other:1", "context other")
    assert found(now, {"COMET_CONTEXT": "", "COMET_BOOTSTRAP": ""})["bootstrap"] == ("now:1", "context now")
    assert found(now, {"COMET_CONTEXT": "none"})["bootstrap"] == (DEFAULT, "default")
    assert found(now, {}, context="none")["bootstrap"] == (DEFAULT, "default")


def test_a_context_of_none_reads_no_file() -> None:
    def unread() -> Contexts:
        raise AssertionError

    assert connection_of({}, unread, default=DEFAULT, context="none").address == DEFAULT


def test_a_credential_of_the_environment_replaces_that_of_the_context_as_a_whole() -> None:
    now = {"bootstrap": "now:1", "ca": "/ca", "cert": "/cert", "key": "/key"}
    assert found(now, {"COMET_CLIENT_TOKEN": "/token"}) == {
        "bootstrap": ("now:1", "context now"),
        "ca": ("/ca", "context now"),
        "token": ("/token", "COMET_CLIENT_TOKEN"),
    }
    assert found(now, {"COMET_CLIENT_CA": "/other"}) == {
        "bootstrap": ("now:1", "context now"),
        "ca": ("/other", "COMET_CLIENT_CA"),
        "cert": ("/cert", "context now"),
        "key": ("/key", "context now"),
    }


def test_each_setting_of_a_context_reaches_clients_by_its_variable(home: Path) -> None:
    settings = {name: f"/{name}" for name in VARIABLES} | {"bootstrap": NONE_THERE}
    contexts = Contexts(home, "now", {"now": settings})
    connection = connection_of({}, lambda: contexts, default=DEFAULT)
    assert {one.name: one.value for one in connection.from_context()} == settings


def connected(words: list[str], **environ: str) -> tuple[str, dict[str, str]]:
    """The address of a command's client, and the variables that clients then read."""
    with pytest.MonkeyPatch.context() as patched:
        seen = list[tuple[str, dict[str, str]]]()

        def admin(address: str, **_: Any) -> None:
            seen.append((address, {name: os.environ[name] for name in VARIABLES.values() if name in os.environ}))
            raise InvalidArgument("enough")

        patched.setattr("comet.Admin", admin)
        comet(*words, code=2, **environ)
    forget()
    return seen[0]


COMMANDS = {
    "topic list": ["topic", "list"],
    "topic create": ["topic", "create", "x"],  # its flags are made from a table
    "cluster": ["cluster"],
    "cluster drain": ["cluster", "drain", "1"],  # made from its row
    "cluster recover": ["cluster", "recover"],
    "consume": ["consume", "x"],
    "acl list": ["acl", "list"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_commands_use_the_context(words: list[str], home: Path) -> None:
    written(
        home,
        "current = 'now'\n[context.now]\nbootstrap = 'now:1'\nca = '/ca'\n[context.other]\nbootstrap = 'other:1'\n",
    )
    assert connected(words) == ("now:1", {"COMET_CLIENT_CA": "/ca"})
    assert connected([*words, "--context", "other"]) == ("other:1", {})
    assert connected(words, COMET_CONTEXT="other") == ("other:1", {})
    assert connected([*words, "--context", "none"])[0] == DEFAULT
    assert connected([*words, "-b", "flag:1"]) == ("flag:1", {"COMET_CLIENT_CA": "/ca"})
    assert connected([*words, "--context", "other"], COMET_BOOTSTRAP="env:1")[0] == "env:1"


def test_flags_before_a_subcommand_hold_for_it(home: Path) -> None:
    written(home, "[context.other]\nbootstrap = 'other:1'\nca = '/ca'\n")
    assert connected(["cluster", "--context", "other", "drain", "1"]) == ("other:1", {"COMET_CLIENT_CA": "/ca"})
    assert connected(["cluster", "-b", "flag:1", "drain", "1"])[0] == "flag:1"
    assert connected(["cluster", "-b", "flag:1", "drain", "1", "-b", "last:1"])[0] == "last:1"


def test_a_variable_that_overrides_a_chosen_context_is_named(home: Path) -> None:
    written(home, f"current = 'dev'\n[context.dev]\nbootstrap = '{NONE_THERE}'\n")
    said = comet("topic", "list", "--context", "dev", code=4, COMET_BOOTSTRAP="localhost:2")
    assert said.startswith("COMET_BOOTSTRAP in the environment overrides context dev\n")
    for same in ({"COMET_BOOTSTRAP": NONE_THERE, "COMET_CONTEXT": "dev"}, {"COMET_BOOTSTRAP": "localhost:2"}):
        assert comet("topic", "list", code=4, **same).startswith("error: ")
    assert "COMET_CONTEXT names another one" in runner.invoke(
        _commands.app, ["context", "use", "dev"], env={"COMET_CONTEXT": "x"}
    ).stderr  # fmt: skip


def test_show_names_the_source_of_each_value(home: Path) -> None:
    written(home, "current = 'dev'\n[context.dev]\nbootstrap = 'a:1'\nca = '/ca'\n")
    lines = [line.split() for line in comet("context", "show", COMET_BOOTSTRAP="b:1").splitlines()]
    assert lines[0] == ["context", "dev", "(current)"]
    assert ["bootstrap", "b:1", "COMET_BOOTSTRAP"] in lines and ["ca", "/ca", "context", "dev"] in lines
    assert json.loads(comet("context", "show", "dev", "--json")) == {
        "context": "dev",
        "source": "--context",
        "settings": {
            "bootstrap": {"value": "a:1", "source": "context dev"},
            "ca": {"value": "/ca", "source": "context dev"},
        },
        "overridden": [],
    }
    assert "unknown context 'x' (--context); use one of dev" in comet("context", "show", "x", code=2)
    assert "unknown context 'x' (COMET_CONTEXT)" in comet("context", "show", code=2, COMET_CONTEXT="x")


def test_a_command_that_works_without_a_cluster_takes_a_context_by_its_flag_alone(home: Path) -> None:
    written(home, f"current = 'dev'\n[context.dev]\nbootstrap = '{NONE_THERE}'\n")

    def checked(*words: str, **environ: str) -> set[str]:
        shown = runner.invoke(_commands.app, ["doctor", "--json", *words], env=environ)
        return {one["name"] for one in json.loads(shown.stdout)}

    assert f"broker {NONE_THERE}" in checked("--context", "dev")
    assert not [name for name in checked(COMET_CONTEXT="dev") | checked("--context", "none") if "broker 127" in name]


def test_the_shell_completes_names_of_contexts(home: Path) -> None:
    comet("context", "add", "prod", "-b", "a")
    comet("context", "add", "dev", "-b", "a")
    assert complete_context("p") == ["prod"]
    home.write_text("= broken")
    assert complete_context("") == []


def test_the_shell_completes_topics_of_the_context(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(home, "current = 'now'\n[context.now]\nbootstrap = 'now:1'\n[context.other]\nbootstrap = 'other:1'\n")
    seen: list[str] = []

    def admin(address: str) -> None:
        seen.append(address)
        raise InvalidArgument("enough")

    monkeypatch.setattr("comet.Admin", admin)
    root: Any = typer.main.get_command(_commands.app)
    command = root.get_command(None, "topic").commands["describe"]
    monkeypatch.setenv("COMET_CONTEXT", "now")
    for words in ([], ["--context", "other"], ["-b", "flag:1"]):
        complete_topic(command.make_context("describe", words, resilient_parsing=True), "")
    monkeypatch.setenv("COMET_BOOTSTRAP", "env:1")
    complete_topic(command.make_context("describe", [], resilient_parsing=True), "")
    assert seen == ["now:1", "other:1", "flag:1", "env:1"]
    home.write_text("= broken")
    assert complete_topic(command.make_context("describe", [], resilient_parsing=True), "") == []
    assert capsys.readouterr() == ("", ""), "it would garble the line being typed"


def test_every_command_with_an_address_takes_a_context() -> None:
    def commands(group: Any, *path: str) -> dict[str, Any]:
        found = {" ".join(path): group}
        for name in group.list_commands(None) if hasattr(group, "list_commands") else ():
            found |= commands(group.get_command(None, name), *path, name)
        return found

    flags = {
        name: {flag for one in command.params for flag in getattr(one, "opts", ())}
        for name, command in commands(typer.main.get_command(_commands.app)).items()
    }
    addressed = {name for name, own in flags.items() if "--bootstrap" in own} - {"context add"}
    assert len(addressed) > 15
    assert {name for name in addressed if "--context" not in flags[name]} == set()
