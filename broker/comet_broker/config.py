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
    broker_id: int = 1
    retention_check_ms: int = 10_000
    drain_grace_ms: int = 5_000
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
