"""docs/guides/secure.md, run as its reader runs it: the shell's commands in one shell, the program in a file."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from comet.processes.child import Child
from tests.etcd import Etcd, free_ports
from tests.integration.gateway_tour import ROOT
from tests.integration.walkthroughs import SECURE, files

BLOCK: Final = re.compile(r"^```sh\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
ADMIN: Final = "env " + " ".join(
    f"COMET_CLIENT_{name}=security/{file}"
    for name, file in (("CA", "ca.pem"), ("CERT", "admin.pem"), ("KEY", "admin.key"))
)
COUNT: Final = "import json, sys; sys.exit(len(json.load(sys.stdin)['brokers']) < 3)"
# What a reader sees before going on, behind a block that leaves programs in the background.
READY: Final = {
    "comet broker": f'until {ADMIN} comet cluster -b localhost:9091 --json | python -c "{COUNT}"; do :; done',
    "comet gateway --bootstrap": "until curl -sf --cacert security/ca.pem https://localhost:8443/readyz; do :; done",
}
RECORD: Final = {"customer": "ann", "amount": 12.5}
WAIT_S: Final = 60.0  # for a line
END: Final = "it is the end"


def script(text: str) -> str:
    """The blocks of the guide, each until it is ready."""
    found = ["set -u"]
    for block in BLOCK.findall(text):
        found += [block, *(f"{{ {wait}; }} >/dev/null 2>&1" for start, wait in READY.items() if start in block)]
    return "\n".join([*found, f"echo {END}"])


def free_port_of(etcd: int) -> dict[str, str]:
    """What stands for each port of the guide; those that its loop composes are in tables of the shell."""
    ports = free_ports(7)
    usual = {f"localhost:909{number}": f"localhost:{port}" for number, port in enumerate(ports[:3], start=1)}
    loop = {
        f"{start}$id": f"$(echo {' '.join(map(str, three))} | cut -d' ' -f$id)"
        for start, three in (("909", ports[:3]), ("919", ports[3:6]))
    }
    return {**usual, **loop, "2379": str(etcd), "8443": str(ports[6])}


def replaced(text: str, ports: dict[str, str]) -> str:
    for usual, actual in ports.items():
        text = text.replace(usual, actual)
    return text


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide has calls of curl")
def test_the_guide_secures_a_cluster(tmp_path: Path) -> None:
    text = (ROOT / SECURE).read_text()
    etcd = Etcd.start(tmp_path / "etcd")
    ports = free_port_of(etcd.port)
    for name, content in files(text).items():
        (tmp_path / name).write_text(replaced(content, ports))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "COMET_CONTEXT": "",  # that of the guide becomes the current one
    }
    command = ["bash", "-c", replaced(f"cd {tmp_path}\n{script(text)}", ports)]
    shell = Child("shell", command, log=tmp_path / "log", piped=True, environment=environment)
    shell.start()
    try:
        lines: list[str] = []
        while (line := shell.line(WAIT_S)) != END:
            assert line is not None, (lines, (tmp_path / "log").read_text())
            lines.append(line)
    finally:
        shell.stop()
        etcd.remove()
    record, problem, *changes, explained, consumed = lines[-6:]
    assert "refused" in lines
    assert json.loads(record)["records"][0]["value"] == RECORD
    assert json.loads(problem)["status"] == HTTPStatus.UNAUTHORIZED
    assert all("done: allow client:billing read" in line and "not enforced" not in line for line in changes)
    assert explained.startswith("no: no rule allows client:billing to write topic invoices")
    assert consumed == str(json.dumps(RECORD).encode())
