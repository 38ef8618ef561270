"""Routers: handlers of one part of a program, which an app includes.

router.on("placed") ─► app.include(router, prefix="orders.") ─► a handler of "orders.placed"
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, Unpack

from comet.errors import InvalidArgument
from comet.handlers.binding import Binding, check_signature
from comet.handlers.handler import name_of, signature_of
from comet.handlers.keywords import HandlerKeywords
from comet.handlers.message import Middleware, check_middleware
from comet.handlers.options import HandlerOptions, Reading, handler_options
from comet.types import check_topic_name

H = TypeVar("H", bound=Callable[..., Awaitable[None] | None])


class Router:
    """Handlers for topics, in a module of their own: see App.include. `prefix` goes before the names of their topics;
    `middleware` is called around its handlers, inside that of the app.

    >>> orders = comet.Router(prefix="orders.")
    >>> @orders.on("placed", group="billing")
    ... async def bill(order: dict, message: comet.Message) -> None:
    ...     await message.app.publish("invoices", order, key=message.key)
    >>> app = comet.App()
    >>> app.include(orders)
    >>> [(one["topic"], one["handled"]) for one in app.statistics()]
    [('orders.placed', 0)]
    """

    def __init__(self, prefix: str = "", *, middleware: Iterable[Middleware] = ()) -> None:
        self.prefix = prefix
        self.middleware = tuple(middleware)
        for one in self.middleware:
            check_middleware(one)
        self.bindings: list[Binding] = []
        self._included = False

    def on(
        self,
        topic: str,
        *,
        group: str = "",
        type: Any = None,  # noqa: A002 - the name users expect
        options: HandlerOptions | None = None,
        consumer: Reading | None = None,
        **keywords: Unpack[HandlerKeywords],
    ) -> Callable[[H], H]:
        """Registers a handler for a topic, as App.on does. The router's prefix is added.

        >>> orders = comet.Router(prefix="orders.")
        >>> @orders.on("placed", start="earliest")
        ... async def show(order: dict) -> None:
        ...     print(order)
        """
        return registration(
            self._add, self.prefix + topic, group, type, options, consumer, keywords, sys._getframe(1).f_locals
        )

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Adds the handlers of another router, with their middleware inside that of this one.

        >>> orders, eu = comet.Router(prefix="orders."), comet.Router(prefix="eu.")
        >>> @orders.on("placed")
        ... async def show(order: dict) -> None: ...
        >>> eu.include(orders)
        >>> [binding.topic for binding in eu.bindings]
        ['eu.orders.placed']
        """
        for binding in included(router, self.prefix + prefix):
            self._add(binding)

    def _add(self, binding: Binding) -> None:
        if self._included:
            raise InvalidArgument("register handlers before the router is included: app.include(router) comes last")
        self.bindings.append(binding)

    def close(self) -> list[Binding]:
        """Its handlers, each behind the router's middleware; from now on no handler is added."""
        self._included = True
        return [replace(one, middleware=self.middleware + one.middleware) for one in self.bindings]


def included(router: Router, prefix: str) -> list[Binding]:
    """The handlers of a router, as another one or an app includes them."""
    return [replace(one, topic=check_topic_name(prefix + one.topic)) for one in router.close()]


def registration(
    add: Callable[[Binding], None],
    topic: str,
    group: str,
    kind: Any,
    options: HandlerOptions | None,
    consumer: Reading | None,
    keywords: Mapping[str, Any],
    names: Mapping[str, Any],  # of the caller: a class defined beside the handler, inside a function, is found there
) -> Callable[[H], H]:
    """The decorator of a handler. Raises InvalidArgument."""
    check_topic_name(topic)
    handling, reading = handler_options(group, options, consumer, keywords)

    def register(handler: H) -> H:
        signature = signature_of(handler, names, kind)
        check_signature(signature, group, handling)
        add(Binding(topic, handler, signature, name_of(handler), group, handling, reading))
        return handler

    return register
