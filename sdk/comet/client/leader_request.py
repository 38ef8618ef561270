"""A request to the leader of a partition, retried until it is answered, without a subscription.

    where the partition is ─► its leader's connection ─► the answer
                       │ NotLeader, no leader, lost ─► found again ─► the same request
                       └ other retriable errors ─► the same request, a little later

A request must be repeatable. Nothing is kept between calls, so any number of them may run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message

from comet import limits
from comet.client.client import Client
from comet.client.connection import Attachment
from comet.client.retry import Backoff
from comet.errors import CometError, LogFailed, NotLeader, PartitionNotFound, Timeout, Unavailable
from comet.types import TopicPartition

M = TypeVar("M", bound=Message)
T = TypeVar("T")


async def call_leader(
    client: Client,
    where: Callable[[], Awaitable[TopicPartition]],
    method: str,
    request: Callable[[], Message],
    response: type[M],
    *,
    give_up: float,
    writes: bool,
) -> M:
    """The answer to a unary call, as `at_leader` gets it."""

    async def call(attachment: Attachment, left_ms: int) -> M:
        return await client.unary_at(attachment.connection.address, method, request(), response, left_ms)

    return await at_leader(client, where, call, give_up=give_up, writes=writes)


async def at_leader(
    client: Client,
    where: Callable[[], Awaitable[TopicPartition]],
    call: Callable[[Attachment, int], Awaitable[T]],
    *,
    give_up: float,
    writes: bool,
) -> T:
    """The answer of the partition's current leader; `call` gets the milliseconds that are left. Raises an error that a
    retry cannot help, and at the loop's time `give_up` the last error: a Timeout if the call may have written
    (`writes`)."""
    loop = asyncio.get_running_loop()
    backoff = Backoff(client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
    problem: CometError | None = None
    unknown = False
    while True:
        attachment: Attachment | None = None
        try:
            async with asyncio.timeout_at(give_up):
                attachment = await client.attach(*await where())
                return await call(attachment, max(int((give_up - loop.time()) * 1000), 1))
        except TimeoutError:
            raise _too_late(problem) from problem
        except CometError as error:
            again = error.retriable or isinstance(error, Timeout | LogFailed)
            if isinstance(error, PartitionNotFound):  # it may have been added, or given to another broker
                again = not isinstance(problem, PartitionNotFound)
            if not again or client.closed:
                raise
            problem = error
            unknown |= error.outcome_unknown or (isinstance(error, Unavailable) and attachment is not None)
            if attachment is not None:
                _misled(client, attachment, *await where(), error)
            wait_s = backoff.next_s(error.retry_after_ms)
        if loop.time() + wait_s >= give_up:
            raise _too_late(problem) if writes and unknown else problem
        await asyncio.sleep(wait_s)


def _misled(client: Client, attachment: Attachment, topic: str, partition: int, error: CometError) -> None:
    """Drops metadata about the leader that may be outdated."""
    connection = attachment.connection
    if error.metadata_stale:
        connection.detach(topic, partition)
    if isinstance(error, NotLeader):
        client.misled(topic, partition, connection.broker_id, error)
    elif error.metadata_stale:
        client.forget(topic)


def _too_late(problem: CometError | None) -> Timeout:
    why = "" if problem is None else f": {problem.message}"
    return Timeout(f"the partition's leader did not answer in time; the request may or may not have been done{why}")
