"""One iteration of a ``DataLoader`` by the script."""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from elastrain.data.draws import begin
from elastrain.elastic.contract import BODY
from elastrain_exec.execution import Execution
from elastrain_exec.refusals import Scripts, refuse
from elastrain_exec.text import FACTS, MANIFOLD, Skip


class Pass:
    """One iteration of a ``DataLoader`` by the script: of the job's steps, if it trains; else of all data."""

    def __init__(self, execution: Execution, loader: DataLoader[Any]) -> None:
        self._execution, self.loader = execution, loader
        self._batches: Iterator[Any] | None = None
        self._trains, self._epoch = False, 0
        self._epochs_at: tuple[str, int] | None = None

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        caller = sys._getframe(1)
        if self._batches is None:
            self._begin(caller)
        assert self._batches is not None
        if not self._trains:
            return next(self._batches)
        execution = self._execution
        execution.said.settle()
        execution.variables.frame = caller
        try:
            batch = next(self._batches)
        except StopIteration:
            execution.variables.frame = None
            if execution.passed:  # the others went on to another epoch before this process was there
                execution.entered = False
                self._skip()
            raise
        body = execution.job.body
        assert body is not None
        if not body.warm_up and body.step // len(self.loader) != self._epoch:
            refuse(
                f"this pass is epoch {self._epoch} and the job is at step {body.step}",
                "leave out a resume of the script's own, a skipped epoch and a 'break' within an epoch",
            )
        execution.check_variables()
        return batch

    def _begin(self, caller: FrameType) -> None:
        execution, loader = self._execution, self.loader
        by_for = dis.opname[caller.f_code.co_code[caller.f_lasti]] == "FOR_ITER"
        training = by_for and torch.is_grad_enabled() and any(model.training for model in execution.models)
        if not training:
            if not by_for and execution.phase in BODY:
                refuse("a batch of another loader in the training loop: a joiner would begin at its first one")
            batches = execution.torch.iterate_all(loader)
            self._batches = iter([next(batches)]) if execution.passed else batches
            return
        self._check(caller)
        found, self._epochs_at = epoch_in(caller)
        self._trains, self._epoch = True, execution.epoch_of(loader, found)
        own = execution.loader_of(loader)
        order = own.torch_order
        order.epochs[self._epoch] = loader.sampler.epoch
        if not execution.entered:
            left = next(iter(execution.job.epochs(own.loader, self._epoch + 1)), None)
            execution.skips, execution.entered = left is None, left is not None
            if execution.skips:
                self._skip()
        begin(own.loader.randomness, "epoch", self._epoch)
        execution.variables.frame = caller
        execution.variables.begin()
        execution.report_once()
        self._batches = execution.job.steps(own.loader, epochs=self._epoch + 1)

    def _skip(self) -> NoReturn:
        self._execution.skips, Skip.to = True, self._epochs_at
        raise Skip

    def _check(self, caller: FrameType) -> None:
        loader = self.loader
        if type(loader.sampler) is not DistributedSampler:
            refuse(
                "this loop trains on a DataLoader without torch's DistributedSampler: each process would train on its "
                "own order",
                "give it sampler=DistributedSampler(dataset)",
            )
        if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
            refuse("this loop trains on batches of the script's own making", "job.dataloader(batch_sampler=…)")
        frame: FrameType | None = caller
        inner = True
        while frame is not None:
            if frame.f_code.co_filename in Scripts.files:
                for loop in FACTS.around(frame.f_code.co_filename, frame.f_lineno):
                    self._check_loop(loop, frame, header=inner)
                    inner = False
            frame = frame.f_back

    def _check_loop(self, loop: ast.For | ast.While, frame: FrameType, *, header: bool) -> None:
        """``header``: it is the loop over the batches."""
        at = frame.f_code.co_filename, loop.lineno
        if isinstance(loop, ast.While):
            refuse("a 'while' around the training loop: a joiner cannot know its turn", "for epoch in range(…)", at=at)
        calls = [node for node in ast.walk(loop.iter) if isinstance(node, ast.Call)] if header else []
        if named := [ast.unparse(c.func) for c in calls if ast.unparse(c.func).split(".")[-1] in MANIFOLD]:
            refuse(f"{named[0]}(…) around the training loader: it counts from where a joiner begins", at=at)


def epoch_in(caller: FrameType) -> tuple[int | None, tuple[str, int] | None]:
    """The epoch by the variable of the nearest ``for … in range(…)`` around the pass, and file and line of that loop.

    A range that begins with a number counts from it; any other begins where the script's own resume has left. Without
    one: None, and the nearest loop.
    """
    frame: FrameType | None = caller
    first, nearest = True, None
    while frame is not None:
        if (file := frame.f_code.co_filename) in Scripts.files:
            for loop in FACTS.around(file, frame.f_lineno):
                if first:  # that over the batches
                    first = False
                    continue
                nearest = nearest or (file, loop.lineno)
                if isinstance(loop, ast.For) and (start := _start(loop)) is not None:
                    value = frame.f_locals.get(ast.unparse(loop.target))
                    return (value - start, (file, loop.lineno)) if isinstance(value, int) else (None, nearest)
        frame = frame.f_back
    return None, nearest


def _start(loop: ast.For) -> int | None:
    ranges = [n for n in ast.walk(loop.iter) if isinstance(n, ast.Call) and ast.unparse(n.func) in ("range", "trange")]
    if not ranges or not isinstance(loop.target, ast.Name) or len(ranges[0].args) > 2:
        return None
    arguments = ranges[0].args
    if len(arguments) == 1:
        return 0
    begin_ = arguments[0]
    return begin_.value if isinstance(begin_, ast.Constant) and isinstance(begin_.value, int) else 0


def counted(execution: Execution) -> Any:
    """``enumerate(…)`` in the script's text: over a loader that trains, the numbers are those of the job's steps."""

    def enumerated(items: Any, start: int = 0) -> Any:
        source = getattr(items, "iterable", items)  # tqdm
        return numbered(items, source, start) if isinstance(source, DataLoader) else enumerate(items, start)

    def numbered(items: Any, loader: DataLoader[Any], start: int) -> Iterator[tuple[int, Any]]:
        for number, batch in enumerate(items):
            body = execution.job.body
            yield start + (number if body is None else body.step % len(loader)), batch

    return enumerated
