"""Programs of others that tests run."""

from __future__ import annotations

import subprocess

PROBE_S_MAX = 30.0


def wrong_with(path: str, *arguments: str) -> str:
    """Why the program does not run with these arguments; empty if it does."""
    try:
        run = subprocess.run(
            [path, *arguments], check=False, capture_output=True, timeout=PROBE_S_MAX, text=True, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    said = (run.stderr.strip() or run.stdout.strip() or f"it ends with {run.returncode}").splitlines()[0]
    return f"{path} does not run: {said}" if run.returncode else ""
