"""Numbers of a script that are summed over the global batch of a step. They travel with the votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from elastrain.elastic.commit.step import Step


class ScriptSums:
    """Of one rank. For the training thread."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        """Of the last step that counts, by name."""
        self._own: dict[str, float] = {}
        self._of: Step | None = None
        self._first = -1
        """The number of the step whose body has shown the names."""

    def add(self, numbers: Mapping[str, float], step: Step) -> None:
        """To those of ``step``. Raises ``ValueError`` for a name that the first body did not have: ranks sum equally
        many; ``TypeError`` for several numbers."""
        self._begin(step)
        if not self._own:
            self._first = step.number
        known = step.warm_up or step.number == self._first
        if not known and (unknown := numbers.keys() - self._own.keys()):
            raise ValueError(
                f"job.add({sorted(unknown)[0]}=…): add 0 to it in the loop bodies before, from the first on"
            )
        counts = bool(step.parts[step.begun - 1].indices)  # a rank without samples runs its body on one that counts not
        for name, number in numbers.items():
            if isinstance(number, torch.Tensor) and number.numel() != 1:
                raise TypeError(
                    f"job.add({name}=…): a tensor of shape {[*number.shape]}: must be one number: add its sum, or each "
                    f"entry under a name: job.add(**{{f'{name}{{i}}': n for i, n in enumerate({name}.flatten())}})"
                )
            self._own[name] = self._own.get(name, 0.0) + (float(number) if counts else 0.0)

    def votes(self, step: Step) -> list[float]:
        """This rank's part, by name."""
        self._begin(step)
        return [self._own[name] for name in sorted(self._own)]

    def take(self, sums: Sequence[float]) -> None:
        """The sums over all ranks, of a step that counts."""
        self.totals = dict(zip(sorted(self._own), sums, strict=True))

    def _begin(self, step: Step) -> None:
        if step is not self._of:
            self._of, self._own = step, dict.fromkeys(self._own, 0.0)
