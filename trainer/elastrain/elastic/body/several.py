"""Loop bodies that update the state before their last backward: with several backwards, or with L-BFGS.

Such a body is one transaction. All of the tracked state is copied when it begins. If a backward fails, the rest of it
changes nothing, the copy is put back and the whole body runs again. Its forwards, rollouts and decisions then see what
they saw the first time: parameters, statistics, random numbers. Ranks therefore never hold a state of the middle of a
step, and a change of generation needs to know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elastrain.elastic.commit.step import Step
from elastrain.elastic.contract import Call, Contract, Phase
from elastrain.elastic.state.tracked import Closure
from elastrain.elastic.undo.leaves import Leaves


class SeveralBackwards:
    """What the loop does for such bodies. For the training thread."""

    def __init__(
        self, leaves: Leaves, contract: Contract, current: Callable[[], Step | None], allow: Callable[[], None]
    ) -> None:
        """``current()``: the step whose loop body runs; None outside of a body. ``allow()``: sets :attr:`allowed`."""
        self._leaves, self._contract, self._current, self._allow = leaves, contract, current, allow
        self.allowed = False
        """Whether each body begins with a copy of the state. It was announced, or seen in the first one."""

    def check(self, step: Step, what: str) -> None:
        """``what`` needs such a body. Raises ``RuntimeError`` if ``step`` has none."""
        self._check_whole_batch(step, what)
        if step.warm_up or self.allowed:
            return
        if not self._leaves.whole:
            raise RuntimeError(
                f"{what} did not take place in this process's first loop body, so there is no copy of the state if a "
                "worker is lost: announce it by job.steps(…, several_backwards=True)"
            )
        self._allow()

    def step_with(self, step: Callable[[Closure], Any], closure: Closure, *, once: bool) -> Any:
        """Run ``step(closure)`` of a tracked optimizer. ``once``: as of :class:`StepWith`.

        Where it is skipped, and in the warm-up, the closure runs once and nothing is updated. A closure in which the
        generation breaks is the last one. Returns the closure's value, None after ``Drained``.
        """
        acts, current = self._contract.acts(Call.CLOSURE), self._current()
        if current is None:
            return step(closure) if acts else None
        self._check_whole_batch(current, "step(closure)")
        if current.warm_up or not acts:
            current.closures = not once
            return closure()
        if not once:
            self.check(current, "step(closure)")

        def evaluated() -> Any:
            value = closure()
            if current.phase is Phase.DISCARDED:
                raise _Discarded(value)
            return value

        try:
            with self._leaves.gated():
                return step(evaluated)
        except _Discarded as e:
            return e.value

    def _check_whole_batch(self, step: Step, what: str) -> None:
        if step.in_micro_batches:
            raise RuntimeError(
                f"{what} needs the whole batch at once, and the loop body runs once for each micro-batch: leave "
                "micro_batch_size, numerics='bitwise' or spec.batch out; or call job.backward() once, on the sum of "
                "the losses"
            )


class _Discarded(Exception):
    """Ends an optimizer's ``step(closure)``."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value
