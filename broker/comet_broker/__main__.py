"""`python -m comet_broker`: one broker alone. Prints its address on stdout once it takes requests.

Takes the settings of `comet broker`, by flag, environment and file.
"""

from __future__ import annotations

import argparse
import os
import sys

from comet.errors import CometError
from comet_broker.metadata.store import StoreUnavailable
from comet_broker.server import Server, serve, set_up_logging
from comet_broker.settings import add_flags, parse


def main() -> int:
    parser = argparse.ArgumentParser(prog="comet_broker", description=__doc__)
    add_flags(parser)

    def ready(server: Server) -> None:
        sys.stdout.write(server.address + "\n")
        sys.stdout.flush()

    try:
        settings = parse(parser, None, os.environ)
        set_up_logging(settings.log_level)
        serve(settings.config, ready)
    except CometError as error:
        sys.stderr.write(f"comet_broker: {error.message} [{error.code}]\n")
        return 1
    except StoreUnavailable as error:
        sys.stderr.write(f"comet_broker: etcd does not answer: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
