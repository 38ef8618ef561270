"""The tutorial and the guides: their programs and commands, run one after the other against a real `comet up`.

A block of Python or HTML with a title is a file in the reader's folder. A block of `sh` and the `text` behind it are
what the reader runs, and what that printed, as in the tour of the gateway.

`python -m tests.integration.walkthroughs` writes into the documents what is printed now.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final

from tests.integration.gateway_tour import ROOT, STEP, Up, play, steps, up

SPARK: Final = "docs/guides/spark.md"
SECURE: Final = "docs/guides/secure.md"  # has a test of its own, because it starts brokers
# These are tested elsewhere: Docker and Kubernetes are not here, others have programs of other kinds.
ELSEWHERE: Final = {
    "docs/guides/compose.md": "tests/deploy/test_compose.py",
    "docs/guides/gitops.md": "tests/integration/test_apply.py",
    "docs/guides/kubernetes.md": "tests/deploy/test_chart.py",
    "docs/guides/testing-your-app.md": "tests/kit/test_guide.py",
    "docs/guides/tracing.md": "tests/integration/test_tracing_guide.py",
}
DOCUMENTS: Final = {
    "docs/tutorial.md",
    "docs/guides/encryption.md",
    "docs/guides/faststream.md",
    "docs/guides/kafka.md",
    SPARK,
}
FILE: Final = re.compile(r'^```\w+ title="([\w.]+)"\n(.*?)^```\n', re.MULTILINE | re.DOTALL)


def files(text: str) -> dict[str, str]:
    return {found[1]: found[2] for found in FILE.finditer(text)}


def walk(text: str, there: Up, folder: Path) -> list[str]:
    """What each step prints."""
    for name, content in files(text).items():
        (folder / name).write_text(content.replace("localhost:9092", there.broker))
    return play(steps(text), there, folder)


def main() -> None:
    for name in sorted(DOCUMENTS):
        document = ROOT / name
        text = document.read_text()
        with up() as there, tempfile.TemporaryDirectory() as folder:
            printed = iter(walk(text, there, Path(folder)))
        document.write_text(STEP.sub(lambda found: f"```sh\n{found[1]}```\n\n```text\n{next(printed)}```\n", text))  # noqa: B023


if __name__ == "__main__":
    main()
