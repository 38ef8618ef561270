"""A new row in the table of topic settings appears in the broker, REST, pages, commands and documents."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.tidy.tree import ROOT


def test_a_new_row_appears_everywhere() -> None:
    command = [sys.executable, "-m", "tests.integration.new_topic_setting"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "created": "5000",
        "described": ["5000", "topic", "2000"],
        "unset": [2000, "cluster"],
        "listed": ["Probe interval", "2000", "cluster"],
        "schemas": ["TopicChanges", "TopicConfig", "TopicSettingsGiven"],
        "page": ["probe_ms", "5 s", "2 s", "topic", "How often it is probed."],
        "flags": {"create": True, "alter": True},
        "broker": "--topic-probe-ms",
        "docs": True,
    }
