"""Prometheus and promtool as processes of their own, with the files of deploy/prometheus.

`python -m tests.deploy.prometheus_server` says which programs the tests run, or what to do; `scripts/promtool` installs
them where that fails.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from comet.processes.child import Child
from tests.programs import wrong_with
from tests.robustness.process import free_port
from tests.waiting import until_answered

FOLDER: Final = Path(__file__).parents[2] / "deploy/prometheus"
PROGRAMS: Final = ("promtool", "prometheus")
TO_DO: Final = "the tests of alerts need it: install the package prometheus (Debian, Ubuntu, Homebrew)"
START_S_MAX: Final = 30.0
SECOND: Final = "1s"  # between scrapes, and between evaluations


class ProgramNotFound(Exception):
    """It does not run here; the message says what to install."""


def find_program(name: str) -> str:
    """The path of one that runs, on PATH. Raises ProgramNotFound."""
    path = shutil.which(name)
    why = f"{name} was not found" if path is None else wrong_with(path, "--version")
    if path is None or why:
        raise ProgramNotFound(f"{why}; {TO_DO}")
    return path


def promtool(*arguments: str | Path) -> str:
    """What promtool says. Fails with it if it finds something wrong."""
    done = subprocess.run(
        [find_program("promtool"), *map(str, arguments)], check=False, capture_output=True, text=True, cwd=FOLDER
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def configured(folder: Path, targets: Mapping[str, Sequence[str]]) -> Path:
    """A copy of the configuration and its rules in a folder: with these targets by job, without tokens, and each second
    instead of each 15. Alerts wait for as many scrapes as before, which are seconds here."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(config["global"], SECOND)
    for job in config["scrape_configs"]:
        del job["authorization"]
        job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
    for name in config["rule_files"]:
        rules = yaml.safe_load((FOLDER / name).read_text())
        for rule in (rule for group in rules["groups"] for rule in group["rules"] if "for" in rule):
            rule["for"] = "2s" if rule["for"].endswith("s") else rule["for"]
        (folder / name).write_text(yaml.safe_dump(rules))
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


class PrometheusServer:
    """One that runs. Owned by a test."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=10)

    async def close(self) -> None:
        await self._http.aclose()

    async def targets(self) -> dict[str, str]:
        """The health of each target: up, down or unknown."""
        return {one["scrapeUrl"]: one["health"] for one in (await self._get("targets"))["activeTargets"]}

    async def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        found = (await self._get("query", query=expression))["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    async def rules(self) -> list[dict[str, Any]]:
        return [rule for group in (await self._get("rules"))["groups"] for rule in group["rules"]]

    async def alerts(self, state: str) -> list[dict[str, str]]:
        """The labels of alerts that are firing, or pending."""
        return [one["labels"] for one in (await self._get("alerts"))["alerts"] if one["state"] == state]

    async def _get(self, path: str, **parameters: str) -> Any:
        answer = await self._http.get(f"/{path}", params=parameters)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer.json()["data"]


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, Sequence[str]]) -> AsyncIterator[PrometheusServer]:
    """A Prometheus with the shipped configuration, as `configured` changes it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        find_program("prometheus"),
        f"--config.file={configured(folder, targets)}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = folder / "prometheus.log"
    child = Child("prometheus", command, log=log)
    child.start()
    server = PrometheusServer(url)
    try:
        async with httpx.AsyncClient() as http:

            async def ready() -> bool:
                with suppress(httpx.TransportError):
                    return (await http.get(f"{url}/-/ready")).status_code == httpx.codes.OK
                return False

            assert await until_answered(ready, within_s=START_S_MAX), log.read_text()
        yield server
    finally:
        await server.close()
        child.stop()


def main() -> None:
    try:
        print("\n".join(map(find_program, PROGRAMS)))
    except ProgramNotFound as error:
        sys.exit(f"comet: {error}")


if __name__ == "__main__":
    main()
