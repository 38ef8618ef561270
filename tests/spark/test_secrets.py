"""No secret that Spark's options name leaves its file: it is in no plan, progress, log of driver and executors, event
log, page of Spark's UI, checkpoint, or argument."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyspark
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from comet.encryption.keys import add_key
from comet.wire.bearer import make_access_key
from tests.robustness.secret_world import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PAGES = ("jobs", "stages", "environment", "executors", "SQL", "StreamingQuery", "storage")
RESOURCES = ("environment", "allexecutors", "sql?details=true&planDescription=true&length=200", "jobs", "stages")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    found.broker.start()
    try:
        yield found
    finally:
        found.broker.kill()


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The job, with an executor that is a process; its log and the event log are in the folder."""
    root = str(Path(__file__).parents[2])
    settings = {
        "spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(), "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": root,
    }  # fmt: skip
    (folder / "events").mkdir(parents=True)
    command = [sys.executable, "-m", "tests.spark.secrets_job", json.dumps(settings), str(folder / "checkpoints")]
    environment = os.environ | {"SPARK_LOCAL_DIRS": str(folder / "local"), "PYTHONPATH": root}
    with (
        (folder / "driver.log").open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=root, env=environment
        ) as process,
    ):
        try:
            yield process
        finally:
            left = []
            with suppress(psutil.NoSuchProcess):
                left = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for one in left:
                with suppress(psutil.NoSuchProcess):
                    one.kill()


class Job:
    """The driver's side of the job: each line of it is kept, since plans are among them."""

    def __init__(self, world: World, process: subprocess.Popen[str]) -> None:
        self.world = world
        self.process = process

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.world.saw("plans", line.encode())
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError("the job has ended")

    def query(self, **options: Path | str) -> str:
        assert self.process.stdin is not None
        given = {"bootstrap": self.world.broker.address, "ca": self.world.ca, "timeoutMs": 20_000, **options}
        self.process.stdin.write(json.dumps({name: str(value) for name, value in given.items()}) + "\n")
        self.process.stdin.flush()
        return str(self.answer()["error"])


def look_at_ui(world: World, url: str) -> None:
    with httpx.Client(base_url=url, timeout=60, follow_redirects=True) as http:
        for page in PAGES:
            world.saw(f"page {page}", http.get(f"/{page}/").content)
        (application,) = http.get("/api/v1/applications").json()
        for resource in RESOURCES:
            answer = http.get(f"/api/v1/applications/{application['id']}/{resource}")
            assert answer.status_code == 200, resource
            world.saw(f"resource {resource}", answer.content)
        for execution in http.get(f"/api/v1/applications/{application['id']}/sql?length=200").json():
            world.saw("plans in the UI", http.get(f"/SQL/execution/?id={execution['id']}").content)


def test_no_secret_of_sparks_options_is_written_or_shown(world: World, tmp_path: Path) -> None:
    keyring = tmp_path / "keyring"
    add_key(keyring, "k1")
    world.secrets.add("key of the keyring", keyring.read_text().split()[1])
    world.command("topic", "create", "quotes")
    world.command("topic", "create", "copies")
    wrong = world.file("wrong.access-key", world.secrets.add("unknown access key", make_access_key()))
    pasted = world.secrets.add("pasted access key", make_access_key())
    forged = world.jwt("forged", key=ec.generate_private_key(ec.SECP256R1()))
    folder = tmp_path / "spark"
    folder.mkdir()
    with running(folder) as process:
        job = Job(world, process)
        said = job.answer()
        assert job.query(accessKey=world.admin_key, keyring=keyring) == ""
        assert job.query(token=world.jwt("root"), keyring=keyring) == ""
        assert "CREDENTIALS" in job.query(accessKey=wrong).upper()
        assert job.query(token=forged) != ""
        assert job.query(accessKey=world.admin_key, keyring=wrong) != "", "a file of another kind, in its place"
        assert "access key itself was given" in job.query(accessKey=pasted)
        look_at_ui(world, said["ui"])
        world.secrets.look_at_processes()
        world.saw("output", process.communicate(timeout=120)[0].encode())
    world.broker.terminate()
    world.look_at_files()
    executors = Path(pyspark.__file__).parent / "work" / said["application"]  # Spark's choice
    world.secrets.look_at_files(executors, ())
    seen = world.secrets.seen
    assert b"Physical Plan" in seen["plans"] and b"comet" in seen["plans in the UI"]
    assert len(seen["file 0/stderr"]) > 1_000, "the log of the executor"
    assert any("/events/" in where for where in seen) and any("/checkpoints/" in where for where in seen)
    assert world.secrets.leaks() == {}
