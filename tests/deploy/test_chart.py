"""The chart of Kubernetes: eight sets of values, what the objects must have, and what the values refuse."""

from __future__ import annotations

import copy
import json
import re
import tarfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from comet.wire.version import VERSION
from comet_broker import settings as broker_settings
from comet_gateway import settings as gateway_settings
from tests.deploy import chart
from tests.deploy.chart import CHART, NAMESPACE, SETS, Object
from tests.deploy.kubernetes import problems
from tests.deploy.tools import VERSIONS
from tests.tidy.tree import ROOT

GOLDEN = ROOT / "tests/golden/chart.json"
DOMAIN = f"{NAMESPACE}.svc.cluster.local"


def settings_of(name: str, map_ending: str, file: str) -> dict[str, Any]:
    return tomllib.loads(chart.found(name, "ConfigMap", map_ending)["data"][file])


def test_there_are_eight_sets_of_values() -> None:
    assert len(SETS) == 8


@pytest.mark.parametrize("name", SETS)
def test_helm_finds_nothing_to_complain_about(name: str) -> None:
    run = chart.helm("lint", "--strict", str(CHART), "--values", str(chart.VALUES / f"{name}.yaml"))
    assert run.returncode == 0, run.stdout
    assert "[WARNING]" not in run.stdout
    assert "[ERROR]" not in run.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SETS)
def test_every_object_is_what_kubernetes_takes(name: str, version: str) -> None:
    made = chart.objects(name)
    assert made
    assert not {one["metadata"]["name"]: found for one in made if (found := problems(one, version))}
    assert max(Counter((one["kind"], one["metadata"]["name"]) for one in made).values()) == 1


def test_the_validation_is_strict() -> None:
    (brokers,) = (
        one
        for one in chart.objects("defaults")
        if one["metadata"]["name"] == "comet-broker" and one["kind"] == "StatefulSet"
    )
    for version in VERSIONS:
        for path, value in (("podManagmentPolicy", "Parallel"), ("replicas", "three"), ("ordinals", {"begin": 1})):
            wrong = copy.deepcopy(brokers)
            wrong["spec"][path] = value
            assert problems(wrong, version)
    certificate = chart.found("defaults", "Certificate", "comet-broker-1")
    certificate["spec"]["secret"] = "x"
    assert problems(certificate, VERSIONS[0])
    route = chart.found("httproute", "HTTPRoute")
    route["spec"]["rules"][0]["backends"] = []
    assert problems(route, VERSIONS[0])


@pytest.mark.parametrize(
    "wrong",
    [
        "replica=3",
        "brokers.replica=3",
        "brokers.settings.topic_retention=3d",
        "brokers.settings.port=9000",
        "brokers.settings.audit=perhaps",
        "brokers.replicas=0",
        "brokers.persistence.size=large",
        "tls.source=letsencrypt",
        "tls.certManager.issuer.name=x",
        "etcd.replicas=2",
        "etcd.endpoints={http://etcd:2379}",
        "gateway.settings.drain_seconds=3",
        "gateway.ingress.host=events.example.com",
        "networkPolicy.client=x",
        "monitoring.enable=true",
    ],
)
def test_a_wrong_value_is_refused(wrong: str) -> None:
    run = chart.template("defaults", "--set", wrong)
    assert run.returncode != 0
    assert "schema" in run.stderr


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("etcd.enabled=false", "more than one broker needs etcd"),
        ("etcd.endpoints={e:2379}", "choose one"),
        ("tls.source=secret", "comet security init"),
        ("brokers.replicas=10", "brokersMax"),
        ("monitoring.enabled=true", "brokerTokenSecret"),
        ("gateway.enabled=true", "tokens.toml"),
        ("gateway.enabled=true,gateway.secret=x,gateway.tls.enabled=false", "proxies"),
        ("gateway.enabled=true,gateway.secret=x,tls.source=none", "gateway.tls.secret"),
        ("gateway.enabled=true,gateway.secret=x,gateway.ingress.enabled=true", "ingress.hosts"),
        ("gateway.enabled=true,gateway.secret=x,gateway.httpRoute.enabled=true", "parentRefs"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: str, reason: str) -> None:
    run = chart.template("defaults", "--set", values)
    assert run.returncode != 0
    assert reason in run.stderr


def test_the_schema_has_the_settings_of_the_servers() -> None:
    """If not: python -m tests.deploy.chart."""
    assert (CHART / "values.schema.json").read_text() == chart.made_schema()


def test_every_default_is_in_the_schema_and_every_name_has_a_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def names(part: Object, prefix: str = "") -> set[str]:
        found = set()
        for name, inner in part.get("properties", {}).items():
            found.add(prefix + name)
            found |= names(inner, f"{prefix}{name}.")
        return found

    def given(part: Object, prefix: str = "") -> set[str]:
        found = set()
        for name, inner in part.items():
            found.add(prefix + name)
            if isinstance(inner, dict) and not prefix.endswith(("resources.",)):
                found |= given(inner, f"{prefix}{name}.")
        return found

    open_ended = re.compile(r"^(global|tls\.certManager\.issuerRef\.|monitoring\.dashboardLabels\.|\w+\.resources\.)")
    assert {one for one in names(schema) if not open_ended.match(one)} == {
        one for one in given(values) if not open_ended.match(one)
    }


def test_the_chart_is_of_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == VERSION


@pytest.mark.parametrize("name", SETS)
def test_brokers_take_the_settings(name: str, tmp_path: Path) -> None:
    """The file and the environment of each broker, through the broker's own loader."""
    brokers = chart.found(name, "StatefulSet", "-broker")
    (container,) = brokers["spec"]["template"]["spec"]["containers"]
    file = tmp_path / "comet.toml"
    text = chart.found(name, "ConfigMap", "-broker")["data"]["comet.toml"]
    file.write_text(text)
    secrets = {"etcd-user/user": "ann", "etcd-user/password": "secret", "metrics-token/token": "seen"}
    for number in range(1, brokers["spec"]["replicas"] + 1):
        pod = f"{brokers['metadata']['name']}-{number}"
        environ = chart.environment(container, chart.pod_fields(pod, number, "zone-b"), secrets)
        assert environ["COMET_CONFIG"] == "/etc/comet/config/comet.toml"
        config = broker_settings.load({}, {**environ, "COMET_CONFIG": str(file)}).config
        assert config.broker_id == number
        assert config.advertised_host == f"{pod}.{brokers['spec']['serviceName']}.{DOMAIN}"
        assert config.rack == ("zone-a" if name == "own-etcd" else "zone-b")
        assert config.insecure == (name == "minimal")
        if name != "minimal":
            assert str(config.brokers_cert) == str(config.clients_cert) == f"/etc/comet/tls/broker-{number}.pem"
            assert config.superusers
            assert config.etcd
        _unknown_variables(environ, {row.variable for row in broker_settings.SETTINGS})


@pytest.mark.parametrize("name", [one for one in SETS if "gateway:" in (chart.VALUES / f"{one}.yaml").read_text()])
def test_gateways_take_the_settings(name: str, tmp_path: Path) -> None:
    deployment = chart.found(name, "Deployment", "-gateway")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    file = tmp_path / "gateway.toml"
    text = chart.found(name, "ConfigMap", "-gateway")["data"]["gateway.toml"]
    file.write_text(text)
    environ = chart.environment(container, {}, {})
    assert environ["COMET_GATEWAY_CONFIG"] == "/etc/comet/config/gateway.toml"
    config = gateway_settings.load({}, {**environ, "COMET_GATEWAY_CONFIG": str(file)}).config
    assert config.tokens_file or config.oidc_issuer
    assert config.tls_cert or config.proxies
    assert config.bootstrap == f"{deployment['metadata']['name'].removesuffix('-gateway')}.{DOMAIN}:9092"
    assert config.drain_notice_s == 10
    grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= config.drain_notice_s + config.drain_s + 10
    if name in {"ingress", "everything"}:
        assert "events.example.com" in config.hosts
    _unknown_variables(environ, {row.variable for row in gateway_settings.SETTINGS})


def _unknown_variables(environ: dict[str, str], settings: set[str]) -> None:
    from comet.settings.client import TRANSPORT_VARIABLE, VARIABLES

    known = settings | set(VARIABLES.values()) | {TRANSPORT_VARIABLE, "COMET_CONFIG", "COMET_GATEWAY_CONFIG"}
    assert not {one for one in environ if one.startswith("COMET_")} - known


@pytest.mark.parametrize("name", SETS)
def test_pods_have_no_more_rights_than_they_need(name: str) -> None:
    specs = list(chart.pod_specs(name))
    assert specs
    for _, spec in specs:
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (10001, 10001, 10001)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"]["cpu"]
        assert not spec.get("hostNetwork")
        assert not any("hostPath" in volume for volume in spec.get("volumes", ()))


@pytest.mark.parametrize("name", SETS)
def test_mounts_and_ports_exist(name: str) -> None:
    for one in chart.objects(name):
        spec = one["spec"] if one["kind"] == "Pod" else one.get("spec", {}).get("template", {}).get("spec")
        if not spec:
            continue
        claims = {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())}
        volumes = {volume["name"] for volume in spec.get("volumes", ())}
        (container,) = spec["containers"]
        mounts = Counter(mount["name"] for mount in container["volumeMounts"])
        assert set(mounts) == claims | volumes
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(paths) == len(set(paths))
        ports = {port["name"] for port in container.get("ports", ())}
        assert all(
            container[probe]["httpGet"]["port"] in ports
            for probe in ("startupProbe", "livenessProbe", "readinessProbe")
            if probe in container
        )


def test_every_secret_that_is_mounted_is_issued() -> None:
    for name in ("defaults", "cert-manager", "everything"):
        issued = {one["spec"]["secretName"] for one in chart.objects(name) if one["kind"] == "Certificate"}
        assert issued
        wanted = set(re.findall(r"secretName: (\S+?),", chart.rendered(name)))
        for _, spec in chart.pod_specs(name):
            for volume in spec.get("volumes", ()):
                wanted |= {source["secret"]["name"] for source in volume.get("projected", {}).get("sources", ())}
        assert wanted <= issued | {"gateway-files"}


@pytest.mark.parametrize("name", ["defaults", "cert-manager", "own-etcd"])
def test_each_broker_has_a_certificate_of_its_own(name: str) -> None:
    cluster = "trading" if name == "cert-manager" else "comet"
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    count = 5 if name == "cert-manager" else values["tls"]["certManager"]["brokersMax"]
    for number in range(1, count + 1):
        spec = chart.found(name, "Certificate", f"comet-broker-{number}")["spec"]
        assert spec["uris"] == [f"spiffe://{cluster}/broker/{number}"]
        assert f"comet-broker-{number}.comet-brokers.{DOMAIN}" in spec["dnsNames"]
        assert f"comet.{DOMAIN}" in spec["dnsNames"]
        assert "localhost" in spec["dnsNames"]
        assert {"server auth", "client auth"} <= set(spec["usages"])
    assert chart.found(name, "Certificate", "-admin")["spec"]["uris"] == [f"spiffe://{cluster}/client/admin"]


def test_authorities_are_the_charts_own_unless_an_issuer_is_named() -> None:
    names = {one["metadata"]["name"] for one in chart.objects("defaults") if one["kind"] == "Issuer"}
    assert names == {"comet-ca", "comet-ca-root", "comet-etcd-ca", "comet-etcd-ca-root"}
    names = {one["metadata"]["name"] for one in chart.objects("cert-manager") if one["kind"] == "Issuer"}
    assert names == {"comet-etcd-ca", "comet-etcd-ca-root"}, "etcd's has to sign for nothing else"
    for ending in ("comet-etcd", "comet-etcd-client"):
        assert chart.found("cert-manager", "Certificate", ending)["spec"]["issuerRef"]["name"] == "comet-etcd-ca"
    issuer = chart.found("cert-manager", "Certificate", "comet-broker-1")["spec"]["issuerRef"]
    assert issuer == {"name": "company", "kind": "ClusterIssuer", "group": "cert-manager.io"}


@pytest.mark.parametrize("name", SETS)
def test_brokers_update_one_by_one_and_leave_in_good_order(name: str) -> None:
    spec = chart.found(name, "StatefulSet", "-broker")["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    assert spec["minReadySeconds"] == 10
    assert spec["ordinals"] == {"start": 1}
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container["livenessProbe"]["periodSeconds"] * container["livenessProbe"]["failureThreshold"] == 90
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] == 15 * 60
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "lifecycle" not in container and pod["terminationGracePeriodSeconds"] >= 120
    if name == "minimal":
        return
    settings = settings_of(name, "-broker", "comet.toml")
    assert settings["default_replicas"] == 3


@pytest.mark.parametrize("name", SETS)
def test_replicas_are_spread_and_disrupted_one_at_a_time(name: str) -> None:
    budgets = {
        json.dumps(one["spec"].pop("selector"), sort_keys=True): one["spec"]
        for one in chart.objects(name)
        if one["kind"] == "PodDisruptionBudget"
    }
    made = chart.workloads(name)
    assert len(budgets) == len(made)
    for one in made:
        selector = one["spec"]["selector"]
        budget = budgets[json.dumps(selector, sort_keys=True)]
        assert budget == {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}
        spec = one["spec"]["template"]["spec"]
        spread = {rule["topologyKey"]: rule for rule in spec["topologySpreadConstraints"]}
        assert all(rule["labelSelector"] == selector for rule in spread.values())
        zones = (
            "DoNotSchedule"
            if name == "everything" and one["metadata"]["name"].endswith("-broker")
            else "ScheduleAnyway"
        )
        assert spread["topology.kubernetes.io/zone"]["whenUnsatisfiable"] == zones
        if one["kind"] == "StatefulSet":
            assert spread["kubernetes.io/hostname"]["whenUnsatisfiable"] == "DoNotSchedule"


@pytest.mark.parametrize("name", SETS)
def test_services_select_the_pods_that_they_are_for(name: str) -> None:
    made = chart.objects(name)
    pods = [
        one["spec"]["template"]["metadata"]["labels"] for one in made if one["kind"] in {"StatefulSet", "Deployment"}
    ]
    for service in (one for one in made if one["kind"] == "Service"):
        selected = [labels for labels in pods if service["spec"]["selector"].items() <= labels.items()]
        assert len(selected) == 1
    for stateful in (one for one in made if one["kind"] == "StatefulSet"):
        (headless,) = (
            one
            for one in made
            if one["kind"] == "Service" and one["metadata"]["name"] == stateful["spec"]["serviceName"]
        )
        assert headless["spec"]["clusterIP"] == "None"
        assert headless["spec"]["publishNotReadyAddresses"] is True


def test_the_ports_between_brokers_are_for_brokers_alone() -> None:
    for name in ("defaults", "everything"):
        policy = chart.found(name, "NetworkPolicy", "-broker")
        own = chart.found(name, "StatefulSet", "-broker")["spec"]["selector"]
        rules = {port["port"]: rule.get("from") for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert rules["brokers"] == rules["brokers-wire"] == [{"podSelector": own}]
        etcd = chart.found(name, "NetworkPolicy", "-etcd")
        rules = {port["port"]: rule.get("from") for rule in etcd["spec"]["ingress"] for port in rule["ports"]}
        members = chart.found(name, "StatefulSet", "-etcd")["spec"]["selector"]
        assert rules["peers"] == [{"podSelector": members}]
        assert rules["clients"] == [{"podSelector": own}, {"podSelector": members}]


def test_named_clients_leave_the_way_to_gateway_and_test() -> None:
    policy = chart.found("everything", "NetworkPolicy", "-broker")
    (rule,) = (one for one in policy["spec"]["ingress"] if one["ports"][0]["port"] == "clients")
    assert {"namespaceSelector": {"matchLabels": {"comet": "client"}}} in rule["from"]
    admitted = [
        one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in rule["from"] if "podSelector" in one
    ]
    assert set(admitted) == {"broker", "gateway", "test"}


def test_etcd_knows_its_members_and_their_certificates() -> None:
    (container,) = chart.found("defaults", "StatefulSet", "-etcd")["spec"]["template"]["spec"]["containers"]
    flags = dict(one.removeprefix("--").partition("=")[::2] for one in container["command"][1:])
    members = [f"comet-etcd-{index}.comet-etcd.{DOMAIN}" for index in range(3)]
    assert flags["initial-cluster"] == ",".join(
        f"comet-etcd-{index}=https://{one}:2380" for index, one in enumerate(members)
    )
    assert {"client-cert-auth", "peer-client-cert-auth"} <= set(flags)
    assert flags["auto-compaction-retention"] == "5m"
    assert set(members) <= set(chart.found("defaults", "Certificate", "comet-etcd")["spec"]["dnsNames"])
    settings = settings_of("defaults", "-broker", "comet.toml")
    assert settings["etcd"] == [f"{one}:2379" for one in members]
    assert settings["etcd_cert"] == "/etc/comet/etcd/tls.crt"
    plain = chart.found("minimal", "ConfigMap", "-broker")["data"]["comet.toml"]
    assert "etcd" not in plain


def test_gateways_are_replaced_by_one_more() -> None:
    spec = chart.found("cert-manager", "Deployment")["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert spec["replicas"] == 2
    assert "replicas" not in chart.found("httproute", "Deployment")["spec"], (
        "the autoscaler's number would be overwritten"
    )
    metrics = chart.found("httproute", "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metrics[0]["pods"]["metric"] == {"name": "comet_gateway_connections"}
    assert metrics[0]["pods"]["target"]["averageValue"] == "4000"
    assert [one["type"] for one in chart.found("everything", "HorizontalPodAutoscaler")["spec"]["metrics"]] == [
        "Resource"
    ]


def test_a_gateway_gets_its_own_certificate_alone() -> None:
    for name in ("cert-manager", "secrets"):
        for _, spec in [one for one in chart.pod_specs(name) if one[0].endswith(("-gateway", "-test"))]:
            (tls,) = (volume for volume in spec["volumes"] if volume["name"] == "tls")
            paths = {item["path"] for source in tls["projected"]["sources"] for item in source["secret"]["items"]}
            assert paths in ({"ca.pem", "gateway.pem", "gateway.key"}, {"ca.pem", "admin.pem", "admin.key"})


def test_a_changed_setting_restarts_its_pods_and_no_others() -> None:
    def checksums(*arguments: str) -> dict[str, str]:
        run = chart.template("cert-manager", *arguments)
        assert run.returncode == 0, run.stderr
        made = [one for one in chart.parsed(run.stdout) if one["kind"] in {"StatefulSet", "Deployment"}]
        return {one["metadata"]["name"]: json.dumps(one["spec"]["template"]) for one in made}

    before = checksums()
    brokers = checksums("--set", "brokers.settings.session_ms=5s")
    assert {name for name in before if before[name] != brokers[name]} == {"comet-broker"}
    gateways = checksums("--set", "gateway.settings.docs=false")
    assert {name for name in before if before[name] != gateways[name]} == {"comet-gateway"}
    more = checksums("--set", "brokers.replicas=5")
    assert more == before, "more brokers need no restart of the others"


def test_merge_reaches_what_has_no_value() -> None:
    spec = chart.found("everything", "StatefulSet", "-broker")["spec"]["template"]["spec"]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["containers"][0]["command"] == ["comet", "broker"]
    assert chart.found("everything", "Deployment")["spec"]["revisionHistoryLimit"] == 3
    assert {"name": "TZ", "value": "UTC"} in spec["containers"][0]["env"]


def test_monitors_ask_with_the_token() -> None:
    brokers = chart.found("everything", "PodMonitor", "-broker")
    assert brokers["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = brokers["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "metrics-token", "key": "token"}
    (endpoint,) = chart.found("everything", "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] == f"prod-gateway.{DOMAIN}"


def test_rules_and_dashboards_are_those_of_the_repository() -> None:
    """The chart has copies: helm packages nothing from outside of its folder."""
    rules = [one for one in (ROOT / "deploy/prometheus").glob("*.yml") if "groups" in yaml.safe_load(one.read_text())]
    boards = [*(ROOT / "deploy/grafana").glob("*.json")]
    for there, here in ((rules, CHART.glob("files/*.yml")), (boards, CHART.glob("files/dashboards/*.json"))):
        assert {one.name: one.read_text() for one in here} == {one.name: one.read_text() for one in there}
    made = [
        one["metadata"]["name"] for one in chart.objects("everything") if one["kind"] in {"PrometheusRule", "ConfigMap"}
    ]
    for one in rules:
        assert f"prod-{one.stem}" in made
        assert chart.found("everything", "PrometheusRule", f"-{one.stem}")["spec"] == yaml.safe_load(one.read_text())
    for board in boards:
        shown = chart.found("everything", "ConfigMap", f"-{board.stem}-dashboard")
        assert json.loads(shown["data"][board.name]) == json.loads(board.read_text())
        assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_a_package_has_all_that_the_chart_needs(tmp_path: Path) -> None:
    run = chart.helm("package", str(CHART), "--destination", str(tmp_path))
    assert run.returncode == 0, run.stderr
    (package,) = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        packed = {one.name.removeprefix("comet/") for one in archive if one.isfile()}
    kept = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    assert packed == kept
    values = ("--values", str(chart.VALUES / "everything.yaml"), "--namespace", NAMESPACE)
    made = chart.helm("template", chart.RELEASE, str(package), *values)
    assert made.stdout == chart.rendered("everything")


def test_an_upgrade_changes_nothing_that_cannot_be_changed() -> None:
    """The golden file has what the first version of the chart made. A difference makes `helm upgrade` fail for ever, or
    leaves volumes behind: it needs a way to migrate, and never a new golden file alone."""
    assert immutable() == json.loads(GOLDEN.read_text())


def test_volumes_are_claimed_without_labels() -> None:
    for name in SETS:
        for one in (made for made in chart.objects(name) if made["kind"] == "StatefulSet"):
            for claim in one["spec"]["volumeClaimTemplates"]:
                assert claim["metadata"] == {"name": "data"}


def immutable() -> Object:
    fixed = ("selector", "serviceName", "podManagementPolicy", "ordinals", "volumeClaimTemplates")
    return {
        name: {
            f"{one['kind']}/{one['metadata']['name']}": {key: one["spec"][key] for key in fixed if key in one["spec"]}
            for one in chart.workloads(name)
        }
        for name in SETS
    }
