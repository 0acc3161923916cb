"""An asyncio event loop on simulated time, so that the product's coroutines run as they are.

One loop belongs to one process: what is due while that is stopped waits, and a dead process does nothing more.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from sim.clock import Timer
from sim.process import Process


class Loop(asyncio.AbstractEventLoop):
    def __init__(
        self, process: Process, thread_delay: Callable[[], float], failed: Callable[[dict[str, Any]], None]
    ) -> None:
        """``thread_delay``: seconds until a call in another thread is made, and until its result is heard. ``failed``:
        gets what no task has caught."""
        self._process, self._thread_delay, self._failed = process, thread_delay, failed
        self._ready: deque[asyncio.Handle] = deque()
        self._running = False
        self._timers: dict[int, Timer] = {}
        self._thread_time: float | None = None
        self.tasks: set[asyncio.Task[Any]] = set()

    def seconds(self) -> float:
        """The process's monotonic clock. To a thread of a stopped process it is still as late as when it last ran."""
        return self._process.clock.now if self._thread_time is None else self._thread_time

    # ---- what tasks, futures and asyncio's helpers use ---------------------------------------------------------------
    def time(self) -> float:
        return self._process.clock.now

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._running and len(self._ready) == 1:
            self._process.after(0.0, self._drain)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers[id(handle)] = self._process.at(when, self._due, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None) -> Any:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # a run ends in the middle of everything
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """In a moment, at once for all that ``func`` does; heard after another moment. A process that is stopped has
        checked before that whether it may write, and what it wrote is on its way."""
        future = self.create_future()
        clock, asked = self._process.clock, self._process.clock.now

        def call() -> None:
            if not self._process.alive:
                return
            self._thread_time = asked if self._process.stopped else None
            try:
                value = func(*args)
            except Exception as error:
                clock.after(self._thread_delay(), self._process.do, self.settle, future, None, error)
            else:
                clock.after(self._thread_delay(), self._process.do, self.settle, future, value, None)
            finally:
                self._thread_time = None

        clock.after(self._thread_delay(), call)
        return future

    def settle(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        """An answer from outside."""
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failed(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        timer = self._timers.pop(id(handle), None)
        if timer is not None:
            timer.cancel()

    # ---- running -----------------------------------------------------------------------------------------------------
    def run(self, call: Callable[[], Any]) -> Any:
        """Call something inside the loop: it may make tasks, futures and events."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return call()
        finally:
            events._set_running_loop(before)

    def _due(self, handle: asyncio.TimerHandle) -> None:
        self._timers.pop(id(handle), None)
        self._ready.append(handle)
        self._drain()

    def _drain(self) -> None:
        if self._running:
            return
        self._running = True
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while self._ready and self._process.runs:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            self._running = False
            events._set_running_loop(before)
        if self._ready:
            self._process.do(self._drain)
