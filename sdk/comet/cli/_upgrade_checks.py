"""The checks of `comet doctor --upgrade`: whether this version may take the place of the one that runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from comet.cli._cluster_checks import ANSWER_S_MAX, some_of
from comet.cli._finding import Finding
from comet.errors import CometError
from comet.units import count
from comet.wire.version import VERSION

if TYPE_CHECKING:
    from comet.entities import TopicInfo

_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)\.")


def check_formats(data: Path) -> Finding:
    """Whether this version reads every segment of a data folder. Only their headers are read, also beside a broker."""
    from comet_broker.storage.layout import SEGMENT_HEADER_BYTES, written_by_newer

    segments, newer = 0, []
    try:
        for path in sorted(data.glob("topics/*/*/*.log")):
            segments += 1
            with path.open("rb") as file:
                if written_by_newer(file.read(SEGMENT_HEADER_BYTES)):
                    newer.append(str(path.relative_to(data)))
    except OSError as error:
        return Finding("formats", "fail", f"{error.filename}: {error.strerror}", "run this as the broker's user")
    if newer:
        detail = f"written by a newer version: {some_of(newer)}"
        return Finding("formats", "fail", detail, "run the version that wrote them, or a later one")
    return Finding("formats", "ok", f"{count(segments, 'segment')}, which this version reads")


def check_versions(running: Sequence[tuple[int, str]]) -> Finding:
    """Whether brokers of this version may join those that run, given by id and version.

    >>> check_versions([(1, VERSION)]).status, check_versions([(1, "99.0.0")]).status
    ('ok', 'fail')
    """
    far = [f"broker {broker} runs {version}" for broker, version in running if not _neighbours(version, VERSION)]
    if far:
        detail = f"this is {VERSION}, and {some_of(far)}"
        return Finding("versions", "fail", detail, "upgrade one MINOR version at a time, see docs/compatibility.md")
    listed = ", ".join(sorted({version for _, version in running}))
    return Finding("versions", "ok", f"this is {VERSION}, and brokers run {listed}")


def _neighbours(one: str, other: str) -> bool:
    """Whether a cluster may have both while it is upgraded: the same MAJOR version, and MINOR versions side by side."""
    found = [_NUMBERS.match(version) for version in (one, other)]
    if None in found:
        return False
    (major, minor), (other_major, other_minor) = ((int(match[1]), int(match[2])) for match in found if match)
    return major == other_major and abs(minor - other_minor) <= 1


def check_in_sync(topics: Sequence[TopicInfo]) -> Finding:
    """Whether a broker may stop now without making records unavailable or less safe than they are meant to be."""
    behind = [
        f"{topic.name}/{one.partition}"
        for topic in topics
        for one in topic.partitions
        if one.leader is None or one.under_replicated
    ]
    if behind:
        detail = f"without a leader, or with a replica behind: {some_of(behind)}"
        return Finding("in sync", "fail", detail, "wait until all replicas are in sync: comet cluster")
    single = sum(len(topic.partitions) for topic in topics if topic.replicas == 1)
    if single:
        detail = f"{count(single, 'partition')} with one replica, unavailable while its broker restarts"
        return Finding("in sync", "warn", detail, "give it more replicas: comet topic move")
    return Finding("in sync", "ok", "all replicas of all partitions are in sync")


def check_running(addresses: Sequence[str]) -> list[Finding]:
    """Findings about the brokers that run."""
    return asyncio.run(_check_running(addresses))


async def _check_running(addresses: Sequence[str]) -> list[Finding]:
    import comet

    try:
        async with asyncio.timeout(ANSWER_S_MAX), comet.Admin(list(addresses)) as admin:
            cluster, topics = await admin.describe_cluster(), await admin.list_topics()
    except (CometError, TimeoutError) as error:
        return [Finding("versions", "fail", str(error) or "no answer", "start the brokers, or correct the addresses")]
    running = [(broker.id, broker.version) for broker in cluster.brokers]
    return [check_versions(running), check_in_sync(topics)]
