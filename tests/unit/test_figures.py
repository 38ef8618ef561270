"""What a broker's /metrics says, from its statistics."""

from __future__ import annotations

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from comet_broker.memory.in_flight import InFlight
from comet_broker.metrics.families import OTHERS
from comet_broker.metrics.histogram import BUCKETS, Durations
from comet_broker.metrics.prometheus import CONTENT_TYPE, OPENMETRICS, exposition
from comet_broker.metrics.topic_metrics import TOPICS_MAX


def partition(topic: str, **changed: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "leader": True,
        "in_sync": [1, 2],
        "replicas": 2,
        "min_insync": 2,
        "compaction_behind_s": 0.0,
        "compactions": 1,
        "compaction_read_bytes": 500,
        "compacted_records": 4,
        "compaction_remaining_records": 6,
        "followers": {"2": 0},
        "failed": "",
        "conflict": "",
        "appended_records": 10,
        "appended_bytes": 1_000,
        "appended_batches": 2,
        "delivered_records": 30,
        "delivered_bytes": 3_000,
        "bytes": 900,
        "readers": 1,
        "acks_waiting": 0,
        "transactions_waiting": 0,
    } | changed


def statistics(**changed: Any) -> dict[str, Any]:
    return {
        "cluster_id": "c",
        "broker_id": 1,
        "version": "0",
        "started_us": 5_000_000,
        "draining": False,
        "insecure": True,
        "certificates": {"clients": 5_000_000, "brokers": 7_000_000},
        "controller": {"acting": True},
        "metadata": {"trusted": True},
        "registered": True,
        "cluster": {"brokers": 3, "partitions": 8, "partitions_offline": 1},
        "auth_failures": {"expired": 4},
        "shares": {"partitions": []},
        "session_count": 3,
        "received_bytes": 7,
        "sent_bytes": 8,
        "errors": {"NOT_LEADER": 2},
        "refused_silently": 0,
        "failed_by_kind": {"group": 1, "partition": 0},
        "failures_by_kind": {"group": 3, "partition": 0},
        "failing_tasks": {},
        "free_bytes": 1 << 30,
        "tail_bytes": 0,
        "acks": Durations().statistics(),
        "deliveries": Durations().statistics(),
        "partitions": [],
        "followers": [{}],
        "links": [{"following": 1, "wanted": 2}],
        "coordinates": [],
        "filters": {
            "seconds": 1.5,
            "examined_bytes": 4_096,
            "examined_records": 90,
            "skipped_records": 60,
            "unfiltered_batches": 2,
        },
        "schedules": {
            "partitions": [{"schedules": 3, "due": 1, "late_s": 0.5}, {"schedules": 4, "due": 2, "late_s": 1.5}],
            "fired": 9,
            "skipped": 8,
            "cancelled": 7,
            "paused": 6,
            "put_off": 5,
        },
        "quotas": {
            "throttled": [{"principal": "client:billing", "seconds": 2.5, "streams": 1}],
            "others_throttled_s": 0.5,
        },
        "audit": {"events": {"refused": 5, "denied": 2}, "queued": 3, "dropped": 1},
        "memory": {"in_flight": InFlight(1 << 20).statistics(), "bytes_max": 1 << 22, "used": 1 << 21, "ended": 3},
    } | changed


def shown(found: dict[str, Any]) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample, by its name and the values of its labels."""
    samples = {}
    for family in text_string_to_metric_families(exposition(found)[1].decode()):
        assert family.documentation, family
        for one in family.samples:
            key = one.name, tuple(one.labels.values())
            assert key not in samples, "a series stands there twice"
            samples[key] = one.value
    return samples


def test_topics_are_summed_over_their_partitions() -> None:
    found = shown(
        statistics(
            partitions=[
                partition("quotes"),
                partition("quotes", in_sync=[1], followers={"2": 5}, appended_records=1),
                partition("quotes", leader=False, in_sync=[2], followers={}, failed="EIO"),
                partition("orders", followers={"2": 3, "3": 4}),
            ]
        )
    )
    assert found["comet_topic_appended_records_total", ("quotes",)] == 21
    assert found["comet_topic_partitions", ("quotes",)] == 3
    assert found["comet_topic_partitions_led", ("quotes",)] == 2
    assert found["comet_topic_partitions_under_replicated", ("quotes",)] == 1  # a follower cannot say that of its own
    assert found["comet_topic_partitions_below_min_insync", ("quotes",)] == 1
    assert found["comet_topic_partitions_failed", ("quotes",)] == 1
    assert found["comet_topic_bytes", ("orders",)] == 900
    assert found["comet_broker_follower_lag_records", ("2",)] == 8
    assert found["comet_broker_follower_lag_records", ("3",)] == 4
    assert found["comet_broker_errors_total", ("NOT_LEADER",)] == 2
    assert found["comet_broker_partitions_to_follow", ()] == 2


def test_so_many_topics_have_series_of_their_own() -> None:
    many = [partition(f"t{number}", bytes=number) for number in range(TOPICS_MAX + 50)]
    found = shown(statistics(partitions=many))
    own = [labels[0] for name, labels in found if name == "comet_topic_bytes"]
    assert len(own) == TOPICS_MAX + 1
    assert found["comet_topic_partitions", (OTHERS,)] == 50
    total = sum(number for (name, _), number in found.items() if name == "comet_topic_appended_records_total")
    assert total == 10 * len(many)


def test_the_lag_of_groups_is_their_coordinators() -> None:
    slot = dict.fromkeys(
        ("groups", "members", "transactions_open", "transactions_committed", "transactions_aborted", "store_writes"), 2
    )
    lag = {"group": "g", "topic": "quotes", "lag": 42, "age_s": 1.5}
    found = shown(statistics(coordinates=[slot | {"lags": [lag]}, slot | {"lags": []}]))
    assert found["comet_group_lag_records", ("g", "quotes")] == 42
    assert found["comet_group_lag_seconds", ("g", "quotes")] == 1.5
    assert found["comet_coordinated_members", ()] == 4


def test_how_long_acknowledgements_took() -> None:
    durations = Durations()
    for took_us in (0, 1, 3, 1_000, 10**12, -5):
        durations.note(took_us)
    assert sum(durations.counts) == 6
    found = shown(statistics(acks=durations.statistics()))
    assert found["comet_broker_ack_seconds_count", ()] == 6
    assert found["comet_broker_ack_seconds_bucket", ("+Inf",)] == 6
    assert found["comet_broker_ack_seconds_bucket", ("1e-06",)] == 2  # below a microsecond, or backwards
    assert found["comet_broker_ack_seconds_bucket", ("2e-06",)] == 3
    assert found["comet_broker_ack_seconds_bucket", ("0.001024",)] == 5
    bounds = [float(labels[0]) for name, labels in found if name == "comet_broker_ack_seconds_bucket"]
    assert bounds == sorted(bounds)
    assert len(bounds) == BUCKETS


def test_schedules_are_summed_over_their_partitions() -> None:
    found = shown(statistics())
    assert found["comet_broker_schedules", ()] == 7
    assert found["comet_broker_schedules_due", ()] == 3
    assert found["comet_broker_schedules_late_seconds", ()] == 1.5
    assert found["comet_broker_schedules_fired_total", ()] == 9
    assert found["comet_broker_schedules_put_off_total", ()] == 5


def test_security_is_watched() -> None:
    found = shown(statistics())
    assert found["comet_broker_insecure", ()] == 1
    assert found["comet_broker_certificate_expiration_timestamp_seconds", ("clients",)] == 5
    assert found["comet_broker_certificate_expiration_timestamp_seconds", ("brokers",)] == 7
    assert found["comet_broker_throttled_seconds_total", ("client:billing",)] == 2.5
    assert found["comet_broker_throttled_seconds_total", ("_others",)] == 0.5
    assert found["comet_broker_auth_failures_total", ("expired",)] == 4
    assert found["comet_broker_audit_events_total", ("refused",)] == 5
    assert found["comet_broker_audit_dropped_total", ()] == 1
    plain = shown(statistics(insecure=False, certificates={}, audit={}))
    assert not [name for name, _ in plain if "audit" in name]
    assert plain["comet_broker_insecure", ()] == 0


def test_compaction_is_summed_but_for_how_far_it_is_behind() -> None:
    behind = [partition("kv", compaction_behind_s=seconds) for seconds in (3.0, 70.0, 0.0)]
    many = [partition(f"t{number}", bytes=9_000) for number in range(TOPICS_MAX)]
    found = shown(statistics(partitions=[*many, *behind]))
    assert found["comet_topic_compaction_behind_seconds", (OTHERS,)] == 70
    found = shown(statistics(partitions=behind))
    assert found["comet_topic_compaction_behind_seconds", ("kv",)] == 70
    assert found["comet_topic_compaction_read_bytes_total", ("kv",)] == 1_500
    assert found["comet_topic_compaction_remaining_records", ("kv",)] == 18


def test_share_groups_are_summed_over_their_partitions() -> None:
    one = {"group": "work", "topic": "orders", "in_flight": 2, "acknowledged": 5, "redelivered": 1, "dropped": 0}
    found = shown(statistics(shares={"partitions": [one | {"dead_lettered": 3}, one | {"dead_lettered": 4}]}))
    assert found["comet_share_group_dead_lettered_records_total", ("work", "orders")] == 7
    assert found["comet_share_group_in_flight_records", ("work", "orders")] == 4


def test_the_cluster_is_as_this_broker_sees_it() -> None:
    found = shown(statistics())
    assert found["comet_cluster_partitions_offline", ()] == 1
    assert found["comet_cluster_brokers", ()] == 3
    assert found["comet_broker_registered", ()] == 1


def test_the_page_is_openmetrics_for_those_who_take_it() -> None:
    accept = f"{OPENMETRICS};version=1.0.0,text/plain;version=0.0.4;q=0.5"
    kind, page = exposition(statistics(partitions=[partition("quotes")]), accept)
    assert kind.startswith(OPENMETRICS)
    families = {family.name: family for family in openmetrics_families(page.decode())}
    assert families["comet_topic_appended_records"].samples[0].value == 10
    assert exposition(statistics(), "text/html")[0] == CONTENT_TYPE
