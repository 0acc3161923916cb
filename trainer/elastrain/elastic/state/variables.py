"""Values of a script that are the same on all ranks and travel with the state: the best result, a patience, a count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Variables:
    """What :meth:`elastrain.Job.variables` returns: each value is an attribute, to be read and set.

    Only the names with which it was made can be set, so that a slip of the pen is an error.
    """

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises ``AttributeError`` for another name."""
        if name not in vars(self):
            raise AttributeError(f"{name}: job.variables() was called with {', '.join(vars(self))}: add {name}= there")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"Variables({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def state_dict(self) -> dict[str, Any]:
        """The values by name."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the values of ``state``; names that it does not have keep theirs."""
        vars(self).update({name: value for name, value in state.items() if name in vars(self)})
