"""The metrics and labels that rules and dashboards name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
OF_PROMETHEUS: Final = frozenset({"job", "instance", "le"})
_SELECTOR: Final = re.compile(r"\b((?:\w+:)?comet_\w+(?::\w+)?)(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_GROUPING: Final = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
_LEGEND: Final = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
_QUERY: Final = re.compile(r"label_values\((\w+)(?:\{[^}]*\})?, (\w+)\)")


class Expression(NamedTuple):
    """An expression of PromQL, and the texts that name labels of its result."""

    where: str
    text: str
    legends: str = ""

    @property
    def selectors(self) -> Iterator[tuple[str, set[str]]]:
        """Each metric, with the labels by which it is selected."""
        for metric, matchers in _SELECTOR.findall(self.text):
            yield metric, set(_MATCHER.findall(matchers)) - OF_PROMETHEUS

    @property
    def metrics(self) -> set[str]:
        return {metric for metric, _ in self.selectors}

    @property
    def labels(self) -> set[str]:
        """Those that it groups by, or that its legends show."""
        grouped = {label.strip() for text in _GROUPING.findall(self.text) for label in text.split(",")}
        return (grouped | set(_LEGEND.findall(self.legends))) - OF_PROMETHEUS - {""}


def rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[Expression]:
    """All of the rules and dashboards."""
    found = [
        Expression(rule.get("alert") or rule["record"], rule["expr"], " ".join(rule.get("annotations", {}).values()))
        for name in ("recording.yml", "alerts.yml")
        for rule in rules(name)
    ]
    for path in sorted((DEPLOY / "grafana").glob("*.json")):
        board = json.loads(path.read_text())
        for variable in board["templating"]["list"]:
            found += [Expression(path.name, metric, f"{{{{{label}}}}}") for metric, label in _queries(variable)]
        for panel in board["panels"]:
            where = f"{path.name}: {panel['title']}"
            found += [Expression(where, one["expr"], one.get("legendFormat", "")) for one in panel.get("targets", ())]
    return found


def _queries(variable: Mapping[str, Any]) -> list[tuple[str, str]]:
    return _QUERY.findall(variable.get("definition", ""))


def unknown(found: Expression, shown: Mapping[str, set[str]]) -> list[str]:
    """What it names and is not shown: metrics, labels of a selector, and labels that none of its metrics has."""
    missing = [f"{metric}" for metric in found.metrics if metric not in shown]
    missing += [
        f"{metric}{{{label}}}"
        for metric, labels in found.selectors
        for label in labels
        if label not in shown.get(metric, labels)
    ]
    had = set().union(*(shown.get(metric, set()) for metric in found.metrics))
    missing += [f"label {label}" for label in sorted(found.labels - had) if found.metrics]
    return [f"{found.where}: {one}" for one in missing]
