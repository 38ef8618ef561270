"""A secret that was given in place of the path of its file: refused without showing it, since errors and logs name
paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from comet.errors import InvalidArgument

_SECRET: Final = re.compile(
    r"""comet_[0-9a-f]{12}_[\w-]{43}       # an access key
      | eyJ[\w-]+\.eyJ[\w-]+\.             # a token (JWT)
      | -----BEGIN                         # a key or certificate in PEM
      | \s[A-Za-z0-9+/]{43}=               # a line of a keyring
    """,
    re.VERBOSE,
)


def check_path(given: str | Path | None, what: str) -> None:
    """Raises InvalidArgument if this is a secret.

    >>> check_path("/etc/comet/billing.access-key", "access key")
    """
    if given is not None and _SECRET.search(str(given)):
        raise InvalidArgument(f"the {what} itself was given: write it to a file of mode 600, and give the file's path")
