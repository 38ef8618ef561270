"""The settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from comet.settings.topic import TopicConfig


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """All settings that an operator chooses for one broker; the limits that protect it are in `limits`."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 9092  # 0: any free one
    advertised_host: str = ""  # the host that clients connect to; empty: host
    advertised_port: int = 0  # 0: port
    wire: bool = True  # whether it serves the wire, beside gRPC
    wire_socket: bool = True  # whether it also has a Unix socket in the data folder
    wire_port: int = 0  # 0: any free one; clients learn it from the metadata
    advertised_wire_port: int = 0  # 0: wire_port, or none if advertised_port is set
    clients_cert: Path | None = None  # TLS on host:port; with its key
    clients_key: Path | None = None
    clients_ca: Path | None = None  # clients must present a certificate that one of these has signed
    access_keys: Path | None = None  # clients must present an access key; the first ones stand in this file
    jwt_issuer: str = ""  # its tokens are taken in place of access keys; with jwt_audience and jwt_keys
    jwt_audience: str = ""
    jwt_keys: str = ""  # the issuer's JWK set: a URL or a file
    jwt_claim: str = "sub"  # "ann" in it is the principal user:ann
    jwt_roles: str = ""  # the claim with roles: "finance" in it is role:finance; empty: tokens have none
    superusers: tuple[str, ...] = ()  # clients that may do everything; with any, rules say what others may do
    gateways: tuple[str, ...] = ()  # clients that may act for their users
    audit: bool | None = None  # whether it keeps an audit log; None: with superusers
    brokers_host: str = ""  # where other brokers connect, if it is a listener of its own; empty: host
    brokers_port: int = 9093  # used with brokers_cert; 0: any free one
    brokers_advertised_host: str = ""  # the host that other brokers connect to; empty: as for clients
    brokers_wire_port: int = 0  # of the wire; 0: any free one
    brokers_cert: Path | None = None  # of this broker, for both sides of a connection between brokers; with its key
    brokers_key: Path | None = None
    brokers_ca: Path | None = None  # signs the certificates of all brokers
    insecure: bool = False  # may listen beyond loopback without TLS and certificates
    metrics_port: int = 0  # for Prometheus and health checks; 0: none
    metrics_token: str = field(default="", repr=False)  # for /metrics beyond loopback
    metrics_hosts: tuple[str, ...] = ()  # accepted Host names there, beside the broker's own; "*": any
    broker_id: int = 1
    rack: str = ""  # replicas of a partition are spread over racks
    etcd: tuple[str, ...] = ()  # host:port of its members; empty: a single broker, with metadata in its own folder
    etcd_user: str = ""
    etcd_password: str = field(default="", repr=False)
    etcd_ca: Path | None = None  # TLS, verified with these certificates
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    cluster: str = "comet"  # the name under which several clusters can share one etcd
    memory_bytes_max: int = 0  # that the process may use; 0: what its control group, else the machine, has
    session_ms: int = 3_000  # a broker without a keepalive for so long is dead
    replica_lag_ms: int = 3_000  # a follower that is behind for so long is out of sync
    default_replicas: int = 1
    rebalance_ms: int = 10_000  # how long all brokers must be well before preferred leaders lead again
    retention_check_ms: int = 10_000
    compaction_rate: int = 64 << 20  # bytes that are read for it in a second
    compaction_memory: int = 64 << 20
    filter_percent: int = 20  # of a core, for filters of readers beyond what they save
    drain_grace_ms: int = 5_000
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)

    @property
    def audited(self) -> bool:
        return bool(self.superusers) if self.audit is None else self.audit
