"""Numbers that a derived Trainer collects in its loop bodies: those of the global batch in place of one rank's part.

TRL's trainers append a mean over each batch to a list, ``_metrics["train"][name]``, and count tokens in
``_total_train_tokens``, both in ``compute_loss``. The sums travel with the gradients (:meth:`elastrain.Job.add`).
"""

from __future__ import annotations

from typing import Any

_TOTAL = "num_tokens"
"""The list that has the count of all tokens so far."""


class Numbers:
    """Of one Trainer; of one without such lists there is nothing to do."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._first: dict[str, int] = {}
        """By list, its length when the execution of the step began."""
        self._seen: dict[str, int] = {}
        """When the loop body did."""
        self._tokens = self._counted = 0
        """Before the execution; before the body."""

    def begin(self) -> None:
        """An execution of a step begins."""
        self._first = self._seen = self._lengths()
        self._tokens = self._counted = getattr(self._trainer, "_total_train_tokens", 0)

    def before_backward(self, weight: float) -> None:
        """A loop body has computed its loss. ``weight``: tokens or samples that its means are over."""
        if not (lists := self._lists()):
            return
        new = {name: values[self._seen.get(name, 0) :] for name, values in lists.items()}
        numbers = {name: weight * sum(values) / len(values) for name, values in new.items() if values}
        tokens = getattr(self._trainer, "_total_train_tokens", 0)
        self._trainer.job.add(**numbers, weight=weight, **{_TOTAL: tokens - self._counted})
        self._seen, self._counted = self._lengths(), tokens

    def counts(self) -> None:
        """The step is committed: one mean over its global batch in place of those of this rank's bodies."""
        lists, sums = self._lists(), self._trainer.job.sums
        for name, values in lists.items():
            if len(values) > (first := self._first.get(name, 0)):
                values[first:] = [sums[name] / sums["weight"] if sums["weight"] else 0.0]
        if lists and hasattr(self._trainer, "_total_train_tokens"):
            self._trainer._total_train_tokens = self._tokens + int(sums[_TOTAL])
            self._trainer._metrics["train"][_TOTAL] = [self._trainer._total_train_tokens]

    def _lists(self) -> dict[str, list[float]]:
        metrics = getattr(self._trainer, "_metrics", None)
        of_training = metrics.get("train") if isinstance(metrics, dict) else None
        lists = (of_training or {}).items()
        return {name: values for name, values in lists if name != _TOTAL and isinstance(values, list)}

    def _lengths(self) -> dict[str, int]:
        return {name: len(values) for name, values in self._lists().items()}
