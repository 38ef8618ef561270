"""What the tests of deployment share: the image is built once."""

from __future__ import annotations

import pytest

from tests.deploy.containers import Images, why_not


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """`localhost/comet` and its bases; skips where no image can be built."""
    if why := why_not():
        pytest.skip(why)
    images = Images(tmp_path_factory.mktemp("images"))
    images.make_bases()
    images.build()
    return images
