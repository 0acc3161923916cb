"""What a call of a training script does: a table over the phases of the loop, which the runtime enforces.

The table is data. :class:`Contract` looks every call up in it, and ``docs/reference/python.md`` is printed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where the training thread is, when code of the script runs. The value is the heading in the docs.

    A rank that waits for a generation, or for its state, runs no code of the script.
    """

    about: str
    """When the phase is, for the docs."""

    def __new__(cls, value: str, about: str) -> Phase:
        """A member with its two texts."""
        phase = str.__new__(cls, value)
        phase._value_, phase.about = value, about
        return phase

    SETUP = "before the first loop", "from `elastrain.join()` to the first `job.steps()`"
    FRESH = (
        "before a step's first backward",
        "a loop body, up to its `job.backward()`, also that of the warm-up; `job.at()` changes",
    )
    BACKWARD = (
        "within job.backward()",
        "hooks of tensors, parameters and modules that a backward calls: gradients are not summed over the ranks yet",
    )
    WARM_UP = (
        "after the warm-up's backward",
        "the rest of the first loop body of a process that joins a running job, which leaves no trace",
    )
    PARTIAL = "between a step's backwards", "with several micro-batches: from the first `job.backward()` to the last"
    COMMITTED = (
        "committed",
        "the rest of the loop body after a step's last or only `job.backward()`, up to a further one that fails; "
        "`job.on_commit()` callbacks",
    )
    LEARNING = "committed, while the state arrives", "the same in a joiner of which a part of the state is missing"
    DISCARDED = (
        "discarded",
        "the rest of the loop body after a `job.backward()` in which a worker was lost; the step runs again",
    )
    PAUSE = "in a pause of the loop", "`job.every()` callbacks, between two steps"
    BOUNDARY = (
        "at a step boundary",
        "after `job.commit()`, and after the entry of `job.steps(…, warm_up=…)`, up to the next loop body: other ranks "
        "may be in one",
    )
    BETWEEN = "after a loop", "between two loops, and after the last"
    PASSED = (
        "after a loop that was over before",
        "the same in a process that has joined later, or stood by while the job went on: it runs alone, `job.rank` is "
        "-1, and nothing of it counts",
    )
    LEAVING = "after Drained", "`finally` blocks of a worker that leaves, and scripts that catch `Drained`"


BODY = (
    Phase.FRESH, Phase.BACKWARD, Phase.WARM_UP, Phase.PARTIAL, Phase.COMMITTED, Phase.LEARNING, Phase.DISCARDED
)  # fmt: skip
"""The phases of a loop body."""


class Call(StrEnum):
    """A call of the script. The value is its name in the docs."""

    STEPS = "job.steps()"
    SET_UP = "job.wrap(), job.track(), job.variables(), job.every(), job.at()"
    BACKWARD = "job.backward()"
    ADD = "job.add()"
    CLOSURE = "step(closure) of tracked optimizers"
    CLIP = "job.clip_grad_norm_()"
    UPDATE = "step() of tracked objects, unscale_() and update() of scalers, updates of averages"
    REPEATED_GROUP = "add_param_group() of tracked optimizers, with the parameters of a group that they have"
    SET = "setting a value of job.variables()"
    COMMIT = "job.commit()"
    STOP = "job.stop()"
    MEET = "job.all_reduce(), job.all_gather_object(), job.evaluate()"


class Effect(StrEnum):
    """What a call does in a phase."""

    ACTS = "acts"
    SKIPPED = "skipped"
    RAISES = "raises"


@dataclass(frozen=True, slots=True)
class Rule:
    """The effect of a call in a phase."""

    effect: Effect
    way_out: str = ""
    """Of a call that raises: what to do instead."""


_ACTS, _SKIPPED = Rule(Effect.ACTS), Rule(Effect.SKIPPED)


def _raises(way_out: str) -> Rule:
    return Rule(Effect.RAISES, way_out)


_IN_BODY_ONLY = _raises("call it once for each batch that 'for batch in job.steps(...)' yields")
_TWICE = _raises("it was called for this batch already; add the losses up and call it once")
_WHOLE_BATCH = _raises("it needs the whole batch at once: leave micro_batch_size and micro_batches out")
_TOO_EARLY = _raises(
    "it would act on the gradients of the step before: move it behind job.backward(loss), which replaces "
    "loss.backward(); or give it to job.on_commit()"
)
_UNDECIDED = _raises(
    "the step may be repeated: set it behind job.backward(), where it counts once for each committed step"
)
_IN_HOOK = _raises(
    "a hook sees the gradients of this rank's samples only: remove it (a parameter's hook, or torch's "
    "_apply_optimizer_in_backward), and make the call behind job.backward()"
)
_NO_GRADIENTS = _raises("there are gradients only in a loop body, between job.backward() and the optimizer's step()")
_NESTED = _raises("a loop body runs already; loops may follow each other, not contain each other")
_LATE_SET_UP = _raises("call it before the loop: in a loop body it would run once more in the warm-up of a joiner")
_NO_PEERS = _raises("it needs the other ranks, which this one meets in its first loop: call it after that")
_NO_MEETING = _raises(
    "other ranks may have to repeat this step. Numbers are summed over its batch by job.add() before job.backward(), "
    "losses of tokens by job.backward(loss, count=n); a loss that compares samples is computed in micro-batches that "
    "are the same at any number of ranks, elastrain.join(numerics='bitwise') with micro_batches=n. Otherwise call it "
    "after the loop, or in a function that job.every(), before the loop, is given"
)

_ALONE = _raises(
    "other ranks may be in a loop body: call it there, behind job.backward(), or in a function given to job.every()"
)
_SUMMED = _raises("its sums travel with the gradients: call it in a loop body, before job.backward()")
_NO_SUM = _raises("the step has no result before its last job.backward(): call it behind that")
_NOT_OPEN = _raises("no loop body runs, or that of the warm-up, which is given to job.steps(…, warm_up=…)")

_CHANGING = (Phase.SETUP, Phase.COMMITTED, Phase.LEARNING, Phase.PAUSE, Phase.BETWEEN)
"""Where the script's own values change."""
_IN_LOOP = (*BODY, Phase.PAUSE, Phase.BOUNDARY)

RULES: Mapping[Call, Mapping[Phase, Rule]] = {
    Call.STEPS: {phase: _NESTED if phase in _IN_LOOP else _ACTS for phase in Phase},
    Call.SET_UP: {phase: _LATE_SET_UP if phase in _IN_LOOP else _ACTS for phase in Phase},
    Call.BACKWARD: dict.fromkeys(Phase, _IN_BODY_ONLY)
    | dict.fromkeys((Phase.FRESH, Phase.WARM_UP, Phase.PARTIAL, Phase.COMMITTED), _ACTS)
    | {Phase.BACKWARD: _IN_HOOK, Phase.LEARNING: _TWICE, Phase.DISCARDED: _SKIPPED},
    Call.ADD: {phase: _ACTS if phase in (Phase.FRESH, Phase.PARTIAL) else _SUMMED for phase in Phase},
    Call.CLOSURE: dict.fromkeys(Phase, _ACTS)
    | dict.fromkeys((Phase.WARM_UP, Phase.DISCARDED, Phase.LEAVING), _SKIPPED)
    | {Phase.BACKWARD: _IN_HOOK, Phase.PARTIAL: _WHOLE_BATCH, Phase.LEARNING: _TWICE, Phase.BOUNDARY: _ALONE},
    Call.CLIP: dict.fromkeys(Phase, _NO_GRADIENTS)
    | dict.fromkeys((Phase.WARM_UP, Phase.COMMITTED, Phase.LEARNING, Phase.DISCARDED), _ACTS)
    | {Phase.FRESH: _TOO_EARLY, Phase.BACKWARD: _IN_HOOK, Phase.PARTIAL: _SKIPPED},
    Call.UPDATE: dict.fromkeys(Phase, _ACTS)
    | dict.fromkeys((Phase.WARM_UP, Phase.PARTIAL, Phase.DISCARDED, Phase.LEAVING), _SKIPPED)
    | {Phase.FRESH: _TOO_EARLY, Phase.BACKWARD: _IN_HOOK, Phase.BOUNDARY: _ALONE},
    Call.REPEATED_GROUP: {phase: _SKIPPED if phase in BODY else _ACTS for phase in Phase},
    Call.SET: {phase: _ACTS if phase in _CHANGING else _SKIPPED for phase in Phase}
    | {Phase.FRESH: _UNDECIDED, Phase.BACKWARD: _UNDECIDED, Phase.BOUNDARY: _ALONE},
    Call.COMMIT: {
        phase: _ACTS if phase in (Phase.COMMITTED, Phase.LEARNING, Phase.DISCARDED) else _NOT_OPEN for phase in Phase
    }
    | {Phase.FRESH: _NO_SUM, Phase.BACKWARD: _NO_SUM, Phase.PARTIAL: _NO_SUM},
    Call.STOP: {phase: _SKIPPED if phase in (Phase.LEARNING, Phase.PASSED) else _ACTS for phase in Phase},
    Call.MEET: {phase: _NO_MEETING if phase in BODY else _ACTS for phase in Phase}
    | {Phase.SETUP: _NO_PEERS, Phase.BOUNDARY: _ALONE},
}
"""What each call does in each phase; complete."""


class Contract:
    """Applies :data:`RULES` to the calls of one rank's script."""

    def __init__(self, phase: Callable[[], Phase]) -> None:
        """``phase()`` returns the present one."""
        self.waiting: dict[object, str] = {}
        """Updates that were skipped between a step's backwards and did not act since: by object, the call."""
        self._phase = phase

    def acts(self, call: Call, name: str | None = None, *, of: object = None) -> bool:
        """Whether ``call`` acts now; if not, the caller does nothing.

        ``name``: of the method, for the error; default: that of the call. ``of``: the identity of its object. Raises
        ``RuntimeError`` with the phase and the way out.
        """
        phase = self._phase()
        rule = RULES[call][phase]
        if rule.effect is Effect.RAISES:
            raise RuntimeError(f"{name or call.value} {phase.value}: {rule.way_out}")
        if of is not None and phase is Phase.PARTIAL and rule.effect is Effect.SKIPPED:
            self.waiting[of] = name or call.value
        elif rule.effect is Effect.ACTS:
            self.waiting.pop(of, None)
        return rule.effect is Effect.ACTS

    def check_applied(self, step: int) -> None:
        """A step is about to be committed. Raises ``RuntimeError`` naming an update that the script has asked for, and
        which did not act."""
        if self.waiting:
            raise RuntimeError(
                f"job.steps(): {', '.join(self.waiting.values())} in step {step + 1}: called for a micro-batch before "
                "the last one, where it does nothing, and not for the last one: call it in each loop body, or by "
                "job.step, not by a count of loop bodies"
            )
