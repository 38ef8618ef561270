"""The files that a public forge reads: valid, and its CI is the gate."""

from __future__ import annotations

import tomllib

import pytest
import yaml

from tests.deploy.schemas import problems
from tests.tidy.tree import ROOT

SCHEMAS = {
    "workflows/ci.yml": "github-workflows",
    "ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    "ISSUE_TEMPLATE/feature.yml": "github-issue-forms",
    "ISSUE_TEMPLATE/config.yml": "github-issue-config",
}


@pytest.mark.parametrize("file", SCHEMAS)
def test_the_forge_can_read_it(file: str) -> None:
    assert problems(SCHEMAS[file], yaml.safe_load((ROOT / ".github" / file).read_text())) == []


def test_its_ci_is_the_gate() -> None:
    """With each version of Python that the project supports, and the time that the gate takes at most."""
    (job,) = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert "timeout --kill-after=30s 90m" in (ROOT / ".ci/run").read_text() and job["timeout-minutes"] > 90
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = {name.rpartition(" ")[2] for name in project["classifiers"] if name.startswith("Programming Language")}
    assert set(job["strategy"]["matrix"]["python"]) == listed
