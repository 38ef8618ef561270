"""The command line, `comet`.

    comet up | broker | gateway | topic ... | produce | consume | search | export | group ... | dead-letters ...
    comet cluster | acl ... | key ... | quota ... | context ... | security ... | doctor | demo | bench

`comet.cli` may start the broker, the gateway and the demo, and writes exports and redrives dead letters with parts
of the gateway; nothing else in `comet` imports them. The command that needs a heavy module (gRPC, the broker, rich)
imports it, so that `comet --help` and completion stay quick.
Exit codes, which scripts may rely on, are in `comet.cli._exit`; options are described in docs/cli.md.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its exit code."""
    # What is imported stays: a search for garbage in it finds none, and takes an eighth of a short command's time.
    gc.disable()  # until a command has imported its modules, see comet.cli._guard
    try:
        from comet.cli._commands import app

        app(None if arguments is None else list(arguments), prog_name="comet")
    except KeyboardInterrupt:  # in the first half second, before the guard around each command exists
        from comet.cli._exit import INTERRUPTED

        raise SystemExit(INTERRUPTED) from None
    finally:
        gc.freeze()  # or the interpreter searches everything as it exits
        gc.enable()
