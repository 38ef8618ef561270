"""The checks of `comet doctor`, one function each. A check returns its finding, with advice if there is a problem."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from comet.cli._etcd_checks import MemberCheck, check_etcd_program, check_members
from comet.cli._finding import Finding
from comet.cli._tls_checks import check_broker_files, check_client_files
from comet.units import format_bytes

if TYPE_CHECKING:
    from comet_broker.config import BrokerConfig

SPACE_BYTES_MIN: Final = 1 << 30
SPACE_BYTES_GOOD: Final = 10 << 30
WRITE_BYTES: Final = 64 << 20
WRITE_RATE_GOOD: Final = 100e6
SYNC_COUNT: Final = 10
SYNC_MS_GOOD: Final = 20.0
FILES_GOOD: Final = 4096
CLOCK_STEP_S_MAX: Final = 0.05
PROBE_TIMEOUT_S: Final = 10.0


def run_checks(config: BrokerConfig) -> list[Finding]:
    data, host, port = config.data, config.host, config.port
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", check_python),
        ("packages", check_packages),
        ("uvloop", check_uvloop),
        ("data folder", lambda: check_data_folder(data)),
        ("disk space", lambda: check_space(data)),
        ("disk speed", lambda: check_disk_speed(data)),
        ("fsync", lambda: check_fsync(data)),
        ("port", lambda: check_port(host, port)),
        ("open files", check_open_files),
        ("clock", check_clock),
        ("memory", check_memory),
        ("etcd", check_etcd_program),
        ("spark", lambda: check_spark(os.environ)),
        ("java", lambda: check_program("java", ["-version"], "only the Spark source and sink need it")),
    ]
    if config.etcd:
        checks.append(("etcd members", lambda: check_members(config.etcd)))
    members = [MemberCheck(address, config.etcd_ca, config.etcd_cert, config.etcd_key) for address in config.etcd]
    checks += [(member.name, member.run) for member in members]
    tls = [*check_client_files(), *check_broker_files(config)]
    return [*(_guarded(name, check) for name, check in checks), *tls]


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except OSError as error:
        return Finding(name, "fail", error.strerror or str(error), f"the check failed: {error}")


def check_python() -> Finding:
    """The version of Python. Comet cannot be imported before 3.11."""
    return Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")


def check_packages() -> Finding:
    """All required dependencies of the wheel are installed."""
    missing = []
    for requirement in importlib.metadata.requires("comet-stream") or []:
        name, _, marker = requirement.partition(";")
        if "extra ==" in marker or "sys_platform" in marker:
            continue
        package = re.split(r"[<>=!~ \[]", name, maxsplit=1)[0]
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        return Finding("packages", "fail", "missing: " + ", ".join(missing), f"pip install {' '.join(missing)}")
    versions = {name: importlib.metadata.version(name) for name in ("comet-stream", "grpcio", "protobuf")}
    return Finding("packages", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))


def check_spark(environment: Mapping[str, str]) -> Finding:
    """Whether Spark asks this Python for its data sources."""
    if importlib.util.find_spec("pyspark") is None:
        return Finding("spark", "ok", "not installed; only programs with the Spark source and sink need it")
    command = environment.get("PYSPARK_PYTHON", "python3")
    found = shutil.which(command, path=environment.get("PATH", ""))
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return Finding("spark", "ok", f"asks {found} for its data sources")
    advice = "use comet.spark.session, activate the environment of this Python, or set PYSPARK_PYTHON to it"
    return Finding("spark", "warn", f'asks {found or command} for format("comet"), not {sys.executable}', advice)


def check_uvloop() -> Finding:
    try:
        return Finding("uvloop", "ok", importlib.metadata.version("uvloop"))
    except importlib.metadata.PackageNotFoundError:
        return Finding("uvloop", "warn", "missing", "latency doubles without it: pip install uvloop")


def _nearest(data: Path) -> Path:
    """The nearest existing folder: a new data folder is created there."""
    folder = data.resolve()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def check_data_folder(data: Path) -> Finding:
    folder = _nearest(data)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return Finding("data folder", "fail", f"cannot write in {folder}", "choose another: comet up --data DIR")
    state = "exists" if data.exists() else "will be created"
    return Finding("data folder", "ok", f"{data.resolve()} ({state})")


def check_space(data: Path) -> Finding:
    free = shutil.disk_usage(_nearest(data)).free
    detail = f"{format_bytes(free)} free"
    advice = "free space, put --data elsewhere, or keep topics short: --set retention_bytes=1GiB"
    if free < SPACE_BYTES_MIN:
        return Finding("disk space", "fail", detail, advice)
    return Finding(
        "disk space", "ok" if free >= SPACE_BYTES_GOOD else "warn", detail, "" if free >= SPACE_BYTES_GOOD else advice
    )


def check_disk_speed(data: Path) -> Finding:
    """The rate of writing and syncing one file: a broker's sustained rate, despite the page cache."""
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=_nearest(data)) as file:
        start = time.perf_counter()
        for _ in range(WRITE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        rate = WRITE_BYTES / (time.perf_counter() - start)
    detail = f"{format_bytes(rate)}/s to disk"
    if rate < WRITE_RATE_GOOD:
        return Finding("disk speed", "warn", detail, "a broker cannot sustain a higher rate; use a local SSD")
    return Finding("disk speed", "ok", detail)


def check_fsync(data: Path) -> Finding:
    waits = []
    with tempfile.TemporaryFile(dir=_nearest(data), buffering=0) as file:
        for _ in range(SYNC_COUNT):
            file.write(b"x" * 4096)
            start = time.perf_counter()
            os.fsync(file.fileno())
            waits.append((time.perf_counter() - start) * 1e3)
    median = statistics.median(waits)
    detail = f"{median:.2f} ms median, {max(waits):.2f} ms worst of {SYNC_COUNT}"
    if median > SYNC_MS_GOOD:
        return Finding("fsync", "warn", detail, "topics with flush=always wait this long; flush=interval does not")
    return Finding("fsync", "ok", detail)


def check_port(host: str, port: int) -> Finding:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            detail = f"{host}:{port}: {error.strerror}"
            return Finding(
                "port", "warn", detail, "a broker may be running there; choose another port: comet up --port N"
            )
    return Finding("port", "ok", f"{host}:{port} is free")


def check_open_files() -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("open files", "ok", "no limit on this system")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES_GOOD:
        return Finding(
            "open files",
            "warn",
            f"{soft} (hard {hard})",
            f"each partition and client needs some: ulimit -n {FILES_GOOD}",
        )
    return Finding("open files", "ok", f"{soft}")


def check_clock() -> Finding:
    """Wall time must be plausible and run as fast as monotonic time: retention and --from -1h use it."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_STEP_S_MAX)
    step = abs((time.time() - wall) - (time.monotonic() - steady))
    if time.time() < 1_700_000_000:
        return Finding("clock", "fail", time.ctime(), "the clock is years behind: set it and run a time service")
    if step > CLOCK_STEP_S_MAX:
        return Finding(
            "clock", "warn", f"jumped by {step * 1e3:.0f} ms", "run a time service that slews the clock, such as chrony"
        )
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def check_memory() -> Finding:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    cores = os.cpu_count() or 1
    return Finding(
        "memory", "ok" if pages * size >= 1 << 30 else "warn", f"{format_bytes(pages * size)}, {cores} cores"
    )


def check_program(name: str, arguments: list[str], why: str) -> Finding:
    """An optional program. If it is missing, the finding names what needs it."""
    path = shutil.which(name)
    if path is None:
        return Finding(name, "ok", f"not found; {why}")
    try:
        shown = subprocess.run(  # noqa: S603 - found on the path, fixed arguments
            [path, *arguments], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(name, "warn", f"{path} does not answer", why)
    first = (shown.stdout + shown.stderr).strip().splitlines()[:1]
    return Finding(name, "ok", f"{first[0] if first else 'present'} ({path})")
