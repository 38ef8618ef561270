"""Strict validation of objects: by the schemas of Kubernetes itself, and for kinds of operators by `OPERATORS`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Final

import jsonschema
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.deploy.chart import Object
from tests.deploy.tools import find_schema

_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT, "minItems": 1}
_SELECTOR: Final = {
    "type": "object",
    "required": ["matchLabels"],
    "additionalProperties": False,
    "properties": {"matchLabels": {"type": "object", "additionalProperties": _TEXT}},
}


def _closed(required: str, **properties: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    names = required.split()
    return {"type": "object", "additionalProperties": False, "required": names, "properties": properties}


_KEY_OF_SECRET: Final = _closed("name key", name=_TEXT, key=_TEXT)
_ENDPOINT: Final = {
    "port": _TEXT,
    "path": _TEXT,
    "interval": _TEXT,
    "scheme": {"enum": ["http", "https"]},
    "authorization": _closed("credentials", type=_TEXT, credentials=_KEY_OF_SECRET),
    "tlsConfig": _closed("", serverName=_TEXT, ca=_closed("secret", secret=_KEY_OF_SECRET)),
}

# Kinds that operators define. Their schemas do not come with Kubernetes: these have the part that the chart uses, and
# refuse all else.
OPERATORS: Final[Mapping[tuple[str, str], dict[str, Any]]] = {
    ("cert-manager.io/v1", "Issuer"): {
        "oneOf": [
            _closed("selfSigned", selfSigned={"type": "object", "maxProperties": 0}),
            _closed("ca", ca=_closed("secretName", secretName=_TEXT)),
        ]
    },
    ("cert-manager.io/v1", "Certificate"): _closed(
        "secretName issuerRef",
        secretName=_TEXT,
        isCA={"type": "boolean"},
        commonName={"type": "string", "maxLength": 64},
        duration={"type": "string", "pattern": "^[0-9]+h$"},
        renewBefore={"type": "string", "pattern": "^[0-9]+h$"},
        privateKey=_closed(
            "algorithm size encoding rotationPolicy",
            algorithm={"enum": ["ECDSA", "RSA", "Ed25519"]},
            size={"enum": [256, 384, 521]},
            encoding={"enum": ["PKCS1", "PKCS8"]},
            rotationPolicy={"enum": ["Always", "Never"]},
        ),
        usages={"type": "array", "items": {"enum": ["digital signature", "server auth", "client auth"]}},
        uris=_TEXTS,
        dnsNames=_TEXTS,
        ipAddresses=_TEXTS,
        issuerRef=_closed("name kind", name=_TEXT, kind=_TEXT, group=_TEXT),
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): _closed(
        "selector podMetricsEndpoints",
        selector=_SELECTOR,
        podMetricsEndpoints={"type": "array", "items": _closed("port", **_ENDPOINT)},
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _closed(
        "selector endpoints", selector=_SELECTOR, endpoints={"type": "array", "items": _closed("port", **_ENDPOINT)}
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _closed(
        "groups",
        groups={
            "type": "array",
            "minItems": 1,
            "items": _closed("name rules", name=_TEXT, interval=_TEXT, rules={"type": "array", "minItems": 1}),
        },
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _closed(
        "parentRefs hostnames rules",
        parentRefs={"type": "array", "items": _closed("name", name=_TEXT, namespace=_TEXT, sectionName=_TEXT)},
        hostnames=_TEXTS,
        rules={
            "type": "array",
            "items": _closed(
                "backendRefs",
                matches={
                    "type": "array",
                    "items": _closed("path", path=_closed("type value", type=_TEXT, value=_TEXT)),
                },
                timeouts=_closed("", request=_TEXT),
                backendRefs={
                    "type": "array",
                    "items": _closed("name port", name=_TEXT, port={"type": "integer"}),
                },
            ),
        },
    ),
}


def problems(made: Object, version: str) -> list[str]:
    """What an API server of this version of Kubernetes would refuse; unknown fields included."""
    key = (made["apiVersion"], made["kind"])
    if key in OPERATORS:
        rest = {name: value for name, value in made.items() if name not in {"apiVersion", "kind", "metadata"}}
        errors = [*_of_operator(key).iter_errors(rest.pop("spec"))]
        found = [f"/spec{_where(error)}: {error.message}" for error in errors]
        return found + [f"/{name}: unknown" for name in rest] + _problems_of("ObjectMeta", made["metadata"], version)
    if key not in _kinds(version):
        return [f"Kubernetes {version} has no {key[1]} of {key[0]}"]
    return [
        f"{_where(error)}: {error.message}" for error in _validator(version, _kinds(version)[key]).iter_errors(made)
    ]


def _problems_of(definition: str, value: object, version: str) -> list[str]:
    validator = _validator(version, f"io.k8s.apimachinery.pkg.apis.meta.v1.{definition}")
    return [f"/metadata{_where(error)}: {error.message}" for error in validator.iter_errors(value)]


def _where(error: jsonschema.ValidationError) -> str:
    return "".join(f"/{step}" for step in error.absolute_path)


@functools.cache
def _document(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(find_schema(version).read_text())
    return found


@functools.cache
def _kinds(version: str) -> dict[tuple[str, str], str]:
    """The definition of each kind, by its apiVersion and name."""
    return {
        (f"{one['group']}/{one['version']}".removeprefix("/"), one["kind"]): name
        for name, definition in _document(version)["$defs"].items()
        for one in definition.get("x-kubernetes-group-version-kind", ())
    }


@functools.cache
def _validator(version: str, definition: str) -> jsonschema.Draft202012Validator:
    document = _document(version)
    registry: Registry[Any] = Registry().with_resource(
        document["$id"], Resource.from_contents(document, default_specification=DRAFT202012)
    )
    return jsonschema.Draft202012Validator({"$ref": f"{document['$id']}#/$defs/{definition}"}, registry=registry)


@functools.cache
def _of_operator(key: tuple[str, str]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(OPERATORS[key])
