"""Creates the provider of a given name from its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

import comet
from comet_demo.model import INSTRUMENTS
from comet_demo.providers import Provider
from comet_demo.providers.market import FAULTS
from comet_demo.providers.sockets import SocketProvider
from comet_demo.providers.synthetic import SyntheticProvider

RATE_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of all providers; each uses its own."""

    symbols: tuple[str, ...] = ()
    rate: float = 1000.0
    seed: int | None = None
    day_s: float = 900.0
    faults: float = FAULTS
    file: str = ""
    pace: float = 1.0
    keep_times: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    key: str = ""
    secret: str = ""


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
        choice.file, pace=choice.pace, keep_times=choice.keep_times, columns=choice.columns, symbols=choice.symbols
    )


def _coinbase(choice: Choice) -> Provider:
    from comet_demo.providers.coinbase import Coinbase

    return SocketProvider(Coinbase(choice.symbols, choice.url), Random())


def _binance(choice: Choice) -> Provider:
    from comet_demo.providers.binance import Binance

    return SocketProvider(Binance(choice.symbols, choice.url), Random())


def _alpaca(choice: Choice) -> Provider:
    from comet_demo.providers.alpaca import Alpaca

    return SocketProvider(Alpaca(choice.key, choice.secret, choice.symbols, choice.url), Random())


_MAKERS: Final[Mapping[str, Callable[[Choice], Provider]]] = {
    "synthetic": _synthetic,
    "replay": _replay,
    "coinbase": _coinbase,
    "binance": _binance,
    "alpaca": _alpaca,
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
