"""`comet bench security`: the same load at brokers that differ in their security alone, in turn in one run.

    plain      without TLS
    tls        with TLS
    secured    with TLS, access keys, rules, an audit log, and a quota that is not reached

The figures are explained in docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from comet_bench.broker.broker_bench import (
    RECORD_BYTES,
    broker_use,
    create_topics,
    delete_topics,
    end_to_end,
    paced_config,
)
from comet_bench.harness import Progress, Report, Subject, Subjects, Suite, compared, run_compared
from comet_bench.processes import Broker, Worker, own_broker
from comet_bench.report import Result

if TYPE_CHECKING:
    import comet

VARIANTS: Final = ("plain", "tls", "secured")
RATE: Final = 1_000  # records a second of the latencies
QUOTA_BYTES: Final = 1 << 40  # a second
NAME: Final = "bench"  # of the client, and of its topics
LOCAL: Final = ["127.0.0.1"]


@dataclass(frozen=True, slots=True)
class SecuritySizes:
    """The amount of work of a run."""

    records: int
    paced_s: float
    calls: int
    connections: int
    rules: int
    pairs: int


FULL: Final = SecuritySizes(4_000_000, paced_s=10.0, calls=5_000, connections=400, rules=1_000, pairs=5)
QUICK: Final = SecuritySizes(1_000_000, paced_s=2.0, calls=1_000, connections=80, rules=100, pairs=3)


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """A broker of one variant, with what its administrator and its clients present."""

    broker: Broker
    admin: comet.Bootstrap
    client: Mapping[str, str]  # that a client finds in its environment


class SecurityBench:
    """A broker of each variant. Every run has topics of its own."""

    def __init__(self, brokers: Mapping[str, SecuredBroker], sizes: SecuritySizes) -> None:
        self.sizes = sizes
        self._brokers = brokers

    @contextmanager
    def load(self, variant: str) -> Iterator[SecuredLoad]:
        secured = self._brokers[variant]
        topic, warm_topic = (f"{NAME}-{uuid.uuid4().hex[:12]}" for _ in range(2))
        asyncio.run(create_topics(secured.admin, [topic, warm_topic]))
        yield SecuredLoad(secured, topic, warm_topic, self.sizes)
        asyncio.run(delete_topics(secured.admin, [topic, warm_topic]))


@dataclass(frozen=True, slots=True)
class SecuredLoad:
    """One run at one broker."""

    secured: SecuredBroker
    topic: str
    warm_topic: str
    sizes: SecuritySizes

    def client(self, name: str, **config: Any) -> Worker:
        return Worker(
            name,
            {**_environment(), **self.secured.client},
            address=self.secured.broker.address,
            topic=self.topic,
            warm_topic=self.warm_topic,
            record_bytes=RECORD_BYTES,
            **config,
        )

    def done(self, name: str, **config: Any) -> tuple[dict[str, Any], Result]:
        """What a client measures, and the broker's use meanwhile."""
        with self.client(name, **config) as worker:
            worker.ready()
            with broker_use(self.secured.broker) as used:
                worker.go()
                return worker.done(), used()


def _environment() -> dict[str, str]:
    """Ours, without files of the user's own brokers."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COMET_CLIENT_")}


# ---- the brokers


@contextmanager
def _brokers(folder: Path | None, sizes: SecuritySizes) -> Iterator[dict[str, SecuredBroker]]:
    import comet
    from comet.security.access_keys import add_access_key, brokers_file
    from comet.security.certificates import Authority

    with ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="comet-bench-", dir=folder))
        security = Path(made) / "security"
        authority = Authority.create(security, "comet")
        issued = authority.issue_broker(1, LOCAL)
        admin_key = add_access_key(security, "admin")
        tls = ("--clients-cert", str(issued.cert), "--clients-key", str(issued.key))
        keys = ("--access-keys", str(brokers_file(security)), "--superusers", "client:admin")
        plain_broker = stack.enter_context(own_broker(folder))
        tls_broker = stack.enter_context(own_broker(folder, *tls))
        broker = stack.enter_context(own_broker(folder, *tls, *keys, log=Path(made) / "log"))
        ca = {"COMET_CLIENT_CA": str(authority.ca)}
        admin = comet.Bootstrap(broker.address, ca=authority.ca, access_key=admin_key)
        key_file = Path(made) / "bench.access-key"
        key_file.write_text(asyncio.run(_secure(admin, sizes.rules)))
        yield {
            "plain": SecuredBroker(plain_broker, comet.Bootstrap(plain_broker.address), {}),
            "tls": SecuredBroker(tls_broker, comet.Bootstrap(tls_broker.address, ca=authority.ca), ca),
            "secured": SecuredBroker(broker, admin, {**ca, "COMET_CLIENT_ACCESS_KEY": str(key_file)}),
        }


async def _secure(admin: comet.Bootstrap, rules: int) -> str:
    """Adds the rules and the quota. Returns the access key of the client."""
    import comet

    client = f"client:{NAME}"
    async with comet.Admin(admin) as found:
        await found.access.add_rule(client, ["read", "write"], comet.ResourceKind.TOPIC, f"{NAME}-*")
        await found.access.add_rule(client, ["describe"], comet.ResourceKind.CLUSTER, "*")
        for number in range(rules):
            await found.access.add_rule(f"client:other-{number}", ["read"], comet.ResourceKind.TOPIC, f"other-{number}")
        await found.access.set_quota(client, bytes_in=QUOTA_BYTES, bytes_out=QUOTA_BYTES, streams=1_000)
        return (await found.access.create_access_key(client)).text


# ---- the subjects


def send_many(load: SecuredLoad) -> Result:
    records = load.sizes.records
    done, used = load.done("produce_many", records=records, json=False)
    seconds = done["end"] - done["start"]
    return {"records_per_s": records / seconds, "bytes_per_s": done["bytes"] / seconds} | used


def latency(load: SecuredLoad) -> Result:
    config, broker = paced_config(RATE, load.sizes.paced_s), load.secured.broker
    with (
        load.client("stopwatch", **config, servers={"broker": broker.pids}) as consumer,
        load.client("pace", **config) as producer,
    ):
        return end_to_end(consumer, producer, broker_use(broker))


def calls(load: SecuredLoad) -> Result:
    done, used = load.done("calls", calls=load.sizes.calls)
    return done | used


def connect(load: SecuredLoad) -> Result:
    done, used = load.done("connect", connections=load.sizes.connections)
    return done | used


KINDS: Final[dict[str, tuple[Callable[[SecuredLoad], Result], str]]] = {
    "send_many": (send_many, "send_many, acknowledged"),
    "latency": (latency, "end to end at 1,000 events/s"),
    "calls": (calls, "unary calls, one after the other"),
    "connect": (connect, "new connections, with one call each"),
}


def _compared(run: Callable[[SecuredLoad], Result]) -> Subject[SecurityBench]:
    def subject(bench: SecurityBench, report: Report) -> list[list[Result]]:
        found: list[list[Result]] = [[] for _ in VARIANTS]
        for number in range(1, bench.sizes.pairs + 1):
            for which, variant in enumerate(VARIANTS):
                with bench.load(variant) as load:
                    found[which].append(report(which, number, partial(run, load)))
        return found

    return subject


SUBJECTS: Final[Subjects[SecurityBench]] = {
    tuple(f"{kind}_{variant}" for variant in VARIANTS): _compared(run) for kind, (run, _) in KINDS.items()
}
ABOUT: Final = {
    f"{kind}_{variant}": f"{about}: {variant}" for kind, (_, about) in KINDS.items() for variant in VARIANTS
}


def run_security(
    names: Sequence[str], sizes: SecuritySizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    """Results by name. One set of brokers serves all."""
    assert address is None
    with _brokers(folder, sizes) as brokers:

        @contextmanager
        def surroundings(_: str) -> Iterator[SecurityBench]:
            yield SecurityBench(brokers, sizes)

        return run_compared(SUBJECTS, names, surroundings, progress)


SUITE: Final = Suite(ABOUT, FULL, QUICK, run_security, compared=compared(SUBJECTS), starts_brokers=True)
