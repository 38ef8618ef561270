"""`python -m comet_broker`: one broker and nothing else. Prints its address on stdout once it takes requests."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from comet.errors import CometError
from comet_broker.config import BrokerConfig
from comet_broker.server import Server, serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="comet_broker", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds everything this broker keeps")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9092, help="0 picks a free one")
    parser.add_argument("--advertised-host", default="", help="what clients are told, where it differs from --host")
    parser.add_argument("--broker-id", type=int, default=1)
    parser.add_argument("--retention-check-ms", type=int, default=10_000)
    parser.add_argument("--log-level", default="warning", choices=["debug", "info", "warning", "error"])
    options = parser.parse_args()
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = BrokerConfig(
        data=options.data,
        host=options.host,
        port=options.port,
        advertised_host=options.advertised_host,
        broker_id=options.broker_id,
        retention_check_ms=options.retention_check_ms,
    )

    def ready(server: Server) -> None:
        sys.stdout.write(server.address + "\n")
        sys.stdout.flush()

    try:
        serve(config, ready)
    except CometError as error:
        sys.stderr.write(f"comet_broker: {error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
