"""The frameworks' own loops, in a reference of ``elastrain verify``: what the adapters must be equal to.

The adapter steps aside: each method that it overrides is the framework's again. The job gives the order of the data, in
whole global batches, and takes note. Each module here has a class ``OwnLoop`` for one adapter.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection
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
