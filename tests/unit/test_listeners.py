"""Which brokers start: those that strangers cannot reach, or whose file says that they may."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from comet.errors import Forbidden, InvalidArgument
from comet.security.certificates import Authority
from comet.wire.tls import TlsFiles, expiry
from comet_broker.config import BrokerConfig
from comet_broker.rpc.listeners import Certificates, broker_uri, certified_broker, check_listeners, serves_brokers
from comet_broker.settings import load
from comet_testing.simulation.worker import SimWorker, WorkerPace
from tests.unit.storage_world import HandClock

NAMES = "x509_subject_alternative_name"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    authority = Authority.create(tmp_path_factory.mktemp("tls") / "security", "comet")
    issued = authority.issue_broker(1, ["localhost"])
    return {"ca": authority.ca, "cert": issued.cert, "key": issued.key}


def config(**settings: Any) -> BrokerConfig:
    return BrokerConfig(data=Path("unused"), **settings)


def listener(name: str, files: dict[str, Path], kinds: str = "ca cert key") -> dict[str, Path]:
    return {f"{name}_{kind}": files[kind] for kind in kinds.split()}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_a_plain_broker_on_loopback_serves_everything(host: str) -> None:
    check_listeners(config(host=host))
    check_listeners(config(host=host, etcd=("127.0.0.1:2379",)))
    assert serves_brokers(config(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "broker-1.example"])
def test_strangers_are_not_served(host: str, files: dict[str, Path]) -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"clients_cert, clients_key and clients_ca, access_keys or jwt_issuer not set.*comet security init",
    ):
        check_listeners(config(host=host))
    with pytest.raises(InvalidArgument, match="and clients_ca, access_keys or jwt_issuer not set"):
        check_listeners(config(host=host, **listener("clients", files, "cert key")))
    check_listeners(config(host=host, **listener("clients", files)))
    assert not serves_brokers(config(host=host, **listener("clients", files)))
    open_to_all = config(host=host, insecure=True)
    check_listeners(open_to_all)
    assert serves_brokers(open_to_all)


def test_a_cluster_with_tls_separates_brokers_from_clients(files: dict[str, Path]) -> None:
    clients, brokers, etcd = listener("clients", files), listener("brokers", files), ("127.0.0.1:2379",)
    with pytest.raises(InvalidArgument, match="need brokers_cert, brokers_key and brokers_ca"):
        check_listeners(config(etcd=etcd, **clients))
    check_listeners(config(etcd=etcd, **clients, **brokers))
    assert not serves_brokers(config(etcd=etcd, **brokers))


@pytest.mark.parametrize("name", ["clients", "brokers"])
@pytest.mark.parametrize("kinds", ["cert", "key", "ca", "ca cert", "ca key"])
def test_half_a_listener_is_refused(name: str, kinds: str, files: dict[str, Path]) -> None:
    with pytest.raises(InvalidArgument, match="belong together"):
        check_listeners(config(**listener(name, files, kinds)))


def test_brokers_need_an_authority_and_files_that_can_be_read(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="brokers_cert needs brokers_ca"):
        check_listeners(config(**listener("brokers", files, "cert key")))
    with pytest.raises(InvalidArgument, match="cannot read the TLS key file"):
        check_listeners(config(**listener("clients", files | {"key": tmp_path / "missing"})))


def test_rules_hold_only_where_callers_have_names_and_are_no_brokers(files: dict[str, Path]) -> None:
    superusers: dict[str, Any] = {"superusers": ("client:admin",)}
    with pytest.raises(InvalidArgument, match="superusers are recognised by their certificates"):
        check_listeners(config(**superusers))
    with pytest.raises(InvalidArgument, match="superusers are recognised by their certificates"):
        check_listeners(config(**superusers, **listener("clients", files, "cert key")))
    with pytest.raises(InvalidArgument, match="rules would hold for none"):
        check_listeners(config(**superusers, insecure=True, **listener("clients", files)))
    with pytest.raises(InvalidArgument, match="'admin' is not a principal"):
        check_listeners(config(superusers=("admin",), **listener("clients", files)))
    check_listeners(config(**superusers, **listener("clients", files)))


def test_only_the_file_makes_a_broker_insecure(tmp_path: Path) -> None:
    settings = tmp_path / "broker.toml"
    settings.write_text("insecure = true\n")
    assert load({"config": str(settings)}, {}).config.insecure
    assert not load({}, {"COMET_INSECURE": "yes"}).config.insecure


def test_the_certificate_names_the_broker() -> None:
    names = [b"localhost", b"spiffe://comet/broker/12", b"spiffe://other/broker/3"]
    assert certified_broker("comet", {NAMES: names}) == 12
    assert broker_uri("a b/c", 7) == "spiffe://a%20b%2Fc/broker/7"


@pytest.mark.parametrize(
    "names",
    [
        [],
        [b"localhost"],
        [b"spiffe://comet/client/app"],
        [b"spiffe://comet/broker/"],
        [b"spiffe://comet/broker/1x"],
        [b"spiffe://comet/broker/-1"],
        [b"spiffe://comet/broker/1/2"],
        [b"spiffe://comet2/broker/1"],
        [b"spiffe://comet/broker/1", b"spiffe://comet/broker/2"],
    ],
)
def test_other_certificates_are_no_brokers(names: list[bytes]) -> None:
    with pytest.raises(Forbidden, match="this listener is for brokers"):
        certified_broker("comet", {NAMES: names})


def test_a_certificate_that_expires_soon_is_logged_once_a_day(
    files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    end_us = int(expiry(files["cert"].read_bytes()).timestamp()) * 1_000_000
    one = Certificates(
        "clients", TlsFiles(files["ca"], files["cert"], files["key"]), SimWorker(Random(0), WorkerPace()), clock
    )
    assert one.expires_us == end_us
    logged = []
    for hours in (31 * 24, 29 * 24, 28 * 24 + 12, 28 * 24, 5 * 24, -1):
        clock.now_us = end_us - hours * 3_600_000_000
        one.warn_of_expiry()
        logged.append(len(caplog.messages))
    assert logged == [0, 1, 1, 2, 3, 4]
    assert "clients listener expires in 5 days, on" in caplog.messages[-2] and "expired on" in caplog.messages[-1]
