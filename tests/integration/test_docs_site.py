"""The documentation site is built without a warning, and has every public name and every route."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import comet
from comet_gateway import GatewayConfig, create_app
from tests.integration.gateway_tour import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_site_is_built_without_a_warning() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/docs")], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    site = ROOT / "build/site"
    python = (site / "docs/reference/python.html").read_text()
    missing = [name for name in comet.__all__ if name not in ("sync", "testing") and f'id="comet.{name}"' not in python]
    assert not missing
    rest = re.sub(r"<[^>]+>", "", (site / "docs/reference/rest.html").read_text())
    routes = create_app(GatewayConfig()).openapi()["paths"]
    assert not [path for path in routes if path not in rest]
