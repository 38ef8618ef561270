"""What a gateway is told: every field of its configuration, three ways in, read back as written."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from comet.errors import InvalidArgument
from comet.settings.server import Setting
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.settings import SETTINGS, Loaded, load, markdown


def told(*words: str, file: str = "", folder: Path | None = None, **environ: Any) -> Loaded:
    flags = dict(zip(words[::2], words[1::2], strict=True))
    if folder is not None:
        path = folder / "gateway.toml"
        path.write_text(file)
        flags["--config"] = str(path)
    return load({flag[2:].replace("-", "_"): text for flag, text in flags.items()}, environ)


def value_of(found: Loaded, name: str) -> object:
    holder = found.config.limits if name in {field.name for field in fields(Limits)} else found.config
    return getattr(holder, name)


def test_nothing_given_is_the_defaults() -> None:
    assert told().config == GatewayConfig()


def test_the_brokers_are_those_of_clients_unless_it_has_its_own(tmp_path: Path) -> None:
    clients: dict[str, Any] = {"COMET_BOOTSTRAP": "b1:9092"}
    assert told(**clients).config.bootstrap == "b1:9092"
    assert told(**clients, COMET_GATEWAY_BOOTSTRAP="b2:9092").config.bootstrap == "b2:9092"
    assert told(**clients, file='bootstrap = "b3:9092"', folder=tmp_path).config.bootstrap == "b3:9092"
    assert told("--bootstrap", "b4:9092", **clients).config.bootstrap == "b4:9092"
    assert told(COMET_BOOTSTRAP="").config == GatewayConfig()


def test_the_format_of_the_log_is_its_own_or_that_of_all_processes() -> None:
    assert told().log_format == "text"
    assert told(COMET_LOG_FORMAT="json").log_format == "json"
    assert told(COMET_LOG_FORMAT="json", COMET_GATEWAY_LOG_FORMAT="text").log_format == "text"


def test_every_field_can_be_set_and_has_one_meaning() -> None:
    expected = [field.name for field in (*fields(GatewayConfig), *fields(Limits)) if field.name != "limits"]
    assert len(set(expected)) == len(expected)
    assert {setting.name for setting in SETTINGS} == set(expected)


OTHER: dict[str, tuple[str, Any]] = {
    "text": ("b1:9092,b2:9092", "b1:9092,b2:9092"),
    "words": ("https://a.example, https://b.example:8443", ("https://a.example", "https://b.example:8443")),
    "switch": ("no", False),
    "level": ("info", "info"),
    "log format": ("json", "json"),
    "number": ("7", 7),
    "bytes": ("3MiB", 3 << 20),
    "duration": ("7s", 7_000),
    "seconds": ("1500ms", 1.5),
    "clusters": ("a=https://a.example", ("a=https://a.example",)),
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_can_be_given_each_way(setting: Setting, tmp_path: Path) -> None:
    text, value = OTHER.get(setting.name) or OTHER[setting.kind]
    beside: dict[str, Any] = {}
    if setting.name.startswith("tls_"):
        beside = {f"COMET_GATEWAY_TLS_{'KEY' if setting.name == 'tls_cert' else 'CERT'}": "x"}
    assert value_of(told(setting.flag, text, **beside), setting.name) == value
    environ: dict[str, Any] = beside | {setting.variable: text}
    assert value_of(told(**environ), setting.name) == value
    assert value_of(told(file=f"{setting.name} = '{text}'\n", folder=tmp_path, **beside), setting.name) == value


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_default_lies_within_its_bounds_and_reads_back_as_itself(setting: Setting) -> None:
    if setting.shown_default:
        assert setting.read(setting.shown_default) == setting.default


def test_a_bare_number_is_in_the_unit_of_the_name(tmp_path: Path) -> None:
    found = told(file="drain_s = 20\nwait_ms_max = 500\nframe_bytes_max = 4096\n", folder=tmp_path).config
    assert (found.drain_s, found.limits.wait_ms_max, found.limits.frame_bytes_max) == (20.0, 500, 4096)
    assert told("--drain-s", "0.5").config.drain_s == 0.5


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("prot = 1", "did you mean port?"),
        ("origins = ['app.example.com']", "not an origin"),
        ("origins = 5", "list of strings"),
        ("docs = 'perhaps'", "yes or no"),
        ("docs = 2", "yes or no"),
        ("idle_s = '10ms'", "between 1s and 1d"),
        ("requests_max = 0", "between 1 and"),
        ("frame_bytes_max = '1B'", "between 1KiB and"),
        ("tls_cert = 'c.pem'", "belong together"),
    ],
)
def test_a_file_that_is_wrong_says_what(file: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(complaint)):
        told(file=file, folder=tmp_path)


def test_what_kubernetes_sets_is_explained() -> None:
    with pytest.raises(InvalidArgument, match="service called comet-gateway"):
        load({}, {"COMET_GATEWAY_PORT": "tcp://10.0.0.1:8080"})


def test_the_page_for_operators_has_a_row_for_each() -> None:
    rows = markdown().splitlines()[2:]
    assert len(rows) == len(SETTINGS)
    assert "| `drain_s` | `--drain-s` | `COMET_GATEWAY_DRAIN_S` | 10s |" in markdown()
