"""The file of `comet apply`: from its tree to a declaration, with all problems at once.

    name: trading                  # under which the cluster remembers what was made
    topics:
      orders:
        partitions: 4              # at least; without it one, or those that there are
        replicas: 3                # without it the cluster's default, or those that there are
        settings:
          retention_ms: 7d
    rules:                         # as `comet acl export` prints them
      - allow client:billing read,describe topic orders
    roles:
      role:finance: [client:billing]
    quotas:
      client:billing: {bytes_in: 10MiB, requests: 200}

Values are checked by the tables and functions that the commands for single objects and the brokers use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from comet.cli._acl_file import broker_rule, member_of, rule_of
from comet.cli._values import setting_of
from comet.cli.apply.declaration import LIMITS, Declaration, DeclaredTopic
from comet.cli.apply.yaml_tree import TEXT, Problem, Value, read_tree, refuse
from comet.errors import InvalidArgument
from comet.settings.topic import REPLICAS_MAX
from comet.types import check_topic_name, is_internal_topic
from comet.units import parse_number, parse_value

if TYPE_CHECKING:
    from comet.admin.quotas import Quota
    from comet.admin.rules import RoleMember, Rule

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DECIMAL: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_SECTIONS: Final = ("name", "topics", "rules", "roles", "quotas")
_OF_TOPIC: Final = ("partitions", "replicas", "settings")


def read_cluster_file(file: str, data: bytes) -> Declaration:
    """Raises InvalidArgument, with every problem and its line."""
    tree, problems = read_tree(file, data)
    reader = _FileReader(problems)
    found = reader.read(tree)
    refuse(file, reader.problems)
    return found


class _FileReader:
    """Reads one tree; adds its problems to those that are known."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def read(self, tree: Value) -> Declaration:
        parts = dict(self._fields(tree, "the file", _SECTIONS))
        return Declaration(
            name=self._name(parts["name"]) if "name" in parts else "",
            topics=dict(self._topics(parts.get("topics"))),
            rules=dict(self._rules(parts.get("rules"))),
            members=dict(self._members(parts.get("roles"))),
            quotas=dict(self._quotas(parts.get("quotas"))),
        )

    def _problem(self, line: int, text: str) -> None:
        self.problems.append(Problem(line, text))

    # ---- sections

    def _name(self, value: Value) -> str:
        text = self._text(value, "name") or ""
        if text and not NAME.fullmatch(text):
            self._problem(value.line, f"invalid name {text!r}: use 1 to 100 letters, digits, '.', '_' and '-'")
        return text

    def _topics(self, section: Value | None) -> Iterator[tuple[str, DeclaredTopic]]:
        for key, value in self._named(section, "topics", "a mapping of names to topics"):
            try:
                check_topic_name(key.text)
            except InvalidArgument as error:
                self._problem(key.line, error.message)
            if is_internal_topic(key.text):
                self._problem(key.line, f"{key.text!r} is an internal topic, which only Comet makes")
            if value.kind == "null":
                yield key.text, DeclaredTopic(key.text, lines={"": key.line})
                continue
            fields = dict(self._fields(value, f"topic {key.text!r}", _OF_TOPIC))
            lines = {"": key.line} | {name: one.line for name, one in fields.items()}
            settings = self._settings(fields.get("settings"), key.text, lines)
            yield (
                key.text,
                DeclaredTopic(
                    key.text,
                    self._number(fields.get("partitions"), "partitions", _partitions_max()),
                    self._number(fields.get("replicas"), "replicas", REPLICAS_MAX),
                    settings,
                    lines,
                ),
            )

    def _settings(self, section: Value | None, topic: str, lines: dict[str, int]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in self._named(section, f"settings of topic {topic!r}", "a mapping"):
            try:
                row = setting_of(key.text)
                if row.name in found:
                    raise InvalidArgument(f"{row.name} is given twice")
                text = self._word(value, row.name)
                if text is not None:
                    found[row.name] = row.parse(text)
                    lines[row.name] = key.line
            except InvalidArgument as error:
                self._problem(key.line, error.message)
        return found

    def _rules(self, section: Value | None) -> Iterator[tuple[str, Rule]]:
        known: dict[str, int] = {}
        for item, text in self._lines(section, "rules", "a list of lines, as comet acl export prints them"):
            try:
                rule = rule_of(text)
                broker_rule(rule)
            except (ValueError, InvalidArgument) as error:
                self._problem(item.line, str(getattr(error, "message", error)))
                continue
            rule = replace(rule, operations=tuple(sorted(set(rule.operations))))  # as brokers list it
            first = known.setdefault(str(rule), item.line)
            if first != item.line:
                self._problem(item.line, f"{str(rule)!r} is given twice, first in line {first}")
            yield str(rule), rule

    def _members(self, section: Value | None) -> Iterator[tuple[str, RoleMember]]:
        for key, value in self._named(section, "roles", "a mapping of roles to lists of principals"):
            for item, text in self._lines(value, f"the members of {key.text}", "a list of principals"):
                try:
                    member = member_of(key.text, text)
                except (ValueError, InvalidArgument) as error:
                    self._problem(item.line, str(getattr(error, "message", error)))
                    continue
                yield str(member), member

    def _quotas(self, section: Value | None) -> Iterator[tuple[str, Quota]]:
        from comet.admin.quotas import RATE_MAX, Quota
        from comet_broker.core import quotas as broker

        for key, value in self._named(section, "quotas", "a mapping of principals to limits"):
            limits: dict[str, Any] = {}
            for name, given in self._fields(value, f"the quota of {key.text!r}", LIMITS):
                try:
                    text = self._word(given, name)
                    if text is None:
                        continue
                    limits[name] = parse_value(name, "bytes" if name.startswith("bytes") else "", text)
                    if not 0 <= limits[name] <= RATE_MAX:
                        raise InvalidArgument(f"{name} is from 0 to {RATE_MAX}, not {limits[name]}")
                except InvalidArgument as error:
                    self._problem(given.line, error.message)
            try:
                broker.check_quota(broker.Quota(key.text, **limits))
            except InvalidArgument as error:
                self._problem(key.line, error.message)
                continue
            yield key.text, Quota(key.text, **limits)

    # ---- parts

    def _named(self, section: Value | None, what: str, form: str) -> Sequence[tuple[Value, Value]]:
        """The members of a mapping with any names."""
        if section is None:
            return ()
        if section.kind != "mapping":
            self._problem(section.line, f"{what} is {form}, not {section.shown}")
        return section.members

    def _fields(self, value: Value, what: str, known: Sequence[str]) -> Iterator[tuple[str, Value]]:
        """The members of a mapping with known names."""
        for key, member in self._named(value, what, f"a mapping of {', '.join(known)}"):
            if key.text in known:
                yield key.text, member
                continue
            near = "".join(f"; did you mean {one}?" for one in get_close_matches(key.text, known, 1))
            self._problem(key.line, f"{what} has no field {key.text!r}{near or '; use ' + ', '.join(known)}")

    def _lines(self, section: Value | None, what: str, form: str) -> Iterator[tuple[Value, str]]:
        """The texts of a list, each once."""
        if section is None:
            return
        if section.kind != "list":
            self._problem(section.line, f"{what}: {form}, not {section.shown}")
        known: dict[str, int] = {}
        for item in section.items:
            text = self._text(item, what)
            if text is None:
                continue
            if text in known:
                self._problem(item.line, f"{text!r} is given twice, first in line {known[text]}")
                continue
            known[text] = item.line
            yield item, text

    def _text(self, value: Value, what: str) -> str | None:
        if value.kind == TEXT and value.text:
            return value.text
        quoted = ": put it in quotes" if value.text and value.kind not in ("list", "mapping") else ""
        self._problem(value.line, f"{what}: text is needed, not {value.shown}{quoted}")
        return None

    def _word(self, value: Value, what: str) -> str | None:
        """The text of a value that may be a number."""
        if value.kind == "int" and not _DECIMAL.fullmatch(value.text):
            self._problem(value.line, f"{what}: write {value.text} as a decimal number without leading zeros")
        elif value.kind in ("bool", "null", "list", "mapping"):
            self._problem(value.line, f"{what} has a value, not {value.shown}")
        else:
            return value.text
        return None

    def _number(self, value: Value | None, what: str, high: int) -> int | None:
        if value is None:
            return None
        try:
            text = self._word(value, what)
            if text is None:
                return None
            number = parse_number(what, text)
            if not 1 <= number <= high:
                raise InvalidArgument(f"{what} must be from 1 to {high}, not {number}")
        except InvalidArgument as error:
            self._problem(value.line, error.message)
            return None
        return number


def _partitions_max() -> int:
    from comet.admin.parameters import PARTITIONS_MAX

    return PARTITIONS_MAX
