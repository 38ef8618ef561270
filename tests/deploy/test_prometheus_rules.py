"""The rules and dashboards of deploy/: what they name exists, and they do what they say on a real cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import comet
from comet_gateway.config import Limits
from tests.deploy.expressions import DEPLOY, Expression, expressions, rules, unknown
from tests.deploy.prometheus_server import FOLDER, PrometheusServer, find_program, prometheus, promtool
from tests.integration.live_gateway import small
from tests.integration.secured_gateway import Secured, secured
from tests.integration.test_access_keys import TOPIC
from tests.robustness.cluster import ClusterProcesses, cluster
from tests.robustness.gateway_process import GatewayProcess
from tests.robustness.process import free_port
from tests.waiting import until, until_answered

PATIENCE_S: Final = 30.0
OF_A_CLUSTER: Final = "comet_broker_follower_lag_records"  # without samples where a broker has no followers
GRID_WIDTH: Final = 24  # of Grafana
CONNECTIONS_MAX: Final = 2  # one client may have half of them
LIMITED: Final = "client:billing"


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    promtool("check", "config", "--syntax-only", FOLDER / "prometheus.yml")
    promtool("check", "rules", FOLDER / "recording.yml", FOLDER / "alerts.yml")


def test_every_alert_fires_in_its_unit_test_and_is_quiet_elsewhere() -> None:
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    assert [one["name"] for one in tests] == [rule["alert"] for rule in rules("alerts.yml")]
    for one in tests:
        last = one["alert_rule_test"][-1]
        assert last["alertname"] == one["name"]
        assert 0 < len(last["exp_alerts"]) < len(one["input_series"]), "some series fire, and some do not"
    promtool("test", "rules", FOLDER / "alerts_test.yml")


def test_the_dashboards_are_what_their_tables_say() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/dashboards.py", "--check"],
        cwd=DEPLOY.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"run `make generate` and commit what it writes:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("path", sorted((DEPLOY / "grafana").glob("*.json")), ids=lambda path: path.stem)
def test_a_dashboard_has_a_data_source_to_choose_and_no_panel_over_another(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == f"comet-{path.stem}"
    assert board["templating"]["list"][0]["type"] == "datasource"
    charts = [panel for panel in board["panels"] if panel["type"] != "text"]
    targets = [target for panel in charts for target in panel["targets"]]
    assert {one["datasource"]["uid"] for one in (*charts, *targets)} == {"${datasource}"}
    cells = [cell for panel in board["panels"] for cell in _cells(panel["gridPos"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < GRID_WIDTH


def _cells(position: dict[str, int]) -> list[tuple[int, int]]:
    across = range(position["x"], position["x"] + position["w"])
    return [(x, position["y"] + down) for x in across for down in range(position["h"])]


def test_provisioning_names_what_the_dashboards_and_the_compose_project_have() -> None:
    folder = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards/comet.yml").read_text())["providers"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert (provider["type"], provider["options"]["path"]) == ("file", "/etc/grafana/dashboards/comet")


# ---- what they name


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Secured]:
    limits: Limits = small(connections_max=CONNECTIONS_MAX)
    async with secured(tmp_path, limits=limits, metrics_port=free_port()) as found:
        yield found


@pytest.mark.slow
async def test_every_metric_and_label_exists(world: Secured) -> None:
    """On /metrics of a broker, a gateway and an application that have done what the metrics count."""
    app = comet.App(world.broker.bootstrap(world.broker.admin_key))

    @app.on(TOPIC)
    async def handle(value: bytes) -> None: ...

    async with AsyncExitStack() as stack:
        await _share(world)
        await _be_refused(world)
        await stack.enter_async_context(_group(world))
        await _be_throttled(world)
        http = await stack.enter_async_context(world.client("admin"))
        await _fill_the_gateway(http, stack)

        async def lag_is_known() -> bool:
            return "comet_group_lag_seconds{" in await _broker_metrics(world)

        assert await until_answered(lag_is_known, within_s=PATIENCE_S)
        assert (await http.get("/v1/topics/none")).status_code == httpx.codes.NOT_FOUND
        pages = [await _broker_metrics(world), (await http.get("/metrics")).text, app.metrics()]
    shown = _with_recorded({name: labels for page in pages for name, labels in _shown(page).items()})
    for page in pages:
        _check_names(page)
    found = expressions()
    assert len(found) > 100
    missing = [line for one in found if OF_A_CLUSTER not in one.text for line in unknown(one, shown)]
    assert not missing, "\n".join(missing)


def test_a_name_that_no_page_has_is_noticed() -> None:
    shown = {"comet_topic_bytes": {"topic"}}
    assert not unknown(Expression("a", 'sum by (topic) (comet_topic_bytes{topic=~"q"})', "{{topic}}"), shown)
    assert unknown(Expression("a", "comet_topic_size"), shown) == ["a: comet_topic_size"]
    assert unknown(Expression("a", 'comet_topic_bytes{name="q"}'), shown) == ["a: comet_topic_bytes{name}"]
    assert unknown(Expression("a", "sum by (name) (comet_topic_bytes)"), shown) == ["a: label name"]
    assert unknown(Expression("a", "comet_topic_bytes", "{{name}}"), shown) == ["a: label name"]


async def _broker_metrics(world: Secured) -> str:
    async with httpx.AsyncClient() as http:
        return (await http.get(f"http://127.0.0.1:{world.broker.server.monitor.port}/metrics")).text


async def _share(world: Secured) -> None:
    """A record becomes a dead letter of a share group."""
    brokers = world.broker.bootstrap(world.broker.admin_key)
    await world.broker.admin.create_topic("dead")
    async with comet.Producer(brokers) as producer:
        await producer.publish(TOPIC, b"bad")
    async with comet.ShareConsumer(brokers, TOPIC, group="work", start="earliest", dead_letter="dead") as consumer:
        record = await consumer.get(timeout_s=PATIENCE_S)
        assert record is not None
        await record.reject("it makes no sense")


async def _be_refused(world: Secured) -> None:
    file, lost = await world.broker.key("lost.key")
    await world.broker.admin.access.revoke_access_key(lost)
    async with comet.Admin(world.broker.bootstrap(file)) as stranger:

        async def refused() -> bool:
            try:
                await stranger.list_topics()
            except comet.CredentialsRefused:
                return True
            return False

        assert await until_answered(refused, within_s=PATIENCE_S)
    with pytest.raises(comet.TopicNotFound):
        await world.broker.admin.describe_topic("none")


def _group(world: Secured) -> Any:
    brokers = world.broker.bootstrap(world.broker.admin_key)
    return comet.GroupConsumer(brokers, TOPIC, group="engine", start="earliest")


async def _be_throttled(world: Secured) -> None:
    access = world.broker.admin.access
    await world.broker.allow("write", "describe")
    await access.set_quota(LIMITED, bytes_in=100_000)
    file, _ = await world.broker.key("limited.key", LIMITED)

    def throttled() -> bool:
        return bool(world.broker.server.broker.statistics()["quotas"]["throttled"])

    async with comet.Producer(world.broker.bootstrap(file), compression="none", batch_bytes=20_000) as producer:
        for _ in range(20):
            await producer.send(TOPIC, bytes(20_000))
        assert await until(throttled, within_s=PATIENCE_S)
        await access.remove_quota(LIMITED)
        await producer.flush()


async def _fill_the_gateway(http: httpx.AsyncClient, stack: AsyncExitStack) -> None:
    """An event stream stays open, and another is refused."""
    url = f"/v1/topics/{TOPIC}/stream?start=earliest"
    opened = [await stack.enter_async_context(http.stream("GET", url)) for _ in range(CONNECTIONS_MAX)]
    assert [one.status_code for one in opened] == [httpx.codes.OK, httpx.codes.TOO_MANY_REQUESTS]


def _shown(page: str) -> dict[str, set[str]]:
    """The labels of each series of a page that has samples."""
    return {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(page) for sample in family.samples
    }


def _with_recorded(shown: dict[str, set[str]]) -> dict[str, set[str]]:
    """With the series of recording rules, which have the labels of what they are made of."""
    for rule in rules("recording.yml"):
        one = Expression(rule["record"], rule["expr"])
        shown[rule["record"]] = one.labels
    return shown


def _check_names(page: str) -> None:
    done = subprocess.run(
        [find_program("promtool"), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ---- what they do


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_healthy_cluster_is_quiet_and_a_dead_broker_is_not(tmp_path: Path) -> None:
    async with cluster(tmp_path, metrics=True) as brokers, AsyncExitStack() as stack:
        gateway = GatewayProcess(tmp_path / "gateway", brokers.addresses)
        stack.callback(gateway.kill)
        gateway.launch()
        admin = await stack.enter_async_context(comet.Admin(brokers.addresses))
        await admin.create_topic("orders")
        await admin.create_topic("alone", partitions=3, replicas=1)  # one on each broker
        for topic in ("orders", "alone"):
            await brokers.well(topic, replicas=1 if topic == "alone" else 3)
        await _use(brokers)
        await gateway.ready()
        targets = {
            "comet-broker": [f"127.0.0.1:{port}" for port in brokers.metrics_ports.values()],
            "comet-gateway": [f"127.0.0.1:{gateway.port}"],
        }
        watching = await stack.enter_async_context(prometheus(tmp_path, targets))
        await _evaluated(watching, targets=4)
        assert await watching.query('count_over_time(ALERTS{alertstate="firing"}[5m])') == []
        for rule in rules("recording.yml"):
            assert await watching.query(rule["record"]), rule["record"]
        for one in expressions():
            await watching.query(_with_variables(one.text))  # fails if it is malformed
        lags = await watching.query(OF_A_CLUSTER)
        shown = {OF_A_CLUSTER: set(lags[0][0])}
        of_followers = [one for one in expressions() if one.metrics == {OF_A_CLUSTER}]
        assert of_followers and not [line for one in of_followers for line in unknown(one, shown)]

        brokers.brokers[1].kill()

        async def fires() -> bool:
            return "CometPartitionsOffline" in [one["alertname"] for one in await watching.alerts("firing")]

        assert await until_answered(fires, within_s=PATIENCE_S), await watching.alerts("pending")
        ((_, offline),) = await watching.query("max by (job) (comet_cluster_partitions_offline)")
        assert offline == 1
        assert "CometDown" in [one["alertname"] for one in await watching.alerts("pending")]


def _with_variables(expression: str) -> str:
    """As Grafana sends it, with all of each variable."""
    return re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", "1m"))


async def _use(brokers: ClusterProcesses) -> None:
    """A group reads what is written, and stays behind in the end."""
    async with comet.Producer(brokers.addresses, acks="all") as producer:
        for number in range(20):
            await producer.publish("orders", b"%d" % number)
        async with comet.GroupConsumer(brokers.addresses, "orders", group="engine", start="earliest") as consumer:
            assert await consumer.get(timeout_s=PATIENCE_S)


async def _evaluated(watching: PrometheusServer, *, targets: int) -> None:
    """Waits until all rules have been evaluated after all targets were scraped."""

    async def scraped() -> bool:
        return [value for _, value in await watching.query("count(up == 1)")] == [targets]

    async def recorded() -> bool:
        names = [rule["record"] for rule in rules("recording.yml")]
        return bool(await watching.query(" and on () ".join(f"count({name})" for name in names)))

    for condition in (scraped, recorded):
        assert await until_answered(condition, within_s=PATIENCE_S), await watching.targets()
    before = {rule["name"]: rule["lastEvaluation"] for rule in await watching.rules()}

    async def evaluated() -> bool:
        found = await watching.rules()
        return all(rule["health"] == "ok" and rule["lastEvaluation"] > before[rule["name"]] for rule in found)

    assert await until_answered(evaluated, within_s=PATIENCE_S), await watching.rules()
