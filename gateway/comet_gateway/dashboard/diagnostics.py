"""Facts about this gateway: for the page About, and as a diagnostics file for support.

The file is meant to be shared, so it holds no secrets and no untrusted text: of settings only those in SHOWN, of
statistics only numbers, and texts under the names in TEXTS.
"""

from __future__ import annotations

import asyncio
import json
import math
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any, Final

from fastapi import APIRouter, Request

import comet
from comet.errors import CometError
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.auth import Gatekeeper
from comet_gateway.http.raw_route import Answer, RawRoute, Reply
from comet_gateway.settings import SETTINGS
from comet_web import facts
from comet_web.page_request import PageRequest

router = APIRouter()

BROKER_S: Final = 3.0  # for the answer of one broker
EVENTS_MAX: Final = 200
ENTRIES_MAX: Final = 1_000  # of one list or table in the file
LEFT_OUT: Final = "[left out]"
STARTED_US: Final = time.time_ns() // 1_000
_LIMITS: Final = frozenset(field.name for field in fields(Limits))
# Settings whose value is shown, beside the limits. Of others only whether they are set.
SHOWN: Final = _LIMITS | {
    "bootstrap", "host", "port", "origins", "hosts", "proxies", "drain_s", "drain_notice_s", "docs", "dashboard",
    "quotes_topic", "cluster_name", "clusters", "log_level", "log_format", "oidc_issuer", "oidc_audience",
    "oidc_redirect_url", "oidc_scopes", "oidc_name_claim", "oidc_roles_claim", "oidc_session_s", "user_rules", "alerts",
    "alert_networks", "smtp_security",
}  # fmt: skip
# Names whose texts are in the file: given by the platform, or shown on every page anyway.
TEXTS: Final = frozenset({
    "address", "code", "cluster_id", "group", "groups", "host", "id", "kind", "name", "python", "machine", "platform",
    "rack", "reason", "role", "source", "state", "status", "text", "topic", "topics", "version", "versions",
    "problems", "taken_at", "failed", "failure", "setting",
})  # fmt: skip
_PACKAGES: Final = (
    ("grpcio", "the protocol to the brokers"),
    ("protobuf", "its messages"),
    ("aetcd", "metadata of a cluster"),
    ("crc32c", "checksums"),
    ("lz4", "compression"),
    ("zstandard", "compression"),
    ("msgspec", "JSON of records"),
    ("fastapi", "routes and the description of the API"),
    ("pydantic", "documents of the API"),
    ("starlette", "requests and answers"),
    ("uvicorn", "serving HTTP"),
    ("httptools", "reading HTTP"),
    ("uvloop", "the event loop"),
    ("websockets", "WebSockets"),
    ("jinja2", "these pages"),
    ("prometheus-client", "the form of metrics"),
    ("fastapi-offline", "the page of the API"),
    ("typer", "the command line"),
    ("rich", "the command line"),
    ("pyarrow", "Arrow and Parquet, where it is installed"),
)


# ---- the page


async def about(sources: Sources, request: PageRequest) -> facts.About:
    """The facts of the page About."""
    return _about(sources.config, sources.gatekeeper, request.now_us)


def _about(config: GatewayConfig, keeper: Gatekeeper, now_us: int) -> facts.About:
    return facts.About(
        time_us=now_us,
        version=comet.__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        machine=f"{platform.system()} {platform.release()}, {platform.machine()}",
        started_us=STARTED_US,
        bootstrap=config.bootstrap,
        packages=packages(),
        settings=settings(config),
        logins=tuple(
            facts.Login(principal.name, int(principal.role))
            for principal in sorted(keeper.known(), key=lambda principal: principal.name)
        ),
    )


@cache
def packages() -> tuple[facts.Package, ...]:
    """The relevant packages that are installed."""
    found = [facts.Package("comet-stream", comet.__version__, _licence("comet-stream"), "Comet itself")]
    for name, about in _PACKAGES:
        try:
            version = str(metadata(name)["Version"])
        except PackageNotFoundError:
            continue
        found.append(facts.Package(name, version, _licence(name), about))
    return tuple(found)


def _licence(name: str) -> str:
    """The licence of a package; packages declare it in different fields."""
    try:
        declared = metadata(name)
    except PackageNotFoundError:
        return ""
    for field in ("License-Expression", "License"):
        text = declared[field] if field in declared else ""  # noqa: SIM401 - its type has no `get`
        if text and "\n" not in text and len(text) <= 60 and text != "UNKNOWN":
            return text
    classified = [one.rpartition(" :: ")[2] for one in declared.get_all("Classifier", []) if one.startswith("License")]
    return ", ".join(classified)


def settings(config: GatewayConfig) -> tuple[facts.Setting, ...]:
    """The settings of this gateway, without secrets."""
    found = []
    for row in SETTINGS:
        value = getattr(config.limits if row.name in _LIMITS else config, row.name)
        changed = value != row.default
        if row.name in SHOWN:
            shown = replace(row, default=tuple(value) if isinstance(value, list) else value).shown_default
        else:
            shown = "set" if value else ""
        found.append(
            facts.Setting(
                name=row.name,
                value=", ".join(value) if isinstance(value, tuple) and row.name in SHOWN else shown,
                default=row.shown_default,
                source="set" if changed else "default",
                about=row.about,
            )
        )
    return tuple(found)


# ---- the file


async def collected(sources: Sources, now_us: int) -> dict[str, Any]:
    """The content of the file, without secrets."""
    gateway = _about(sources.config, sources.gatekeeper, now_us)
    cluster = await sources.sampler.cluster()
    brokers = await asyncio.gather(*(_broker(sources, broker.id) for broker in cluster.brokers))
    content: dict[str, Any] = {
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_us / 1e6)),
        "time_us": now_us,
        "version": gateway.version,
        "python": f"{gateway.python}, {sys.byteorder}-endian",
        "machine": gateway.machine,
        "started_us": gateway.started_us,
        "versions": {one.name: one.version for one in gateway.packages},
        "settings": {one.name: {"setting": one.value, "source": one.source} for one in gateway.settings},
        "logins": [asdict(one) for one in gateway.logins],
        "gateway": {
            "traffic": sources.traffic.statistics(),
            "hub": sources.hub.statistics(),
            "sampler": sources.sampler.statistics(),
            "refused_tokens": sources.gatekeeper.refused,
            "tasks": len(asyncio.all_tasks()),
        },
        "cluster": _cluster(cluster),
        "brokers": {str(broker.id): answer for broker, answer in zip(cluster.brokers, brokers, strict=True)},
    }
    safe: dict[str, Any] = redacted(content)
    return safe


async def _broker(sources: Sources, broker: int) -> Mapping[str, Any]:
    try:
        async with asyncio.timeout(BROKER_S):
            return await sources.sampler.admin_of(broker).statistics(brief=True)
    except TimeoutError:
        return {"failure": f"no answer in {BROKER_S:.0f} s"}
    except CometError as error:
        return {"failure": error.code}


def _cluster(cluster: facts.Cluster) -> dict[str, Any]:
    """The cluster without data of charts."""
    return {
        "time_us": cluster.time_us,
        "cluster_id": cluster.cluster_id,
        "reachable": cluster.reachable,
        "controller": cluster.controller,
        "brokers": [asdict(broker) for broker in cluster.brokers],
        "topics": [asdict(replace(topic, trend=None)) for topic in cluster.topics.values()],
        "groups": [asdict(replace(group, trend=None)) for group in cluster.groups.values()],
        "events": [asdict(event) for event in cluster.events[:EVENTS_MAX]],
    }


def redacted(value: Any, name: str = "") -> Any:
    """The value without texts, except under names that hold no secrets."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int():
            return value
        case str():
            return value if name in TEXTS else LEFT_OUT
        case Mapping():
            inside = "versions" if name == "versions" else ""
            return {str(key): redacted(one, inside or str(key)) for key, one in _first(value.items())}
        case list() | tuple() | set() | frozenset():
            return [redacted(one, name) for one in _first(value)]
        case _:
            return LEFT_OUT


def _first(values: Any) -> list[Any]:
    return [one for one, _ in zip(values, range(ENTRIES_MAX), strict=False)]


async def diagnostics(request: Request) -> Answer:
    """The file."""
    now_us = time.time_ns() // 1_000
    content = await collected(request.app.state.sources, now_us)
    name = time.strftime("comet-diagnostics-%Y%m%dT%H%M%SZ.json", time.gmtime(now_us / 1e6))
    body = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False, default=str).encode()
    return Reply(body, headers={"content-disposition": f'attachment; filename="{name}"'})


router.routes.append(RawRoute("/about/diagnostics.json", diagnostics, methods=["GET"], include_in_schema=False))
