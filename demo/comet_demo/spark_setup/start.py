"""The way to the Spark job: it starts at once, or when its installation has ended, or the demo is without it.

Spark is there ─────────────────────────────────────────────► job
it is missing, and there is a command ─► installer ─┬─ ended ─► job
                                                    └─ failed ─► without, which the table says
it is missing, and there is none ─────────────────────────────► without
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Final

from comet.processes.child import Child
from comet.processes.crew import Crew
from comet.spark import local
from comet_demo.model import now_us
from comet_demo.terminal.quote_table import SPARK_S, QuoteTable

SPARK: Final = "spark"
INSTALLER: Final = "spark-installer"


class SparkStart:
    """Used by the launcher's main thread. `say` prints a line before there is a table, which has all later news."""

    def __init__(
        self,
        crew: Crew,
        quote_table: QuoteTable,
        bootstrap: str,
        job_flags: Sequence[str],
        install: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self._crew = crew
        self._quote_table = quote_table
        self._bootstrap = bootstrap
        self._job_flags = job_flags
        self._install = install
        self._say = say
        self._installer: Child | None = None
        self._job: Child | None = None  # started, and not handed over yet

    def begin(self) -> None:
        """Starts the job or its installation, or says why neither."""
        lacking = local.missing()
        if lacking is None:
            job = self._start()
            self._say(f"Spark is starting, its first bars take {SPARK_S} seconds; its log is {job.log}")
        elif self._install:
            arguments = (f"--bootstrap={self._bootstrap}", "--", *self._install)
            self._installer = self._crew.start(INSTALLER, "comet_demo.spark_setup.installer", *arguments)
            self._quote_table.without_spark = "Spark is being installed"
            self._say(
                "Spark is missing: it is being installed while quotes move; --no-spark leaves it out. "
                f"Its log is {self._installer.log}"
            )
        else:
            self._do_without(lacking)
            self._say(f"No analytics. {lacking}")

    def check(self) -> Child | None:
        """Looks how far the installation is. Returns the job's process once it is started."""
        installer = self._installer
        if installer is not None and installer.ended is None:
            self._quote_table.without_spark = f"Spark is being installed: {_step(installer)}"
        elif installer is not None:
            self._installer = None
            self._installed(installer)
        job, self._job = self._job, None
        return job

    def _installed(self, installer: Child) -> None:
        importlib.invalidate_caches()  # of the folders that had no Spark
        lacking = local.missing()
        if lacking is None:  # also where only what follows its installation has failed
            self._start()
        else:
            self._crew.keep = True
            self._do_without(_step(installer) if installer.ended else lacking)

    def _start(self) -> Child:
        self._job = job = self._crew.start(SPARK, "comet_demo.analytics.spark_job", *self._job_flags)
        self._quote_table.without_spark = ""
        self._quote_table.spark_began_us = now_us()
        return job

    def _do_without(self, reason: str) -> None:
        self._quote_table.without_spark = f"no analytics: {reason}"


def _step(installer: Child) -> str:
    return (installer.last_lines() or ["it begins"])[-1]
