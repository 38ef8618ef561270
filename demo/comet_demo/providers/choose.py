"""Creates the provider of a given name from its options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, Final

import comet
from comet_demo.model import INSTRUMENTS
from comet_demo.providers import Provider
from comet_demo.providers.market import FAULTS
from comet_demo.providers.public_feeds import Alpaca, Binance, Coinbase
from comet_demo.providers.sockets import SocketProvider
from comet_demo.providers.synthetic import SyntheticProvider

RATE_MAX: Final = 200_000


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


def _option(default: Any, parse: Callable[[str], Any], about: str, flag: str = "") -> Any:
    """A field that is an option of the command, too; `flag` if it is not named as the field."""
    return field(default=default, metadata={"parse": parse, "help": about, "flag": flag})


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of all providers, which the command has too; each provider uses its own."""

    symbols: tuple[str, ...] = _option((), _words, "separated by commas; synthetic: all by default")
    rate: float = _option(1000.0, float, "synthetic: quotes a second, on average")
    seed: int | None = _option(None, int, "synthetic: the same seed gives the same market")
    day_s: float = _option(900.0, float, "synthetic: seconds from opening to closing", "day")
    faults: float = _option(FAULTS, float, "synthetic: share of invalid quotes")
    file: str = _option("", str, "replay: a CSV or Parquet file")
    pace: float = _option(1.0, float, "replay: speed relative to the file's times; 0: as fast as possible")
    keep_times: bool = _option(False, bool, "replay: keep the file's times")
    columns: Mapping[str, str] | None = _option(
        None, _pairs, "replay: name=column, separated by commas, for other names"
    )
    url: str = _option("", str, "real markets: another address than the default")
    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        for one in (one for one in fields(Choice) if one.metadata):
            name, parse = one.metadata["flag"] or one.name, one.metadata["parse"]
            form: dict[str, Any] = (
                {"action": "store_true"}
                if parse is bool
                else {"type": parse, "default": one.default, "metavar": name.upper()}
            )
            parser.add_argument(f"--{name.replace('_', '-')}", dest=one.name, help=one.metadata["help"], **form)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Choice:
        """From parsed options; Alpaca's key is in the environment, where other users of the machine do not see it."""
        given = {one.name: getattr(options, one.name) for one in fields(cls) if one.metadata}
        environ = os.environ
        return cls(**given, key=environ.get("COMET_ALPACA_KEY", ""), secret=environ.get("COMET_ALPACA_SECRET", ""))


def _synthetic(choice: Choice) -> Provider:
    if not 0 < choice.rate <= RATE_MAX:
        raise comet.InvalidArgument(f"invalid rate {choice.rate:g}: use 1 to {RATE_MAX:,} quotes a second")
    if choice.day_s <= 0 or not 0 <= choice.faults < 1:
        raise comet.InvalidArgument("the day must be longer than 0 seconds, and faults a share from 0 to below 1")
    unknown = set(choice.symbols) - {instrument.symbol for instrument in INSTRUMENTS}
    if unknown:
        names = ", ".join(instrument.symbol for instrument in INSTRUMENTS)
        raise comet.InvalidArgument(f"unknown symbols {', '.join(sorted(unknown))}; the synthetic market has {names}")
    chosen = [one for one in INSTRUMENTS if not choice.symbols or one.symbol in choice.symbols]
    random = Random(choice.seed)
    return SyntheticProvider(chosen, random, rate=choice.rate, day_s=choice.day_s, faults=choice.faults)


def _replay(choice: Choice) -> Provider:
    from comet_demo.providers.replay import ReplayProvider

    if not choice.file:
        raise comet.InvalidArgument("replay needs a file: --file quotes.csv")
    return ReplayProvider(
        choice.file,
        pace=choice.pace,
        keep_times=choice.keep_times,
        columns=choice.columns or {},
        symbols=choice.symbols,
    )


_MAKERS: Final[Mapping[str, Callable[[Choice], Provider]]] = {
    "synthetic": _synthetic,
    "replay": _replay,
    "coinbase": lambda choice: SocketProvider(Coinbase(choice.symbols, choice.url), Random()),
    "binance": lambda choice: SocketProvider(Binance(choice.symbols, choice.url), Random()),
    "alpaca": lambda choice: SocketProvider(Alpaca(choice.key, choice.secret, choice.symbols, choice.url), Random()),
}
NAMES: Final = tuple(_MAKERS)


def by_name(name: str, choice: Choice) -> Provider:
    """The provider of that name. Raises InvalidArgument if its options are invalid.

    >>> by_name("synthetic", Choice(symbols=("AAPL",), seed=1)).name
    'synthetic'
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise comet.InvalidArgument(f"unknown provider {name!r}; use {', '.join(NAMES)}")
    if choice.file and maker is not _replay:
        raise comet.InvalidArgument(f"{name} reads no file: use --provider replay for {choice.file!r}")
    return maker(choice)
