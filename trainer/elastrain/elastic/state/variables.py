"""Values of a script that are the same on all ranks and travel with the state: the best result, a patience, a count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Variables:
    """What :meth:`elastrain.Job.variables` returns: each value is an attribute, to be read and set.

    Only the names with which it was made can be set, so that a slip of the pen is an error.
    """

    def __init__(self, values: Mapping[str, Any], acts: Callable[[str], bool]) -> None:
        """``acts(name)``: whether setting this value counts now; raises where that is an error."""
        vars(self).update(_values=dict(values), _acts=acts)

    def __getattr__(self, name: str) -> Any:
        """Raises ``AttributeError`` for another name."""
        values = vars(self).get("_values", {})
        if name not in values:
            raise AttributeError(self._unknown(name) if values else name)
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises ``AttributeError`` for another name, ``RuntimeError`` before the backward of a loop body."""
        if name not in self._values:
            raise AttributeError(self._unknown(name))
        if self._acts(f"job.variables().{name} = …"):
            self._values[name] = value

    def _unknown(self, name: str) -> str:
        return f"{name}: job.variables() was called with {', '.join(self._values)}: add {name}= there"

    def __repr__(self) -> str:
        return f"Variables({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def state_dict(self) -> dict[str, Any]:
        """The values by name."""
        return dict(self._values)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the values of ``state``; names that it does not have keep theirs."""
        self._values.update({name: value for name, value in state.items() if name in self._values})
