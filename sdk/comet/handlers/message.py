"""The message of a handler's call, for middleware and dependencies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Protocol, Self

from comet.errors import InvalidArgument
from comet.producer.delayed_record import Delay
from comet.values.record import HeaderList, text_of_key


class RunningApp(Protocol):
    """The part of the app that middleware, dependencies and handlers of a router use."""

    state: SimpleNamespace

    async def publish(
        self, topic: str, value: Any, *, key: Any = None, headers: Any = None, delay: Delay | None = None,
        due: datetime | None = None, schedule_id: str | None = None,
    ) -> None: ...  # fmt: skip
    async def send(
        self, topic: str, value: Any, *, key: Any = None, headers: Any = None, timestamp_us: int | None = None,
        partition: int | None = None, ttl_ms: int | None = None,
    ) -> Any: ...  # fmt: skip
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Message:
    """One call of a handler: its argument as `value`, and the record that it comes from. Of a list or a batch `offset`
    and `timestamp_us` are those of its first record, and key and headers are empty.

    A handler, a dependency and a middleware may take it; `app` is the app that runs.

    >>> app = comet.App()
    >>> @app.on("quotes")
    ... async def handle(quote: dict, message: comet.Message) -> None:
    ...     await message.app.publish("seen", quote, key=message.key)
    """

    app: RunningApp
    handler: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: HeaderList
    timestamp_us: int
    value: Any

    @property
    def key_text(self) -> str | None:
        """The key as text. Raises SerdeError if it is not UTF-8."""
        return text_of_key(self.key)

    def replaced(self, value: Any) -> Self:
        """The message with another value, for `call_next`."""
        return replace(self, value=value)


class CallNext(Protocol):
    """The next middleware, or the handler itself: the second parameter of a middleware. A middleware that does not call
    it leaves the record out.

    >>> async def only_new(message: comet.Message, call_next: comet.CallNext) -> None:
    ...     if message.timestamp_us > 1_767_225_600_000_000:
    ...         await call_next(message)
    >>> app = comet.App(middleware=[only_new])
    """

    def __call__(self, message: Message, /) -> Awaitable[Any]: ...


Middleware = Callable[[Message, CallNext], Awaitable[Any]]


def check_middleware(middleware: object) -> None:
    """Raises InvalidArgument."""
    if not callable(middleware):
        raise InvalidArgument(f"a middleware is a function (message, call_next), not {middleware!r}")
