"""deploy/compose: a valid file that publishes nothing to strangers, and a cluster that runs."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.deploy.compose import FOLDER, Composed, composed, published, services
from tests.deploy.containers import Images, do
from tests.deploy.schemas import problems
from tests.tidy.tree import ROOT

THREE = (1, 2, 3)


def test_the_files_follow_the_specification() -> None:
    for file in (ROOT / "compose.yaml", FOLDER / "compose.yaml"):
        assert problems("compose-spec", yaml.safe_load(file.read_text())) == []
    wrong = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    wrong["services"]["broker-1"]["stop_grace"] = "60s"
    assert problems("compose-spec", wrong), "it refuses a typo"


def test_it_publishes_on_loopback_alone() -> None:
    """Brokers and Envoy have TLS, Prometheus and Grafana have not."""
    assert {name for name, one in services().items() if published(one)} == {
        *(f"broker-{number}" for number in THREE),
        *("envoy", "prometheus", "grafana"),
    }
    assert all(port.startswith("127.0.0.1:") for one in services().values() for port in published(one))


def test_each_service_is_bounded() -> None:
    for name, service in services().items():
        assert service["mem_limit"], name
        assert "privileged" not in service and service.get("network_mode") != "host", name
        if str(service["image"]).startswith("comet"):
            assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert "latest" not in str(service["image"]), name


def test_etcd_is_reached_by_brokers_alone() -> None:
    at_etcd = {name for name, service in services().items() if "metadata" in service.get("networks", ())}
    assert at_etcd == {f"{kind}-{number}" for kind in ("etcd", "broker") for number in THREE}


def test_the_authoritys_key_stays_with_the_service_that_uses_it() -> None:
    holders = {name for name, one in services().items() if any("authority:" in str(v) for v in one.get("volumes", ()))}
    assert holders == {"secrets"}


def test_the_guides_commands_name_what_there_is() -> None:
    """They need Docker, which is not here; what they do is run below by other programs."""
    text = (ROOT / "docs/guides/compose.md").read_text()
    commands = re.findall(r"^docker compose ((?:.|\\\n)*?)(?: +#.*)?$", text, re.MULTILINE)
    assert len(commands) > 8
    named = {word.partition(":")[0] for line in commands for word in line.split()}
    numbered = {word for word in named if re.fullmatch(r"[a-z]+-\d", word)}
    assert numbered and numbered <= services().keys()
    asked = {name for line in commands for name in re.findall(r"--profile (\w+)", line)}
    assert asked == {profile for service in services().values() for profile in service.get("profiles", ())}


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_the_cluster_runs(images: Images) -> None:
    with composed(images) as cluster:
        await cluster.start("secrets")
        for kind in ("etcd", "broker"):
            await cluster.start(*(f"{kind}-{number}" for number in THREE))
        await cluster.start("gateway-1", "gateway-2")
        await cluster.start("envoy")
        assert not cluster.secret("ca.key").exists()
        check_records(cluster)
        before = cluster.secret("admin.token").read_text()
        await cluster.start("secrets")
        assert cluster.secret("admin.token").read_text() == before, "made once"
        cluster.podman("stop", "--time", "30", cluster.container("broker-2"))
        assert "DRAINED" in write(cluster, "DRAINED"), "two of three are enough"


def check_records(cluster: Composed) -> None:
    """A record goes through brokers and gateways, by name and over TLS; a stranger gets nothing."""
    brokers = "broker-1:10092,broker-2:11092,broker-3:12092"
    cluster.inside("broker-3", "comet", "topic", "create", "orders", "--partitions", "6", "--bootstrap", brokers)
    described = json.loads(cluster.inside("broker-1", "comet", "cluster", "--json", "--bootstrap", brokers))
    assert {one["id"] for one in described["brokers"]} == {1, 2, 3}
    assert "first" in write(cluster, "first")
    refused = do(*curl(cluster, "/v1/topics", token=""))
    assert json.loads(refused)["status"] == 401


def write(cluster: Composed, value: str) -> str:
    """All records of the topic after one more, through Envoy."""
    body = json.dumps({"key": value, "value": value})
    do(*curl(cluster, "/v1/topics/orders/records?acks=all"), "--fail-with-body", "--json", body)
    return do(*curl(cluster, "/v1/topics/orders/records?start=earliest"))


def curl(cluster: Composed, path: str, token: str | None = None) -> list[str]:
    bearer = cluster.secret("admin.token").read_text() if token is None else token
    words = ["curl", "--silent", "--max-time", "30", "--cacert", str(cluster.secret("ca.pem"))]
    return [*words, "--header", f"authorization: Bearer {bearer}", f"https://localhost:8443{path}"]
