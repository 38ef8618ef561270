"""`python -m comet_gateway`: runs one gateway. Prints its URL on stdout once it takes requests.

Takes the settings of `comet gateway`, by flag, environment and file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from comet.errors import CometError
from comet_gateway.server import serve, set_up_logging
from comet_gateway.settings import add_flags, parse


def main() -> int:
    parser = argparse.ArgumentParser(prog="comet_gateway", description=__doc__)
    parser.add_argument("--json", action="store_true", help="Print JSON instead of the URL.")
    add_flags(parser)
    arguments = parser.parse_args()

    def ready(url: str) -> None:
        sys.stdout.write((json.dumps({"url": url}) if arguments.json else url) + "\n")
        sys.stdout.flush()

    try:
        loaded = parse(parser, None, os.environ)
        set_up_logging(loaded.log_level)
        serve(loaded.config, ready)
    except CometError as error:
        sys.stderr.write(f"comet_gateway: {error.message} [{error.code}]\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
