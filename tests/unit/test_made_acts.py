"""An act that exists in this test only, as a row and a method: its command and its route are made from these two."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import httpx
import jsonschema_rs
import pytest
import typer
from typer.testing import CliRunner

import comet
from comet.admin.acts import OPERATIONS, Act, Dialog, Operation
from comet.admin.parameters import Input, PartitionIndex, TopicName, parameters
from comet.cli import _acts
from comet.cli._acts import add_commands
from comet.types import Int64
from comet_gateway import GatewayConfig, create_app
from comet_gateway.http.auth import ROLES, new_token, roles_of_acts

BIG = 2**53 + 1


class Depth(str, Enum):
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True)
class Part:
    broker: int
    bytes: Int64


@dataclass(frozen=True)
class Freezing:
    """The freezing of a partition."""

    dry_run: bool
    topic: str
    records: Annotated[Int64, "Records that can be read only."]
    parts: tuple[Part, ...]
    left: int

    def is_finished(self) -> bool:
        return not self.left

    def __str__(self) -> str:
        return f"{self.records:,} records of {self.topic} become read-only"


@dataclass(frozen=True)
class Thawing:
    """Its result has no text of its own."""

    group: str
    slow_bytes: Int64 | None


class Calls(list[dict[str, Any]]):
    """The calls that reached the method. `left` counts down to the end of the act."""

    left = 0


CALLS = Calls()
DEFAULTS = {"depth": Depth.SOFT, "below": None, "retries": 3, "note": "", "room": 0, "force": False, "dry_run": False}


async def freeze_partition(
    self: comet.Admin,
    name: TopicName,
    partition: PartitionIndex,
    brokers: Annotated[
        Sequence[int],
        Input("Brokers that freeze it.", 1, 99, items_max=3, example=(2, 1), flag="--on -o", metavar="ID,ID"),
    ],
    *,
    depth: Annotated[Depth, Input("How deep.")] = Depth.SOFT,
    below: Annotated[Int64 | None, Input("The first offset to leave.")] = None,
    retries: Annotated[int, Input("Attempts.", 0, 9)] = 3,
    note: Annotated[str, Input("A word.", pattern="^[a-z]{0,8}$")] = "",
    room: Annotated[int, Input("Ice.", 0, 4096, unit="bytes", metavar="SIZE")] = 0,
    force: Annotated[bool, Input("Freezes the leader, too.")] = False,
    dry_run: bool = False,
) -> Freezing:
    given = {name: value for name, value in locals().items() if name != "self"}
    CALLS.append(given)
    if partition == 7:
        raise comet.PartitionNotFound("topic 'quotes' has no partition 7")
    CALLS.left -= 1
    return Freezing(dry_run, name, BIG, (Part(1, 2048),), max(0, CALLS.left))


async def thaw_group(
    self: comet.Admin, name: Annotated[str, Input("Name of a group.", pattern="^[a-z]+$")], *,
    most: Annotated[int, Input("Most records.", 1, 9)] = 5, gently: Annotated[bool, Input("Slowly.")] = False,
) -> Thawing:  # fmt: skip
    CALLS.append({"name": name, "most": most, "gently": gently})
    return Thawing(name, None)


FREEZE = Act(
    "FreezePartition", "operator", "alter topic", "Freeze a partition", "It takes no more writes.",
    method="freeze_partition", command="topic freeze", dry_run=True, asks=True, wait="Return once it is frozen.",
    errors=("PARTITION_NOT_FOUND",),
    routes=(
        Operation(
            "freezePartition", "POST", "/v1/topics/{topic}/partitions/{partition}/freeze",
            dialog=Dialog("Freeze {topic}", "Freeze", "It stays readable.", "{topic}"),
        ),
        Operation(
            "freezeHard", "PUT", "/v1/topics/{topic}/partitions/{partition}/freeze", "Freeze for good",
            fixed={"depth": Depth.HARD, "force": True},
        ),
    ),
)  # fmt: skip
THAW = Act(
    "ThawGroup", "viewer", "alter group", "Thaw a group", method="thaw_group", command="group thaw",
    routes=(Operation("thawGroup", "DELETE", "/v1/groups/{group}/ice"),),
)  # fmt: skip


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows and their methods; nothing else."""
    made = {route.id: (act, route) for act in (FREEZE, THAW) for route in act.routes}
    for id_, row in made.items():
        monkeypatch.setitem(OPERATIONS, id_, row)
    for key, role in roles_of_acts(made.values()).items():
        monkeypatch.setitem(ROLES, key, role)
    monkeypatch.setattr(comet.Admin, "freeze_partition", freeze_partition, raising=False)
    monkeypatch.setattr(comet.Admin, "thaw_group", thaw_group, raising=False)
    CALLS.clear()
    CALLS.left = 0


# ---- the command

runner = CliRunner()


def run(*words: str, code: int = 0, typed: str = "", acts: Sequence[Act] = (FREEZE, THAW)) -> Any:
    app = typer.Typer(rich_markup_mode=None)
    for group in ("topic", "group"):
        commands = typer.Typer(rich_markup_mode=None)
        add_commands(commands, group, acts)
        app.add_typer(commands, name=group)
    done = runner.invoke(app, list(words), input=typed, terminal_width=200)
    assert done.exit_code == code, done.output
    return done


def test_the_help_has_the_texts_of_row_and_parameters() -> None:
    assert re.search(r"freeze +Freeze a partition\.", run("topic", "--help").stdout)
    shown = " ".join(run("topic", "freeze", "--help").stdout.split())
    for words in (
        r"freeze \[OPTIONS\] \W*TOPIC\W* \W*PARTITION",
        r"Freeze a partition\. It takes no more writes\.",
        r"TOPIC .*Name of a topic\.",
        r"-o, --on ID,ID Brokers that freeze it\. \[required\]",
        r"--depth .*soft.*hard.* How deep\. \[default: soft\]",
        r"--below .* The first offset to leave\.",
        r"--retries .*Attempts\. \[default: 3; 0<=x<=9\]",
        r"--room SIZE Ice\. \[default: 0\]",
        r"--force Freezes the leader, too\.",
        r"--wait Return once it is frozen\.",
        r"--dry-run Only show the effect\.",
        r"-y, --yes Do not ask for confirmation\.",
        r"-b, --bootstrap HOST:PORT",
        r"--json Print JSON",
    ):
        assert re.search(words, shown), (words, shown)
    thaw = run("group", "thaw", "--help").stdout
    assert not [flag for flag in ("--wait", "--dry-run", "--yes") if flag in thaw], "it does not have them"


def test_arguments_and_flags_reach_the_method() -> None:
    run("topic", "freeze", "quotes", "2", "--on", "2, 1", "--yes")
    assert CALLS.pop() == {"name": "quotes", "partition": 2, "brokers": [2, 1], **DEFAULTS}
    words = ("-o", "3", "--depth", "hard", "--below", str(BIG), "--retries", "0", "--note", "ice", "--force", "-y")
    run("topic", "freeze", "quotes", "2", "--room", "2KiB", *words)
    given = {"depth": Depth.HARD, "below": BIG, "retries": 0, "note": "ice", "room": 2048, "force": True}
    assert CALLS.pop() == {"name": "quotes", "partition": 2, "brokers": [3], "dry_run": False, **given}
    run("group", "thaw", "engine", "--most", "9", "--gently")
    assert CALLS.pop() == {"name": "engine", "most": 9, "gently": True}


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("quotes", "2"),
        ("quotes", "-1", "--on", "1"),
        ("quotes", "100000", "--on", "1"),
        ("quotes", "first", "--on", "1"),
        ("quotes", "2", "--on", ""),
        ("quotes", "2", "--on", "0"),
        ("quotes", "2", "--on", "100"),
        ("quotes", "2", "--on", "1,1"),
        ("quotes", "2", "--on", "one"),
        ("quotes", "2", "--on", "1,2,3,4"),
        ("quotes", "2", "--on", "1", "--depth", "deep"),
        ("quotes", "2", "--on", "1", "--retries", "10"),
        ("quotes", "2", "--on", "1", "--room", "5KiB"),
        ("quotes", "2", "--on", "1", "--room", "5x"),
    ],
)
def test_wrong_usage_ends_with_2_before_any_call(words: tuple[str, ...]) -> None:
    assert run("topic", "freeze", *words, "--yes", code=2).stderr.strip()
    assert not CALLS


def test_it_asks_with_the_effect_and_the_words_of_the_dialog() -> None:
    words = ("topic", "freeze", "quotes", "2", "--on", "1")
    asked = run(*words, typed="n\n", code=1)
    question = "Freeze quotes? 9,007,199,254,740,993 records of quotes become read-only. It stays readable. [y/N]:"
    assert asked.stderr.startswith(question)
    assert [one["dry_run"] for one in CALLS] == [True]
    CALLS.clear()
    assert "9,007,199,254,740,993 records" in run(*words, typed="y\n").stdout
    assert [one["dry_run"] for one in CALLS] == [True, False]


def test_an_act_without_a_dry_run_is_not_called_before_the_answer() -> None:
    with_question = THAW._replace(asks=True, routes=(THAW.routes[0]._replace(dialog=Dialog("Thaw {group}", "Thaw")),))
    assert "Thaw engine? [y/N]:" in run("group", "thaw", "engine", typed="n\n", code=1, acts=[with_question]).stderr
    assert not CALLS
    run("group", "thaw", "engine", typed="y\n", acts=[with_question])
    assert len(CALLS) == 1


def test_a_dry_run_shows_the_effect_and_asks_nothing() -> None:
    words = ("topic", "freeze", "quotes", "2", "--on", "1", "--dry-run")
    shown = run(*words)
    line, _, columns, row = shown.stdout.splitlines()
    assert line == "9,007,199,254,740,993 records of quotes become read-only"
    assert (columns.split(), row.split()) == (["broker", "bytes"], ["1", "2.0", "KiB"])
    expected = {
        "dry_run": True, "topic": "quotes", "records": str(BIG), "parts": [{"broker": 1, "bytes": "2048"}], "left": 0
    }  # fmt: skip
    assert json.loads(run(*words, "--json").stdout) == expected
    assert [one["dry_run"] for one in CALLS] == [True, True]


def test_a_result_without_a_text_is_shown_as_its_numbers() -> None:
    assert run("group", "thaw", "engine").stdout == "group engine, slow bytes -\n"


def test_wait_repeats_the_dry_run_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_acts, "WAIT_S", 0)
    CALLS.left = 3
    words = ("topic", "freeze", "quotes", "2", "--on", "1", "--yes", "--wait", "--json")
    found = json.loads(run(*words).stdout)
    assert (found["left"], found["dry_run"]) == (0, False)
    assert [one["dry_run"] for one in CALLS] == [False, True, True]


def test_an_error_has_its_exit_code() -> None:
    failed = run("topic", "freeze", "quotes", "7", "--on", "1", "--yes", code=3)
    assert failed.stderr.startswith("error: topic 'quotes' has no partition 7 [PARTITION_NOT_FOUND]")


# ---- the route


class Catalog:
    """Counts the changes of topics."""

    def __init__(self) -> None:
        self.changed: list[str] = []

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        yield
        self.changed.append(name)


@pytest.fixture
async def catalog() -> Catalog:
    return Catalog()


@pytest.fixture
async def http(catalog: Catalog, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway with a token of each role, named like it; without brokers."""
    made = {role: new_token(role, role) for role in ("viewer", "operator")}
    (tmp_path / "tokens").write_text("".join(row for _, row in made.values()))
    app = create_app(GatewayConfig(tokens_file=str(tmp_path / "tokens")))
    async with comet.Admin("127.0.0.1:1") as admin:
        app.state.backend = SimpleNamespace(admin=admin, catalog=catalog)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            client.headers["authorization"] = f"Bearer {made['operator'][0]}"
            client.cookies.clear()
            client.tokens = {role: token for role, (token, _) in made.items()}  # type: ignore[attr-defined]
            yield client


PATH = "/v1/topics/quotes/partitions/2/freeze"


async def test_path_query_and_body_reach_the_method(http: httpx.AsyncClient, catalog: Catalog) -> None:
    answer = await http.post(PATH, json={"brokers": [2, 1]})
    assert answer.status_code == 200
    assert answer.json() == {
        "dry_run": False, "topic": "quotes", "records": str(BIG), "parts": [{"broker": 1, "bytes": "2048"}], "left": 0
    }  # fmt: skip
    assert CALLS.pop() == {"name": "quotes", "partition": 2, "brokers": [2, 1], **DEFAULTS}
    assert catalog.changed == ["quotes"]
    body = {"brokers": [3], "depth": "hard", "below": str(BIG), "retries": 0, "note": "ice", "room": 7, "force": True}
    assert (await http.post(f"{PATH}?dry_run=true", json=body)).json()["dry_run"]
    found = {**body, "depth": Depth.HARD, "below": BIG, "dry_run": True}
    assert CALLS.pop() == {"name": "quotes", "partition": 2, **found}
    assert catalog.changed == ["quotes"], "a dry run changes nothing"


async def test_fixed_arguments_are_no_part_of_a_request(http: httpx.AsyncClient) -> None:
    assert (await http.put(PATH, json={"brokers": [1]})).status_code == 200
    call = CALLS.pop()
    assert (call["depth"], call["force"]) == (Depth.HARD, True)
    assert (await http.put(PATH, json={"brokers": [1], "force": False})).status_code == 422


async def test_without_a_body_the_parameters_are_in_the_query(http: httpx.AsyncClient) -> None:
    answer = await http.delete("/v1/groups/engine/ice?most=9&gently=true")
    assert answer.json() == {"group": "engine", "slow_bytes": None}
    assert CALLS.pop() == {"name": "engine", "most": 9, "gently": True}
    for query in ("most=0", "most=10", "most=5.0", "gently=1", "dry_run=true", "most=1&most=2"):
        wrong = await http.delete(f"/v1/groups/engine/ice?{query}")
        assert (wrong.status_code, wrong.json()["code"]) == (422, "VALIDATION"), query
    assert not CALLS


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"brokers": []},
        {"brokers": [0]},
        {"brokers": ["1"]},
        {"brokers": [1, 2, 3, 4]},
        {"brokers": [1], "depth": "deep"},
        {"brokers": [1], "below": "soon"},
        {"brokers": [1], "retries": 10},
        {"brokers": [1], "retries": "3"},
        {"brokers": [1], "note": "ICE"},
        {"brokers": [1], "force": 1},
        {"brokers": [1], "colour": "red"},
    ],
)
async def test_bad_input_is_a_typed_problem(http: httpx.AsyncClient, body: Any) -> None:
    wrong = await http.post(PATH, json=body)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "VALIDATION")
    assert wrong.headers["content-type"] == "application/problem+json"
    assert not CALLS


@pytest.mark.parametrize("path", [PATH.replace("quotes", "no spaces"), PATH.replace("2", "x"), f"{PATH}?dryrun=true"])
async def test_a_wrong_path_or_query_is_a_typed_problem(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.post(path, json={"brokers": [1]})).json()["code"] == "VALIDATION"
    assert not CALLS


async def test_an_error_is_its_problem(http: httpx.AsyncClient) -> None:
    missing = await http.post(PATH.replace("2", "7"), json={"brokers": [1]})
    assert (missing.status_code, missing.json()["code"]) == (404, "PARTITION_NOT_FOUND")


async def test_it_needs_the_role_of_its_row(http: httpx.AsyncClient) -> None:
    http.headers["authorization"] = f"Bearer {http.tokens['viewer']}"  # type: ignore[attr-defined]
    refused = await http.post(PATH, json={"brokers": [1]})
    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
    assert (await http.delete("/v1/groups/engine/ice")).status_code == 200
    assert len(CALLS) == 1


def test_openapi_describes_it(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(new_token("me", "admin")[1])
    document = create_app(GatewayConfig(tokens_file=str(tmp_path / "tokens"))).openapi()
    item = document["paths"]["/v1/topics/{topic}/partitions/{partition}/freeze"]
    post, put = item["post"], item["put"]
    assert (post["operationId"], post["summary"], post["tags"]) == ("freezePartition", "Freeze a partition", ["topics"])
    assert post["description"].startswith("It takes no more writes.\n\nRequires the role operator")
    assert put["summary"] == "Freeze for good"
    found = {one["name"]: one for one in post["parameters"]}
    places = {"topic": "path", "partition": "path", "dry_run": "query"}
    assert {name: one["in"] for name, one in found.items()} == places
    assert found["partition"]["schema"]["maximum"] == 99_999
    assert "PARTITION_NOT_FOUND" in post["responses"]["404"]["description"]
    assert post["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Freezing")
    body = document["components"]["schemas"]["FreezePartitionBody"]
    assert body["required"] == ["brokers"]
    assert body["examples"] == [{"brokers": [2, 1]}]
    assert body["properties"]["retries"] == {
        "default": 3, "description": "Attempts.", "maximum": 9, "minimum": 0, "title": "Retries", "type": "integer"
    }  # fmt: skip
    validator = jsonschema_rs.Draft202012Validator({**body, "components": document["components"]})
    assert validator.is_valid({"brokers": [1], "depth": "hard", "below": str(BIG), "note": "ice", "force": True})
    for wrong in ({"brokers": [0]}, {"brokers": [1], "depth": "deep"}, {"brokers": [1], "colour": "red"}, {}):
        assert not validator.is_valid(wrong), wrong
    answer = document["components"]["schemas"]["Freezing"]
    assert answer["properties"]["records"]["description"] == "Records that can be read only."
    query = {one["name"]: one["schema"] for one in document["paths"]["/v1/groups/{group}/ice"]["delete"]["parameters"]}
    assert (query["most"]["maximum"], query["most"]["default"], query["gently"]["type"]) == (9, 5, "boolean")


# ---- parameters


@pytest.mark.parametrize(
    ("annotation", "default", "message"),
    [
        (Annotated[dict, Input("x")], {}, "takes bool, int, str"),
        (Annotated[int, Input("x")], 0, "lowest and highest"),
        (Annotated[bool, Input("x")], True, "default is False"),
        (int, 0, "describe it"),
    ],
)
def test_parameters_that_cannot_be_made_are_named(annotation: Any, default: Any, message: str) -> None:
    async def act(self: comet.Admin, strange=default) -> Freezing:  # type: ignore[no-untyped-def]
        raise NotImplementedError

    act.__annotations__["strange"] = annotation
    with pytest.raises(TypeError, match=rf"strange.*{message}"):
        parameters(act)
