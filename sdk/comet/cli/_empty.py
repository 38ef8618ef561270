"""The work of `comet cluster empty`: moves all replicas away from a broker, so that it can be stopped for good.

drain ─► MovePartition, 50 at once ─► again, until it holds nothing        --wait
         the controller and the leaders carry the moves out, whether or not this command runs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from comet.cli._acts import SHOWN_MAX, WAIT_S
from comet.cli._output import note, print_json, print_table
from comet.cli._values import brokers_text
from comet.errors import BrokerNotFound, Forbidden, InvalidArgument, Timeout
from comet.units import count, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    import comet
    from comet.cli._empty_plan import Emptying, Move
    from comet.entities import ClusterInfo, TopicInfo

_LISTINGS_MAX: Final = 3  # of topics that are created meanwhile
_PROBLEMS_MAX: Final = 10  # in a message


async def empty_broker(
    bootstrap: str, broker: int, *, undo: bool, wait: bool, timeout: str, dry_run: bool, as_json: bool
) -> None:
    """Runs the command."""
    import comet

    if timeout and not wait:
        raise InvalidArgument("--timeout needs --wait")
    timeout_s = parse_duration_ms(timeout) / 1000 if timeout else None
    async with comet.Admin(bootstrap) as admin:
        if undo:
            stopped = await _undo(admin, broker, dry_run=dry_run)
            _show_undo(broker, stopped, dry_run=dry_run, as_json=as_json)
            return
        plan = await _plan(admin, broker, start=True)
        if not dry_run:
            plan = await _run(admin, broker, plan, timeout_s=timeout_s, wait=wait)
    _show(broker, plan, dry_run=dry_run, as_json=as_json)


async def _run(admin: comet.Admin, broker: int, plan: Emptying, *, timeout_s: float | None, wait: bool) -> Emptying:
    """Starts the moves, and with `wait` follows them to their end. Returns the last plan."""
    import asyncio

    if any(one.id == broker for one in (await admin.describe_cluster()).brokers):
        await admin.drain_broker(broker)
    loop = asyncio.get_running_loop()
    give_up = None if timeout_s is None else loop.time() + timeout_s
    shown = ""
    try:
        while True:
            for move in plan.due:
                await admin.move_partition(move.topic, move.partition, move.after)
            if not wait or not plan.holds:
                return plan
            line = "; ".join([f"broker {broker} holds {count(plan.holds, 'partition')}", *plan.problems[:1]])
            if line != shown:
                note(line)
                shown = line
            if give_up is not None and loop.time() >= give_up:
                raise Timeout(f"broker {broker} still holds {count(plan.holds, 'partition')}; the moves go on")
            await asyncio.sleep(WAIT_S)
            plan = await _plan(admin, broker)
    except asyncio.CancelledError:
        note(
            f"the moves under way go on; repeat to start the others, or stop them: comet cluster empty {broker} --undo"
        )
        raise


async def _plan(admin: comet.Admin, broker: int, *, start: bool = False) -> Emptying:
    """Raises BrokerNotFound, and InvalidArgument if at the `start` a partition cannot leave the broker."""
    from comet.cli._empty_plan import plan_emptying

    cluster, topics = await _look(admin)
    plan = plan_emptying(broker, cluster.brokers, topics)
    if start and not plan.holds and all(one.id != broker for one in cluster.brokers):
        raise BrokerNotFound(f"broker {broker} is not registered, and holds nothing")
    if start and plan.problems:
        more = f"; and {len(plan.problems) - _PROBLEMS_MAX} more" * (len(plan.problems) > _PROBLEMS_MAX)
        raise InvalidArgument(
            f"too few brokers to empty broker {broker}: {'; '.join(plan.problems[:_PROBLEMS_MAX])}{more}. Add a broker,"
            " end the draining of another one, or give these partitions fewer replicas: comet topic move"
        )
    return plan


async def _look(admin: comet.Admin) -> tuple[ClusterInfo, Sequence[TopicInfo]]:
    """The brokers and all topics. Raises Forbidden if the client does not see all."""
    for _ in range(_LISTINGS_MAX):
        cluster, topics = await admin.describe_cluster(), await admin.list_topics()
        if len(topics) >= cluster.topics:
            return cluster, topics
    raise Forbidden(
        f"this client sees {len(topics)} of {cluster.topics} topics, and a broker is emptied of all: it needs describe "
        "on topic *"
    )


async def _undo(admin: comet.Admin, broker: int, *, dry_run: bool) -> Sequence[Move]:
    """Stops the moves away from the broker, and lets it lead again. Returns the stopped moves."""
    from comet.cli._empty_plan import plan_emptying

    cluster, topics = await _look(admin)
    moving = plan_emptying(broker, cluster.brokers, topics).moving
    if not dry_run:
        await admin.drain_broker(broker, undo=True)
        for move in moving:
            await admin.move_partition(move.topic, move.partition, move.before)
    return moving


def _show(broker: int, plan: Emptying, *, dry_run: bool, as_json: bool) -> None:
    started = (*plan.moving, *plan.due)
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "broker": broker,
                "holds": plan.holds,
                "moves": [move._asdict() for move in (*plan.moving, *plan.moves)],
            }
        )
        return
    if not plan.holds:
        print(f"broker {broker} holds nothing" + ("" if dry_run else "; it can be stopped for good"))
        return
    if dry_run:
        print(f"{count(plan.holds, 'partition')} would move away from broker {broker}")
        _show_moves((*plan.moving, *plan.moves))
        return
    print(f"broker {broker} holds {count(plan.holds, 'partition')}, of which {len(started)} move; repeat, or --wait")


def _show_undo(broker: int, stopped: Sequence[Move], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": dry_run, "broker": broker, "stopped": [move._asdict() for move in stopped]})
        return
    effect = "would end" if dry_run else "ended"
    print(f"the draining of broker {broker} {effect}; {count(len(stopped), 'move')} stopped")
    if dry_run:
        _show_moves(stopped)


def _show_moves(moves: Sequence[Move]) -> None:
    if not moves:
        return
    rows = [[one.topic, one.partition, brokers_text(one.before), brokers_text(one.after)] for one in moves[:SHOWN_MAX]]
    print_table(["topic", "partition", "before", "after"], rows)
    if len(moves) > SHOWN_MAX:
        note(f"and {len(moves) - SHOWN_MAX} more: --json lists all")
