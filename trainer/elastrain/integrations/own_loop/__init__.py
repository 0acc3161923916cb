"""The frameworks' own loops, in a reference of ``elastrain verify``: what the adapters must be equal to.

The adapter steps aside: each method that it overrides is the framework's again. The job gives the order of the data, in
whole global batches, and takes note. Each module here has a class ``OwnLoop`` for one adapter.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, TypeVar

Made = TypeVar("Made", bound=type)


class HasOwnLoop:
    """First base of an adapter, which becomes ``OwnLoop`` of the module :attr:`own_loop` in a reference."""

    own_loop: ClassVar[str]

    def __new__(cls, *args: Any, **options: Any) -> Any:
        job = options.get("job", args[0] if args else None)
        if not getattr(job, "is_reference", False):
            return super().__new__(cls)
        assert job is not None
        job.own_loop = True
        own = importlib.import_module(f"{__name__}.{cls.own_loop}").OwnLoop
        # A script's own subclass keeps what it overrides: it comes before the framework's methods.
        return object.__new__(own if cls in own.__mro__ else type(cls.__name__, (cls, own), {}))


def as_mean(loss: Any, options: dict[str, Any]) -> Any:
    """``loss``, divided by the ``count`` of tokens that it is a sum over, if ``options`` of a backward have one."""
    count = options.pop("count", None)
    return loss if count is None else loss / max(int(count), 1)


def computed(job: Any, loss: Any) -> None:
    """The framework has run backward on ``loss``, the mean of a global batch."""
    job.computed(loss)


def of_framework(framework: type, *adapters: type, keeps: Collection[str] = ()) -> Callable[[Made], Made]:
    """For a subclass of ``adapters``: what they override is ``framework``'s again, unless the class says otherwise or
    ``keeps`` names it."""

    def restored(own: Made) -> Made:
        overridden = {name for adapter in adapters for name in vars(adapter) if not name.startswith("__")}
        for name in overridden - vars(own).keys() - {*keeps}:
            if (original := inspect.getattr_static(framework, name, None)) is not None:
                setattr(own, name, original)
        return own

    return restored


class Epochs:
    """The training data for a framework, in whole global batches: an iteration is one epoch."""

    def __init__(self, job: Any, loader: Any, place: Callable[[Any], Any] | None = None) -> None:
        """``place``: moves a batch to the device."""
        self.dataset, self._job, self._loader = loader.dataset, job, loader
        self.order, self.randomness = loader.order, loader.randomness
        self._place = place or (lambda batch: batch)
        self._epoch = 0
        self._batches: Any = None

    def __len__(self) -> int:
        return int(self._loader.order.steps_per_epoch)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from 0."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.close()
        self._epoch += 1
        self._batches = self._job.steps(self._loader, epochs=self._epoch)
        for batch in self._batches:
            yield self._place(batch)

    def close(self) -> None:
        """The last batch was trained on."""
        if self._batches is not None:
            self._batches.close()
