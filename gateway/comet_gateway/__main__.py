"""`python -m comet_gateway`: one gateway and nothing else. Prints its URL on stdout once it takes requests."""

from __future__ import annotations

import argparse
import json
import logging
import sys

from comet.errors import CometError
from comet_gateway.config import GatewayConfig
from comet_gateway.server import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="comet_gateway", description=__doc__)
    parser.add_argument("--json", action="store_true", help="Print JSON instead of the URL.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    told = parser.parse_args()

    def ready(url: str) -> None:
        sys.stdout.write((json.dumps({"url": url}) if told.json else url) + "\n")
        sys.stdout.flush()

    try:
        logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        serve(GatewayConfig(bootstrap=told.bootstrap, host=told.host, port=told.port), ready)
    except CometError as error:
        sys.stderr.write(f"comet_gateway: {error.message} [{error.code}]\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
