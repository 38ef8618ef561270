"""The programs of docs/guides/tracing.md do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, SpanContext, TraceFlags

import comet

GUIDE = (Path(__file__).parents[2] / "docs/guides/tracing.md").read_text()
TIMEOUT_S = 60


def block(title: str) -> str:
    found = re.search(rf'^```python title="{title}"\n(.*?)^```', GUIDE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def test_the_traced_program_prints_its_spans(tmp_path: Path) -> None:
    with comet.testing.broker() as broker:
        program = tmp_path / "traced.py"
        program.write_text(block("traced.py").replace("localhost:9092", broker.address))
        done = subprocess.run(
            [sys.executable, str(program)], check=True, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    promised = re.search(r"^python3 traced.py\n```\n\n```text\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert promised is not None
    assert done.stdout == promised[1]


def test_the_sampler_follows_links() -> None:
    names: dict[str, Any] = {}
    exec(block("follow_links.py"), names)  # the program of the guide
    sampler = names["sampler"]

    def decides(*flags: int) -> Any:
        links = [Link(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(flag))) for flag in flags]
        return sampler.should_sample(None, (1 << 128) - 1, "process quotes", links=links).decision

    assert decides(0, 1) is Decision.RECORD_AND_SAMPLE
    assert decides() is decides(0) is Decision.DROP
