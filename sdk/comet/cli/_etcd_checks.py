"""The checks of `comet doctor` for a cluster: the members of etcd, over their HTTP interface."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import statistics
import time
from pathlib import Path
from typing import Final

from comet.cli._finding import Finding

TIMEOUT_S: Final = 3.0
SAMPLES: Final = 5
ANSWER_MS_GOOD: Final = 50.0
FSYNC_MS_GOOD: Final = 10.0
VERSION_MIN: Final = (3, 4)


def check_etcd_program() -> Finding:
    """The etcd binary. Only `comet up --brokers` starts one; elsewhere etcd runs on machines of its own."""
    from comet_broker.metadata.etcd_binary import EtcdNotFound, etcd_version, find_etcd

    try:
        path = find_etcd()
        return Finding("etcd", "ok", f"{etcd_version(path)} ({path})")
    except EtcdNotFound as error:
        return Finding("etcd", "ok", f"not found; only `comet up --brokers` needs it here. {error}")


def check_members(addresses: tuple[str, ...]) -> Finding:
    """Warns about fewer than three members: the metadata store must survive the loss of a machine."""
    if len(addresses) < 3:
        return Finding(
            "etcd members",
            "warn",
            f"{len(addresses)} named",
            "run three members and name all of them: the cluster makes no decisions without a majority",
        )
    return Finding("etcd members", "ok", f"{len(addresses)} named")


class MemberCheck:
    """The check of one member, with TLS if certificates are given."""

    def __init__(self, address: str, ca: Path | None, cert: Path | None, key: Path | None) -> None:
        self.name = f"etcd {address}"
        self._address = address
        self._files = (ca, cert, key)

    def run(self) -> Finding:
        try:
            return self._check()
        except (OSError, ValueError, http.client.HTTPException) as error:
            advice = "start it, or correct the address; with TLS set etcd_ca, etcd_cert and etcd_key"
            return Finding(self.name, "fail", str(error) or type(error).__name__, advice)

    def _check(self) -> Finding:
        from comet_broker.metadata.etcd.calls import SOUND_VERSIONS, is_sound

        version = str(json.loads(self._get("/version"))["etcdserver"])
        waits = []
        for _ in range(SAMPLES):
            start = time.perf_counter()
            health = json.loads(self._get("/health"))
            waits.append((time.perf_counter() - start) * 1e3)
        median = statistics.median(waits)
        fsync_ms = _fsync_ms(self._get("/metrics").decode(errors="replace"))
        detail = f"{version}, answers in {median:.1f} ms" + ("" if fsync_ms is None else f", fsync {fsync_ms:.1f} ms")
        if str(health.get("health")).lower() != "true":
            return Finding(
                self.name, "fail", f"{detail}, not healthy", "check that it has a leader: etcdctl endpoint status"
            )
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < VERSION_MIN:
            return Finding(self.name, "fail", detail, "Comet needs etcd 3.4 or later")
        if median > ANSWER_MS_GOOD or (fsync_ms or 0) > FSYNC_MS_GOOD:
            return Finding(self.name, "warn", detail, "it slows failover: give etcd a fast disk of its own")
        if not is_sound(version):
            later = " or ".join(f"{line[0]}.{line[1]}.{patch}" for line, patch in SOUND_VERSIONS.items())
            return Finding(self.name, "warn", detail, f"this version has known defects: run {later} or later")
        return Finding(self.name, "ok", detail)

    def _get(self, path: str) -> bytes:
        connection = self._connect()
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        ca, cert, key = self._files
        if ca is None and cert is None:
            return http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        if cert is not None:
            context.load_cert_chain(str(cert), None if key is None else str(key))
        return http.client.HTTPSConnection(self._address, timeout=TIMEOUT_S, context=context)


def _fsync_ms(metrics: str) -> float | None:
    """The mean time of a sync of etcd's log since it started; None if the metrics lack it."""
    found = dict(re.findall(r"^etcd_disk_wal_fsync_duration_seconds_(sum|count) (\S+)", metrics, re.MULTILINE))
    count = float(found.get("count", 0))
    return float(found["sum"]) / count * 1e3 if count and "sum" in found else None
