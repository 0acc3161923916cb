"""What rank 0 does besides the job's state: rows of loggers, checkpoints of a framework. A new rank 0 goes on with it.

All ranks make the same calls. A call is kept until the next step is committed: rank 0 takes part in the sums of that
step only behind its own calls. So if it is lost before it has ended them, all ranks still have the state that they
write, and the new rank 0 makes them again. What belongs to no committed step is cut off.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from elastrain.data.rng import Kept
from elastrain.elastic.contract import Call
from elastrain.elastic.job import Job
from elastrain.elastic.state.tracked import subclass
from elastrain_frameworks.arrives import Arrives

Row = tuple[dict[str, Any], int | None, dict[str, Any]]
"""Numbers by name, their step, options of the logger."""


class Logs:
    """A base of a logger that rank 0 goes on with: how many rows it has."""

    files: Files
    rows = saved = 0
    """Logged; in the files."""
    latest = -1
    """The greatest number of a row's step."""
    ended = settled = 0, -1
    """Both, when the last step ended; when the last one ended whose rows are surely written."""
    tail: tuple[Row, ...] = ()
    """The rows that are not settled."""

    def add(self, metrics: Any, step: int | None, options: dict[str, Any]) -> None:
        """A row, which all ranks add."""
        row = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
        self.rows += 1
        self.latest = max(self.latest, -1 if step is None else step)
        plain = {name: value for name, value in row.items() if isinstance(value, int | float | str | dict)}
        self.tail = *self.tail, (plain, step, options)
        self.files.call(partial(self.write, row, step, options))

    def step_ends(self) -> None:
        """As of :meth:`Files.step_ends`."""
        self.ended = self.rows, self.latest

    def settles(self) -> None:
        """The rows of the step that has ended last are written."""
        self.settled, self.tail = self.ended, self.tail[self.ended[0] - self.settled[0] :]

    @property
    def place(self) -> tuple[Any, ...]:
        """What another process needs to go on."""
        return self.run, *self.settled, self.ended[0] - self.settled[0], [*self.tail]

    # -- of a kind of logger -------------------------------------------------------------------------------------------
    run: Any = None
    """The folder, or the id of the run at a service, that rank 0 of the first generation chooses."""

    def write(self, row: dict[str, Any], step: int | None, options: dict[str, Any]) -> None:
        """Rank 0 does."""
        raise NotImplementedError

    def save(self) -> None:
        """All rows are in the files on return."""

    def go_on(self) -> None:
        """This process writes from now on: behind the settled rows."""

    def let_go(self) -> None:
        """Another one does."""


class Files(Arrives):
    """Tracked: the names that rank 0 has chosen, and how far it has written."""

    def __init__(self, job: Job, loggers: list[Any]) -> None:
        """``loggers``: a :class:`Logs` each. Opens nothing: this process has no rank before it is in a generation."""
        self.writes = False
        """Whether this process is rank 0, and goes on with the files."""
        self._job, self._loggers = job, list[Any]()
        self._calls: list[Callable[[], object]] = []
        self._ended: int | None = None
        """Calls of the step before; None: it has not ended."""
        self._waiting: list[Callable[[], object]] = []
        """Calls of a step behind which the generation changes: its rank 0 may leave, and others go on meanwhile."""
        self._keeps, self._over = True, False
        self.log_with(*loggers)

    def log_with(self, *loggers: Any) -> None:
        """Before the first loop: also these."""
        for logger in loggers:
            logger.files = self
        self._loggers += loggers

    def call(self, function: Callable[[], object]) -> None:
        """Rank 0 calls it; again by a new rank 0 if this one is lost meanwhile."""
        if self._keeps:
            self._calls.append(function)
        if self.writes and self._job.switches:
            self._waiting.append(function)
        elif self.writes and not self._over:
            function()

    # -- the steps -----------------------------------------------------------------------------------------------------
    def step_ends(self) -> None:
        """The next one, or its epoch, begins. Nothing if that has been said already."""
        if self._ended is None:
            self._ended = len(self._calls)
            for logger in self._loggers:
                logger.step_ends()

    def flush(self) -> None:
        """Rows have to be in the files before the job can count the step as saved."""
        for logger in self._loggers if self.writes else ():
            if logger.rows > logger.saved:
                logger.save()
                logger.saved = logger.rows

    def committed(self) -> None:
        """A step is, and rank 0 has taken part in it: the calls of the one before are made."""
        self.step_ends()
        del self._calls[: self._ended]
        self._ended = None
        for logger in self._loggers:
            logger.settles()

    def end(self, *, over: bool = False) -> None:
        """The loop has, and no rank 0 is replaced any more. ``over``: before this process came; it makes no calls."""
        self._calls.clear()
        self._keeps, self._over = False, over

    def follow(self) -> None:
        """This process has the rank of the present generation. A new rank 0 takes over."""
        zero = self._job.rank == 0
        waiting, self._waiting = self._waiting, []
        if zero != self.writes:
            waiting, self.writes = self._calls, zero
            for logger in self._loggers:
                logger.go_on() if zero else logger.let_go()
        if not (zero and waiting):
            return
        with Kept():
            for function in [*waiting]:
                function()
        for logger in self._loggers:
            logger.save()

    # -- state ---------------------------------------------------------------------------------------------------------
    def present(self) -> Any:
        """Of each logger."""
        return [logger.place for logger in self._loggers]

    def apply(self, *, ghost: bool = False) -> None:
        """Go on with what has arrived; ``ghost``: the framework's loop makes the calls of that step itself."""
        if (places := self.taken(drop=ghost)) is None:
            return
        for logger, (run, *_) in zip(self._loggers, places, strict=True):
            logger.run = run
        if not self._job.step:  # before the first one each process has made the same calls
            return
        self._calls.clear()
        self._ended, writes, self.writes = None, self.writes, False
        for logger, (_, rows, latest, _, _) in zip(self._loggers, places, strict=True):
            logger.rows, logger.latest, logger.tail = rows, latest, ()
            logger.settled = logger.ended = rows, latest
        for behind in (False, True):
            for logger, (*_, ended, tail) in zip(self._loggers, places, strict=True):
                for row in tail[ended:] if behind else tail[:ended]:
                    logger.add(*row)
            self.step_ends()
        self.writes = writes


class FilesOfScript(Files):
    """Of a framework in which the script has the loop: its calls count as the updates of a loop body do."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, [])
        self._entered = self._counted = False
        """Whether this process is in a generation; whether this body has."""
        job.track(files=self)
        job.on_commit(self._body_ends)

    def acts(self, name: str) -> bool:
        """Whether a call of ``name`` is made: on all ranks, in steps that count. Raises ``RuntimeError`` before the
        backward of a loop body: it is not known yet."""
        if self._entered or self.arrived:  # a job that resumes at a loop's end begins with the code behind it
            self.apply()
            self.follow()
        return self._job.acts(Call.UPDATE, name)

    def save(self, name: str, write: Callable[..., object], *args: Any) -> None:
        """A file of the present state, by a call of ``name``. As :meth:`acts`."""
        if self.acts(name):
            self.call(partial(write, *args))

    def before_backward(self) -> None:
        """This process has a rank, and perhaps the state of a peer."""
        if self._job.body is None or self._job.body.warm_up:
            return
        self._entered, self._counted = True, False
        self.apply()
        self.follow()

    def after_backward(self) -> None:
        """The step counts, or not."""
        if self._job.committed and not self._counted:
            self._counted = True
            self.committed()

    def _body_ends(self) -> None:
        self.step_ends()
        self.flush()


def becomes(logger: Any, kind: type[Logs]) -> Any:
    """The framework's ``logger``, now also of ``kind``, before its own class."""
    if not isinstance(logger, Logs):
        subclass(logger, {}, kind)
    return logger


def new_id() -> str:
    """Of a run at a service."""
    return uuid.uuid4().hex[:8]
