"""What transformers' training loop knows after a step, besides model, optimizer and schedule."""

from __future__ import annotations

import copy
from typing import Any

from transformers.trainer_callback import ExportableState

from elastrain_frameworks.arrives import Arrives
from elastrain_frameworks.attributes import plain_attributes
from elastrain_frameworks.held import Held

_OF_A_RANK = ("is_world_process_zero", "is_local_process_zero", "stateful_callbacks")
_PLAIN = bool, int, float, str


class Carried(Arrives):
    """Tracked: the Trainer's state and control, the callbacks that export theirs, the arguments that callbacks have
    changed, and plain attributes of the Trainer.

    A joiner's loop sets its counters to 0 behind its entry, so what has arrived waits for :meth:`apply`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._given = {**vars(trainer.args)}
        self._held: tuple[Any, ...] | None = None

    def present(self) -> tuple[Any, ...]:
        """State, control, callbacks, arguments and attributes."""
        state = {name: value for name, value in vars(self._trainer.state).items() if name not in _OF_A_RANK}
        return state, *(self._held or self._of_events()), plain_attributes(self._trainer)

    def hold(self) -> None:
        """The loop calls events of the next step: they are no part of the last one's state."""
        self._held = copy.deepcopy(self._of_events())

    def release(self) -> None:
        """That step is committed."""
        self._held = None

    def apply(self, *, keep: bool = False) -> None:
        """The state that has arrived becomes that of the loop. ``keep``: also at the next call."""
        if (taken := self.taken(keep=keep)) is None:
            return
        state, control, callbacks, arguments, attributes = taken
        t, self._held = self._trainer, None
        vars(t.state).update(state)
        vars(t.control).update(control)
        vars(t.args).update(arguments)
        for name, callback in self._exportable().items():  # this rank may have other callbacks
            vars(callback).update(callbacks.get(name, {}))
        vars(t).update(attributes)

    def _of_events(self) -> tuple[Any, ...]:
        callbacks = {name: callback.state()["attributes"] for name, callback in self._exportable().items()}
        arguments = {n: v for n, v in vars(self._trainer.args).items() if type(v) in _PLAIN and v != self._given.get(n)}
        return vars(self._trainer.control), callbacks, arguments

    def _exportable(self) -> dict[str, Any]:
        callbacks = self._trainer.callback_handler.callbacks
        return {type(c).__name__: c for c in callbacks if isinstance(c, ExportableState)}


def held_by(trainer: Any, prepared: Any) -> Held:
    """What callbacks and a derived Trainer hold, such as TRL's reference that follows the model."""
    callbacks = trainer.callback_handler.callbacks
    return Held(
        [trainer, *callbacks],
        [trainer.model, prepared],
        carried=[trainer, *(callback for callback in callbacks if isinstance(callback, ExportableState))],
        known=[trainer.optimizer, trainer.lr_scheduler],
    )
