"""What a broker is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from comet.types import TopicConfig


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Everything about one broker that its owner chooses; limits that protect it are in `limits`."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 9092  # 0: any free one
    advertised_host: str = ""  # what clients are told; empty: host
    advertised_port: int = 0  # 0: port
    metrics_port: int = 0  # where Prometheus and health checks ask; 0: nowhere
    broker_id: int = 1
    rack: str = ""  # replicas of a partition are spread over racks
    etcd: tuple[str, ...] = ()  # host:port of its members; empty: this broker alone, metadata in its own folder
    etcd_user: str = ""
    etcd_password: str = field(default="", repr=False)
    etcd_ca: Path | None = None  # a TLS connection, checked against these certificates
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    cluster: str = "comet"  # the name under which several clusters can share one etcd
    session_ms: int = 3_000  # a broker that the metadata store has not heard of for so long is taken for dead
    replica_lag_ms: int = 3_000  # a follower that has not caught up for so long is no longer in sync
    default_replicas: int = 1
    rebalance_ms: int = 10_000  # how long all must be well before leadership goes back to the preferred replicas
    retention_check_ms: int = 10_000
    drain_grace_ms: int = 5_000
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
