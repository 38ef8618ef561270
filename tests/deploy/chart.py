"""The chart as the tests see it: rendered by helm, its objects, their environment, and the schema of settings.

`python -m tests.deploy.chart` writes the settings into values.schema.json again, after a server's table has changed.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from comet.settings.server import Setting
from comet_broker import settings as broker_settings
from comet_gateway import settings as gateway_settings
from tests.deploy.tools import find_helm
from tests.tidy.tree import ROOT

CHART: Final = ROOT / "deploy/helm/comet"
VALUES: Final = Path(__file__).parent / "values"
SETS: Final = tuple(sorted(path.stem for path in VALUES.glob("*.yaml")))
RELEASE: Final = "comet"
NAMESPACE: Final = "streams"
HELM_S_MAX: Final = 60.0
VERSION: Final = re.compile(r"^version: (\S+)", re.MULTILINE)

Object: TypeAlias = dict[str, Any]
LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the former where PyYAML was built with its library

# Settings that the chart writes itself, so that they agree with ports, volumes and certificates.
OF_BROKERS: Final = frozenset({
    "id", "data", "host", "port", "advertised_host", "advertised_port", "wire_port", "advertised_wire_port",
    "clients_cert", "clients_key", "clients_ca", "superusers", "gateways", "brokers_host", "brokers_port",
    "brokers_wire_port", "brokers_advertised_host", "brokers_cert", "brokers_key", "brokers_ca", "insecure",
    "metrics_port", "metrics_token", "rack", "etcd", "etcd_user", "etcd_password", "etcd_ca", "etcd_cert", "etcd_key",
    "cluster",
})  # fmt: skip
OF_GATEWAYS: Final = frozenset({"bootstrap", "host", "port", "tls_cert", "tls_key"})


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_helm(), *arguments], check=False, capture_output=True, text=True, timeout=HELM_S_MAX, cwd=ROOT
    )


def template(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What helm makes of a set of values, by the name of its file."""
    where = ("--namespace", NAMESPACE, "--values", str(VALUES / f"{name}.yaml"))
    return helm("template", RELEASE, str(CHART), *where, *arguments)


@functools.cache
def rendered(name: str) -> str:
    run = template(name)
    assert run.returncode == 0, run.stderr
    return run.stdout


def objects(name: str) -> list[Object]:
    """The objects of a set of values, new ones for each call."""
    made: list[Object] = json.loads(_as_json(name))
    return made


@functools.cache
def _as_json(name: str) -> str:
    return json.dumps(parsed(rendered(name)))  # JSON is read a hundred times as fast as YAML


def parsed(text: str) -> list[Object]:
    return [found for found in yaml.load_all(text, Loader=LOADER) if found]


def found(name: str, kind: str, ending: str = "") -> Object:
    """The one object of a kind whose name ends so."""
    (one,) = (it for it in objects(name) if it["kind"] == kind and it["metadata"]["name"].endswith(ending))
    return one


def workloads(name: str) -> list[Object]:
    return [one for one in objects(name) if one["kind"] in {"StatefulSet", "Deployment"}]


def pod_specs(name: str) -> Iterator[tuple[str, Object]]:
    """The names and specifications of all pods, that of `helm test` included."""
    for one in objects(name):
        if one["kind"] in {"StatefulSet", "Deployment"}:
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one["spec"]


def environment(container: Object, fields: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """A container's environment as the kubelet makes it: fields of the pod and keys of secrets, then $(NAME) of earlier
    variables."""
    made: dict[str, str] = {}
    for one in container["env"]:
        source = one.get("valueFrom", {})
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            value = secrets["{name}/{key}".format_map(source["secretKeyRef"])]
        else:
            value = one["value"]
        made[one["name"]] = re.sub(r"\$\((\w+)\)", lambda match: made.get(match[1], match[0]), value)
    return made


def pod_fields(pod: str, number: int, zone: str = "") -> dict[str, str]:
    """What the downward API says of a pod of a StatefulSet."""
    return {
        "metadata.name": pod,
        "metadata.labels['apps.kubernetes.io/pod-index']": str(number),
        "metadata.labels['topology.kubernetes.io/zone']": zone,
    }


def settings_schema(rows: Mapping[str, Setting], own: frozenset[str]) -> Object:
    """The schema of `settings`: the names that a server knows, without those that the chart writes itself."""
    properties: Object = {}
    for row in rows.values():
        if row.name not in own and not row.secret:
            properties[row.name] = _shape(row) | {"description": row.about}
    return {"type": "object", "additionalProperties": False, "properties": dict(sorted(properties.items()))}


def _shape(row: Setting) -> Object:
    match row.kind:
        case "switch":
            return {"type": "boolean"}
        case "number":
            return {"type": "integer", "minimum": row.low, "maximum": row.high}
        case "words" | "addresses":
            return {"type": "array", "items": {"type": "string"}}
        case "bytes" | "duration" | "seconds":
            return {"type": ["string", "integer"]}
        case "value" if not row.words:
            return {"type": ["string", "integer"]}
    return {"type": "string", "enum": list(row.choices)} if row.choices else {"type": "string"}


def made_schema() -> str:
    """values.schema.json with the settings that the servers know now."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    schema["$defs"]["brokerSettings"] = settings_schema(broker_settings.BY_NAME, OF_BROKERS)
    schema["$defs"]["gatewaySettings"] = settings_schema(gateway_settings.TABLE.by_name, OF_GATEWAYS)
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    (CHART / "values.schema.json").write_text(made_schema())
