"""What a broker is told: one table, three ways in one order, and errors that say where the trouble stands."""

from __future__ import annotations

import re
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from comet.errors import InvalidArgument
from comet.settings.topic import TOPIC_SETTINGS, TopicSetting, plain
from comet_broker.config import BrokerConfig
from comet_broker.settings import BY_NAME, SETTINGS, LoadedSettings, described, load, markdown
from tests.tidy.tree import ROOT


def told(*words: str, file: str = "", folder: Path | None = None, **environ: Any) -> LoadedSettings:
    flags = dict(zip(words[::2], words[1::2], strict=True))
    if folder is not None:
        path = folder / "comet.toml"
        path.write_text(file)
        flags["--config"] = str(path)
    return load({flag[2:].replace("-", "_"): text for flag, text in flags.items()}, environ)


def test_nothing_given_is_the_defaults() -> None:
    found = told()
    assert found.config == BrokerConfig(data=Path("comet-data"))
    assert found.log_level == "warning"


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = 'port = 1111\nrack = "of the file"\nsession_ms = "7s"\n'
    found = told(
        "--port", "3333", file=file, folder=tmp_path, COMET_PORT="2222", COMET_RACK="of the environment"
    ).config
    assert (found.port, found.rack, found.session_ms) == (3333, "of the environment", 7_000)


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "comet.toml"
    path.write_text("port = 4444\n")
    assert load({}, {"COMET_CONFIG": str(path)}).config.port == 4444
    with pytest.raises(InvalidArgument, match="cannot read the settings file"):
        load({}, {"COMET_CONFIG": str(tmp_path / "none.toml")})


def test_every_field_of_the_configuration_can_be_set() -> None:
    named = {"broker_id" if name == "id" else name for name in BY_NAME if not name.startswith("topic_")}
    assert named - {"log_level", "log_format"} == {f.name for f in fields(BrokerConfig)} - {"topic_defaults"}
    topic = {name.removeprefix("topic_") for name in BY_NAME if name.startswith("topic_")}
    assert topic == {name for name, row in TOPIC_SETTINGS.items() if row.cluster}


def topic_example(row: TopicSetting) -> tuple[str, object, Any]:
    """Another value than the default."""
    value = next(word for word in row.type if word is not row.default) if issubclass(row.type, Enum) else row.high
    return row.format(value), plain(value), value


EXAMPLES: dict[str, tuple[str, object, Any]] = {
    # setting: as text, as TOML, what it becomes
    "id": ("2", 2, 2),
    "data": ("/srv/comet", "/srv/comet", Path("/srv/comet")),
    "host": ("0.0.0.0", "0.0.0.0", "0.0.0.0"),
    "port": ("0", 0, 0),
    "advertised_host": ("b1", "b1", "b1"),
    "advertised_port": ("19092", 19092, 19092),
    "wire": ("no", "no", False),
    "wire_socket": ("no", "no", False),
    "wire_port": ("9094", 9094, 9094),
    "advertised_wire_port": ("19094", 19094, 19094),
    "clients_cert": ("/c.pem", "/c.pem", Path("/c.pem")),
    "clients_key": ("/k.pem", "/k.pem", Path("/k.pem")),
    "clients_ca": ("/ca.pem", "/ca.pem", Path("/ca.pem")),
    "access_keys": ("/keys.toml", "/keys.toml", Path("/keys.toml")),
    "jwt_issuer": ("https://i.example", "https://i.example", "https://i.example"),
    "jwt_audience": ("comet", "comet", "comet"),
    "jwt_keys": ("/keys.json", "/keys.json", "/keys.json"),
    "jwt_claim": ("email", "email", "email"),
    "jwt_roles": ("groups", "groups", "groups"),
    "superusers": ("client:admin", ["client:admin"], ("client:admin",)),
    "gateways": ("client:gateway", ["client:gateway"], ("client:gateway",)),
    "audit": ("no", "no", False),
    "brokers_host": ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
    "brokers_port": ("0", 0, 0),
    "brokers_wire_port": ("9095", 9095, 9095),
    "brokers_advertised_host": ("b1", "b1", "b1"),
    "brokers_cert": ("/c.pem", "/c.pem", Path("/c.pem")),
    "brokers_key": ("/k.pem", "/k.pem", Path("/k.pem")),
    "brokers_ca": ("/ca.pem", "/ca.pem", Path("/ca.pem")),
    "insecure": ("yes", "yes", True),
    "metrics_port": ("9095", 9095, 9095),
    "metrics_token": ("hush", "hush", "hush"),
    "metrics_hosts": (
        "b1.example.com, b2.example.com",
        ["b1.example.com", "b2.example.com"],
        ("b1.example.com", "b2.example.com"),
    ),
    "rack": ("r1", "r1", "r1"),
    "etcd": ("e1:2379, [::1]:2379", ["e1:2379", "[::1]:2379"], ("e1:2379", "[::1]:2379")),
    "etcd_user": ("comet", "comet", "comet"),
    "etcd_password": ("hush", "hush", "hush"),
    "etcd_ca": ("/ca.pem", "/ca.pem", Path("/ca.pem")),
    "etcd_cert": ("/c.pem", "/c.pem", Path("/c.pem")),
    "etcd_key": ("/k.pem", "/k.pem", Path("/k.pem")),
    "cluster": ("blue", "blue", "blue"),
    "memory_bytes_max": ("4GiB", 4 << 30, 4 << 30),
    "session_ms": ("5s", 5_000, 5_000),
    "replica_lag_ms": ("1500", "1.5s", 1_500),
    "default_replicas": ("3", 3, 3),
    "rebalance_ms": ("1m", 60_000, 60_000),
    "retention_check_ms": ("100ms", 100, 100),
    "compaction_rate": ("32MiB", 32 << 20, 32 << 20),
    "compaction_memory": ("8MiB", 8 << 20, 8 << 20),
    "filter_percent": ("50", 50, 50),
    "drain_grace_ms": ("0", 0, 0),
    "log_level": ("info", "info", "info"),
    "log_format": ("json", "json", "json"),
    **{f"topic_{name}": topic_example(row) for name, row in TOPIC_SETTINGS.items() if row.cluster},
}
assert EXAMPLES.keys() == BY_NAME.keys()
TOGETHER: dict[str, Any] = {
    "COMET_ID": "1",
    "COMET_ETCD_CERT": "x",
    "COMET_ETCD_KEY": "y",
}  # what some settings ask for beside them


def value_of(found: LoadedSettings, name: str) -> object:
    if name.startswith("log_"):
        return getattr(found, name)
    if name.startswith("topic_"):
        return getattr(found.config.topic_defaults, name.removeprefix("topic_"))
    return getattr(found.config, "broker_id" if name == "id" else name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_setting_can_be_given_each_way(name: str, tmp_path: Path) -> None:
    text, toml, value = EXAMPLES[name]
    setting = BY_NAME[name]
    beside = {variable: value for variable, value in TOGETHER.items() if variable != setting.variable}
    environ: dict[str, Any] = beside | {setting.variable: text}
    if setting.variable:
        assert value_of(told(**environ), name) == value
    file = f"{name} = {str(toml) if isinstance(toml, (int, list)) else repr(toml)}\n"
    assert value_of(told(file=file, folder=tmp_path, **beside), name) == value
    if setting.flag:
        assert value_of(told(setting.flag, text, **beside), name) == value


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_default_reads_back_as_itself(setting: Any) -> None:
    if setting.shown_default:
        environ: dict[str, Any] = {setting.variable: setting.shown_default}
        found = told(**environ)
        assert value_of(found, setting.name) == value_of(told(), setting.name)


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("rakc = 'x'", "unknown setting 'rakc'; did you mean rack?"),
        ("session-ms = 5", "did you mean session_ms?"),
        ("[topic]\nflush = 'os'", "unknown setting 'topic'"),
        ("port = 'high'", "whole number, not 'high'"),
        ("port = 70000", "between 0 and 65535"),
        ("port = true", "takes one value, not a bool"),
        ("session_ms = '10ms'", "between 1s and 1h"),
        ("etcd = ['http://e1:2379']", "is not a host:port"),
        ("etcd = 2379", "host:port,host:port"),
        ("id = 1\netcd = ['e1']", "is not a host:port"),
        ("log_level = 'loud'", "debug, info, warning, error"),
        ("log_format = 'xml'", "log_format must be one of text, json, not 'xml'"),
        ("topic_flush = 'never'", "always, interval or os"),
        ("topic_segment_ms = -1", "invalid duration '-1'"),
        ("topic_segment_bytes = 5", "segment_bytes must be a whole number from 65536"),
        ("port 5", "is not valid TOML"),
    ],
)
def test_a_file_that_is_wrong_says_what_and_where(file: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=complaint.replace("?", r"\?")) as caught:
        told(file=file, folder=tmp_path)
    assert "comet.toml" in caught.value.message


def test_an_error_names_the_variable_or_the_flag() -> None:
    with pytest.raises(InvalidArgument, match="COMET_SESSION_MS: invalid duration 'soon'"):
        told(COMET_SESSION_MS="soon")
    with pytest.raises(InvalidArgument, match="--session-ms: invalid duration 'soon'"):
        told("--session-ms", "soon")
    with pytest.raises(InvalidArgument, match=r"COMET_PORT: .* enableServiceLinks"):
        told(COMET_PORT="tcp://10.0.0.1:9092")


def test_a_broker_of_a_cluster_must_be_numbered() -> None:
    with pytest.raises(InvalidArgument, match="its own number"):
        told("--etcd", "e1:2379")
    assert told("--etcd", "e1:2379", "--id", "3").config.broker_id == 3


def test_a_certificate_comes_with_its_key() -> None:
    with pytest.raises(InvalidArgument, match="belong together"):
        told(COMET_ETCD_CERT="c.pem")


def test_a_secret_is_on_no_command_line_and_in_no_message(tmp_path: Path) -> None:
    secrets = [setting for setting in SETTINGS if setting.secret]
    assert [setting.name for setting in secrets] == ["metrics_token", "etcd_password"]
    assert not any(setting.flag for setting in secrets)
    assert "hush" not in repr(told(COMET_ETCD_PASSWORD="hush"))
    with pytest.raises(InvalidArgument) as caught:
        told(file="etcd_password = ['hush']", folder=tmp_path)
    assert "hush" not in caught.value.message
    with pytest.raises(InvalidArgument) as caught:
        told(file='etcd_password = "hush', folder=tmp_path)
    assert "hush" not in caught.value.message


def test_the_file_on_the_page_for_operators_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/operating.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    found = told(file=example, folder=tmp_path).config
    assert (found.broker_id, found.default_replicas, len(found.etcd)) == (1, 3, 3)


def test_the_page_for_operators_shows_exactly_this_table() -> None:
    page = (ROOT / "docs/operating.md").read_text()
    assert markdown() in page, f"docs/operating.md should hold this table:\n{markdown()}"


def test_a_broker_tells_how_it_is_set_but_no_secret() -> None:
    config = told(
        "--id", "3", "--etcd", "a:1,b:2", "--rebalance-ms", "500", "--topic-flush", "os", COMET_ETCD_PASSWORD="hunter2"
    ).config
    rows = {row["name"]: row for row in described(config)}
    assert set(rows) == {row.name for row in SETTINGS} - {"log_level", "log_format"}
    assert (rows["id"]["value"], rows["id"]["source"]) == ("3", "given")
    assert (rows["etcd"]["value"], rows["rebalance_ms"]["value"]) == ("a:1, b:2", "500")
    assert (rows["rebalance_ms"]["default"], rows["port"]["source"]) == ("10000", "default")
    assert (rows["topic_flush"]["value"], rows["topic_retention_ms"]["source"]) == ("os", "default")
    assert (rows["etcd_password"]["value"], rows["etcd_ca"]["value"]) == ("set", "")
    units = {name: rows[name]["unit"] for name in ("rebalance_ms", "topic_retention_ms", "topic_segment_bytes", "port")}
    assert units == {"rebalance_ms": "ms", "topic_retention_ms": "ms", "topic_segment_bytes": "bytes", "port": ""}
    assert "hunter2" not in str(rows)


def test_too_little_memory_is_refused() -> None:
    assert load({}, {"COMET_MEMORY_BYTES_MAX": "128MiB"}).config.memory_bytes_max == 128 << 20
    with pytest.raises(InvalidArgument, match="at least 128MiB"):
        load({}, {"COMET_MEMORY_BYTES_MAX": "1MiB"})
