"""The options of all providers, and the provider that they choose; each uses its own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import comet
from comet_demo.model import INSTRUMENTS
from comet_demo.providers import Provider
from comet_demo.providers.market import FAULTS
from comet_demo.providers.public_feeds import Alpaca, Binance, Coinbase, SocketProvider
from comet_demo.providers.replay import ReplayProvider
from comet_demo.providers.synthetic import SyntheticProvider

RATE_MAX: Final = 200_000
HOURS_MAX: Final = 23


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--provider", default="synthetic", choices=NAMES)
    add("--symbols", type=_words, default=(), metavar="A,B", help="separated by commas; synthetic: all by default")
    add("--rate", type=float, default=1000.0, help="synthetic: quotes a second, on average")
    add("--seed", type=int, help="synthetic: the same seed gives the same market")
    add("--day", type=float, default=900.0, metavar="SECONDS", help="synthetic: from opening to closing")
    add("--hours", type=float, default=6.5, help="synthetic: of each session, from its start on; 0: always open")
    add("--faults", type=float, default=FAULTS, help="synthetic: share of invalid quotes")
    add("--file", default="", help="replay: a CSV or Parquet file")
    add("--pace", type=float, default=1.0, help="replay: speed relative to the file's times; 0: as fast as possible")
    add("--keep-times", action="store_true", help="replay: keep the file's times")
    add("--columns", type=_pairs, default={}, help="replay: name=column, separated by commas, for other names")
    add("--url", default="", help="real markets: another address than the default")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _pairs(text: str) -> dict[str, str]:
    found = {}
    for word in _words(text):
        name, equals, column = word.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"invalid {word!r}: use name=column, separated by commas")
        found[name.strip()] = column.strip()
    return found


def _synthetic(options: argparse.Namespace) -> Provider:
    if not 0 < options.rate <= RATE_MAX:
        raise comet.InvalidArgument(f"invalid rate {options.rate:g}: use 1 to {RATE_MAX:,} quotes a second")
    if not 0 <= options.hours <= HOURS_MAX:
        raise comet.InvalidArgument(f"invalid hours {options.hours:g}: use 0 to {HOURS_MAX}")
    if options.day <= 0 or not 0 <= options.faults < 1:
        raise comet.InvalidArgument("the day must be longer than 0 seconds, and faults a share from 0 to below 1")
    unknown = set(options.symbols) - {instrument.symbol for instrument in INSTRUMENTS}
    if unknown:
        names = ", ".join(instrument.symbol for instrument in INSTRUMENTS)
        raise comet.InvalidArgument(f"unknown symbols {', '.join(sorted(unknown))}; the synthetic market has {names}")
    instruments = [one for one in INSTRUMENTS if not options.symbols or one.symbol in options.symbols]
    random = Random(options.seed)
    return SyntheticProvider(instruments, random, rate=options.rate, day_s=options.day, faults=options.faults)


def _replay(options: argparse.Namespace) -> Provider:
    if not options.file:
        raise comet.InvalidArgument("replay needs a file: --file quotes.csv")
    return ReplayProvider(
        options.file,
        pace=options.pace,
        keep_times=options.keep_times,
        columns=options.columns,
        symbols=options.symbols,
    )


def _alpaca(options: argparse.Namespace) -> Provider:
    """Its key is in the environment, where other users of the machine do not see it."""
    key, secret = (os.environ.get(name, "") for name in ("COMET_ALPACA_KEY", "COMET_ALPACA_SECRET"))
    return SocketProvider(Alpaca(key, secret, options.symbols, options.url))


_MAKERS: Final[Mapping[str, Callable[[argparse.Namespace], Provider]]] = {
    "synthetic": _synthetic,
    "replay": _replay,
    "coinbase": lambda options: SocketProvider(Coinbase(options.symbols, options.url)),
    "binance": lambda options: SocketProvider(Binance(options.symbols, options.url)),
    "alpaca": _alpaca,
}
NAMES: Final = tuple(_MAKERS)


def chosen(options: argparse.Namespace) -> Provider:
    """The provider of parsed options. Raises InvalidArgument if they are invalid.

    >>> parser = argparse.ArgumentParser()
    >>> add_options(parser)
    >>> chosen(parser.parse_args(["--symbols", "AAPL", "--seed", "1"])).name
    'synthetic'
    """
    if options.file and options.provider != "replay":
        raise comet.InvalidArgument(f"{options.provider} reads no file: use --provider replay for {options.file!r}")
    return _MAKERS[options.provider](options)
