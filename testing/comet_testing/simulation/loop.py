"""An event loop on virtual time: no clock, no sockets, no threads, so that one seed is one run.

    SimLoop.time()   jumps to the next timer as soon as nothing is left to do now
    Node             one simulated process; every callback belongs to the node of its context

A node can be paused (its callbacks wait, as under SIGSTOP) or killed (they never run again: a task that was
suspended at an await stays there for good, and not one of its `finally` blocks runs, as under SIGKILL).

Tasks and futures hash by a serial number, because asyncio keeps them in sets, and a set ordered by memory
addresses would make two runs of one seed differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from enum import Enum, auto
from typing import Any, Final, TypeVar

T = TypeVar("T")

SPINS_MAX: Final = 500_000  # loop turns without time moving on
CREEP_TURNS: Final = 100  # computing takes time, too: after so many turns a moment has passed,
CREEP_S: Final = 1e-6  # so that a wait for the rest of a rounding error ends
RESOLUTION_S: Final = 1e-7  # timers closer together than this fire in one turn
ENDINGS_MAX: Final = 100  # of one task that is taken apart: at its end it may wait, and at the end of that


class Deadlock(AssertionError):
    """Nothing is scheduled and nothing can happen any more."""


class Livelock(AssertionError):
    """The loop turns and turns and time does not move on."""


class Overrun(AssertionError):
    """The run has lasted longer than any run should: something is waited for that does not come."""


class Killed(BaseException):
    """Raised where a killed node would go on; no handler of the code under test may swallow its death."""


class NodeState(Enum):
    RUNNING = auto()
    PAUSED = auto()
    DEAD = auto()


class Node:
    """One simulated process. Owned by the loop that made it; `context` is what its callbacks run in."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.state = NodeState.RUNNING
        self.context = copy_context()
        self.context.run(NODE.set, self)
        self._loop = loop
        self.after: Callable[[], None] | None = None  # called when one of its callbacks has run
        self._held: deque[SimHandle | SimTimerHandle] = deque()

    @property
    def dead(self) -> bool:
        return self.state is NodeState.DEAD

    @property
    def paused(self) -> bool:
        return self.state is NodeState.PAUSED

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Starts a task that lives and dies with this node."""
        return self._loop.create_task(coroutine, name=f"{self.name}: {name}", context=self.context.copy())

    def pause(self) -> None:
        assert self.state is NodeState.RUNNING
        self.state = NodeState.PAUSED

    def resume(self) -> None:
        """All that came due meanwhile runs now, in the order it came due."""
        if self.state is not NodeState.PAUSED:
            return
        self.state = NodeState.RUNNING
        while self._held:
            self._loop.requeue(self._held.popleft())

    def kill(self) -> None:
        self.state = NodeState.DEAD
        self._held.clear()

    def admits(self, handle: SimHandle | SimTimerHandle) -> bool:
        """Whether a callback may run now; one of a paused node is kept for later."""
        if self.state is NodeState.PAUSED:
            self._held.append(handle)
        return self.state is NodeState.RUNNING


NODE: Final[ContextVar[Node | None]] = ContextVar("node", default=None)


class SimHandle(asyncio.Handle):
    """A callback that runs only while its node does."""

    __slots__ = ("node",)

    def __init__(self, callback: Any, args: Any, loop: SimLoop, context: Context) -> None:
        super().__init__(callback, args, loop, context)
        self.node = context.get(NODE)

    def _run(self) -> None:
        node = self.node
        if node is None:
            super()._run()
        elif node.admits(self):
            super()._run()
            if node.after is not None and not node.dead:
                node.after()


class SimTimerHandle(asyncio.TimerHandle):
    """The same, at a time."""

    __slots__ = ("node",)

    def __init__(self, when: float, callback: Any, args: Any, loop: SimLoop, context: Context) -> None:
        super().__init__(when, callback, args, loop, context)
        self.node = context.get(NODE)

    def _run(self) -> None:
        node = self.node
        if node is None:
            super()._run()
        elif node.admits(self):
            super()._run()
            if node.after is not None and not node.dead:
                node.after()


class SimTask(asyncio.Task[T]):
    def __init__(self, coroutine: Coroutine[Any, Any, T], *, loop: SimLoop, **options: Any) -> None:
        self._serial = loop.serial()
        context: Context | None = options.get("context")
        self.node = NODE.get() if context is None else context.get(NODE)
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self._serial


class SimFuture(asyncio.Future[T]):
    def __init__(self, *, loop: SimLoop) -> None:
        self._serial = loop.serial()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class _Selector:
    """Stands where sockets would be waited for: waiting is moving the clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.advance(timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """Runs everything in one thread, in an order that depends on nothing but what is run."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector(self)
        self._clock_resolution = RESOLUTION_S
        self._now = 0.0
        self.seconds_max = float("inf")
        self._spins = 0
        self._serials = 0
        self._reaping = False
        self._every_task: list[SimTask[Any]] = []
        self.unhandled: list[str] = []  # what asyncio would have logged: exceptions that no task took
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note)

    # ---- time

    def time(self) -> float:
        return self._now

    def advance(self, timeout: float | None) -> None:
        if timeout is None:
            raise Deadlock("nothing can happen any more; waiting are:\n" + "\n".join(self.waiting()))
        if timeout > 0:
            self._now += timeout
            if self._now > self.seconds_max:
                self.seconds_max = float("inf")  # so that the end can be orderly
                raise Overrun(f"still running after {self._now:.0f} s; alive are:\n" + "\n".join(self.waiting()))
            self._spins = 0
            return
        self._spins += 1
        if self._spins % CREEP_TURNS == 0:
            self._now += CREEP_S
        if self._spins > SPINS_MAX:
            self._spins = 0  # so that the end can be orderly
            raise Livelock(f"{SPINS_MAX} turns at {self._now:.6f} s; alive are:\n" + "\n".join(self.waiting()))

    # ---- what asyncio asks of a loop

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> SimHandle:
        handle = SimHandle(callback, args, self, copy_context() if context is None else context)
        if not self._reaping:
            self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]
        timer = SimTimerHandle(when, callback, args, self, copy_context() if context is None else context)
        if not self._reaping:
            heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
            timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def requeue(self, handle: SimHandle | SimTimerHandle) -> None:
        """Puts back a callback that a paused node kept."""
        self._ready.append(handle)  # type: ignore[attr-defined]

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    def _make_task(self, _: Any, coroutine: Any, **options: Any) -> SimTask[Any]:
        task: SimTask[Any] = SimTask(coroutine, loop=self, **options)
        self._every_task.append(task)
        if len(self._every_task) > 4096:
            self._every_task = [task for task in self._every_task if not task.done()]
        return task

    def serial(self) -> int:
        self._serials += 1
        return self._serials

    def _asyncgen_finalizer_hook(self, generator: Any) -> None:
        """Closes a generator that was left, which base_events does by way of a thread. Those of dead nodes just end."""
        self._asyncgens.discard(generator)  # type: ignore[attr-defined]
        if not self._reaping and not self.is_closed():
            self.call_soon(self.create_task, generator.aclose())

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        raise AssertionError("a simulation has one thread")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise AssertionError("a simulation has one thread: what blocks goes through the Worker port")

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Killed):
            self.unhandled.append(f"{context.get('message')}: {error!r}")

    # ---- looking in

    def tasks(self) -> Iterator[SimTask[Any]]:
        """Every task that has not ended, those of dead nodes included."""
        return (task for task in self._every_task if not task.done())

    def waiting(self) -> list[str]:
        """A line for each task that has not ended: its name and where it stands."""
        return [f"  {task.get_name()}: {_where(task)}" for task in self.tasks() if not _is_dead(task)]

    # ---- the end

    def finish(self) -> None:
        """Ends all tasks: live ones are cancelled, those of dead nodes are taken apart."""
        living = [task for task in self.tasks() if not _is_dead(task)]
        for task in living:
            task.cancel()
        if living:
            # Not gather: a task whose node was killed on the way would never end.
            self.run_until_complete(asyncio.wait(living, timeout=60))
        self.run_until_complete(self.shutdown_asyncgens())
        self._reaping = True
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what a dying task would still have begun
            self._take_apart()
        self.close()

    def _take_apart(self) -> None:
        while self._every_task:  # taking one apart may make others
            tasks, self._every_task = self._every_task, []
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                for _ in range(ENDINGS_MAX if not task.done() else 0):
                    with contextlib.suppress(BaseException):
                        coroutine.close()  # fails where it waits again, for something that it does at its end
                        break


def run(main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
    """Runs `main(loop)` on a new virtual loop and ends everything it started."""
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main(loop))
    finally:
        try:
            loop.finish()
        finally:
            asyncio.set_event_loop(None)


def _is_dead(task: SimTask[Any]) -> bool:
    return task.node is not None and task.node.dead


def _where(task: SimTask[Any]) -> str:
    """The innermost line at which a task is suspended."""
    location = "not started"
    awaitable: Any = task.get_coro()
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None)
        if frame is not None:
            location = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} in {frame.f_code.co_name}"
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)
    return location
