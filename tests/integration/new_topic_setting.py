"""Comet with one more topic setting, `probe_ms`, of which there is a field of TopicConfig and one of the protocol, and
nothing else: `python -m tests.integration.new_topic_setting` prints where it appears, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

ROW = (
    '    probe_ms: int = _setting(int, 1000, "ms", "Probe interval", "How often it is probed.", low=1, high=9_000)\n\n'
)
NEXT = "    def __post_init__(self) -> None:\n        for name, row in TOPIC_SETTINGS"


def add_row() -> None:
    spec = find_spec("comet.settings.topic")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text()
    assert NEXT in source
    module = sys.modules["comet.settings.topic"] = module_from_spec(spec)
    exec(compile(source.replace(NEXT, ROW + NEXT), spec.origin, "exec"), module.__dict__)


def add_field() -> None:
    pool = descriptor_pool.Default()

    def add(serialized: bytes) -> Any:
        file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
        for message in file.message_type:
            if message.name == "TopicConfig":
                field = message.field.add(name="probe_ms", number=99, type="TYPE_UINT64", label="LABEL_OPTIONAL")
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name="_probe_ms")
        return pool.AddSerializedFile(file.SerializeToString())

    altered: Any = SimpleNamespace(AddSerializedFile=add)
    descriptor_pool.Default = lambda: altered
    import comet.v1.types_pb2  # noqa: F401

    descriptor_pool.Default = lambda: pool


async def appearances() -> dict[str, object]:
    import httpx
    from typer.testing import CliRunner

    import comet
    import comet.testing
    from comet.cli import _topic_flags, topic
    from comet_broker.settings import BY_NAME
    from comet_gateway.dashboard import build_facts, facts
    from comet_web.facts import Cluster, TopicDetail
    from comet_web.page_request import PageRequest
    from comet_web.views import topic_config
    from tests.integration.resources_client import api

    def row(items: list[dict[str, Any]]) -> dict[str, Any]:
        return next(one for one in items if one["name"] == "probe_ms")

    def flag(command: str) -> bool:
        return "--probe-ms" in CliRunner().invoke(topic.app, [command, "--help"]).output

    async with comet.testing.broker(probe_ms=2_000) as broker, api(broker.address) as http:
        made: httpx.Response = await http.client.post("/v1/topics", json={"name": "t", "config": {"probe_ms": "5000"}})
        first = await http.get("/topics/t")
        info = await http.admin.describe_topic("t")
        detail = TopicDetail(
            Cluster(time_us=0), build_facts.topic_with_leaders(info).topic, (), facts.topic_settings(info)
        )
        page = topic_config.view(detail, PageRequest(path="/topics/t/config", now_us=0))
        await http.ask("PATCH", "/topics/t", {"unset": ["probe_ms"]})
        then = await http.admin.describe_topic("t")
        schema = (await http.client.get("/openapi.json")).json()["components"]["schemas"]
        listed = row((await http.get("/topic-settings"))["items"])
    return {
        "created": made.json()["config"]["probe_ms"],
        "described": [first["config"]["probe_ms"], first["sources"]["probe_ms"], first["defaults"]["probe_ms"]],
        "unset": [then.config.plain()["probe_ms"], then.source("probe_ms").value],
        "listed": [listed["label"], listed["default"], listed["source"]],
        "schemas": sorted(name for name, one in schema.items() if "probe_ms" in one.get("properties", {})),
        "page": [
            cell.text for cell in next(one for one in page.tables["settings"].rows if one.key == "probe_ms").cells
        ],
        "flags": {command: flag(command) for command in ("create", "alter")},
        "broker": BY_NAME["topic_probe_ms"].flag,
        "docs": "| `probe_ms` | 1s | 1ms to 9s | How often it is probed. |" in _topic_flags.markdown(),
    }


if __name__ == "__main__":
    add_row()
    add_field()
    print(json.dumps(asyncio.run(appearances())))
