"""The file descriptors of this process: its limit, raised as far as it may be."""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

DESCRIPTORS_MAX: Final = 1 << 20  # macOS refuses "unlimited"


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard one. Returns the limit from then on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        log.info("open files: limit %d, the hard one", wanted)
        return wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("open files: the limit of %d cannot be raised to %d: %s", soft, wanted, error)
        return soft
    log.info("open files: limit raised from %d to %d, the hard one", soft, wanted)
    return wanted
