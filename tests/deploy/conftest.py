"""What the tests of deployment share: the image is built once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.containers import Images, why_not


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """`localhost/comet` and its bases; skips where no image can be built."""
    if why := why_not():
        pytest.skip(why)
    images = Images(tmp_path_factory.mktemp("images"), Path(tempfile.mkdtemp(prefix="comet-")))
    try:
        images.make_bases()
        images.build()
        yield images
    finally:  # more than a gigabyte
        for folder in (images.folder, images.state):
            shutil.rmtree(folder, ignore_errors=True)
