"""torch's compiler front end, imported when somebody compiles.

``import torch`` does without ``torch._dynamo``, which takes as long again. But training that compiles nothing imports
it all the same, for three things: optimizers call ``graph_break()`` around each step, functions that must not be traced
are switched off (``disable``) when they are first called, and DDP asks how it is to be compiled. As long as dynamo is
not there nothing is traced, so a stand-in can answer them. Whatever else is asked of it imports the real one, which
takes its place from then on: ``torch.compile`` works as ever.

The standard library only, as ``zygote.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
_SETTINGS = ("TORCHDYNAMO_", "TORCH_DYNAMO_", "TORCH_COMPILE_", "TORCH_COMPILER_")
"""Variables of people who have the compiler in mind: what dynamo reads, and may do, when it is imported."""
_CACHED = "__dynamo_disable"
"""Where ``torch._compile._disable_dynamo`` keeps what ``disable`` has returned, on the function."""


def may_wait(environ: Mapping[str, str]) -> bool:
    """Whether nothing says that this job compiles."""
    return not any(name.startswith(_SETTINGS) for name in environ)


def postpone() -> Callable[[], bool]:
    """Put the stand-in where the real one is not yet. ``torch`` is imported.

    Returns what tells whether this process, or any fork of it, has wanted the real one since.
    """
    wanted = mmap.mmap(-1, 1)  # shared with forks, and no descriptor that would show in them
    if NAME not in sys.modules and (spec := importlib.util.find_spec(NAME)) is not None:
        stand_in = _StandIn(NAME, wanted)
        stand_in.__dict__.update(__spec__=spec, __loader__=spec.loader, __file__=spec.origin, __package__=NAME)
        parent, _, name = NAME.rpartition(".")
        sys.modules[NAME] = sys.modules[parent].__dict__[name] = stand_in
    return lambda: bool(wanted[0])


def take() -> None:
    """Import the real one."""
    module = importlib.import_module(NAME)
    if isinstance(module, _StandIn):
        module.become_real()


class _StandIn(ModuleType):
    """``torch._dynamo``, until it is wanted; from then on the way to it, for those who have kept this object."""

    def __init__(self, name: str, wanted: mmap.mmap) -> None:
        super().__init__(name)
        answers = {
            "graph_break": _nothing,
            "disable": self._disable,
            # What it is unless torch._dynamo.config says otherwise, and nobody has changed that.
            "utils": _Part(self, "utils", {"get_optimize_ddp_mode": lambda: "ddp_optimizer"}),
            "trace_rules": _Part(self, "trace_rules", {"clear_lru_cache": _nothing}),
        }
        self.__dict__.update(_answers=answers, _disabled=[], _lock=threading.Lock(), _wanted=wanted)

    def become_real(self) -> Any:
        """The real module. Any thread; all but the first wait in Python's import."""
        with self._lock:
            if self.stands_in():
                self._wanted[0] = True
                del sys.modules[NAME]
        real = importlib.import_module(NAME)
        while self._disabled:  # so that torch asks again
            self._disabled.pop().__dict__.pop(_CACHED, None)
        return real

    def stands_in(self) -> bool:
        return sys.modules.get(NAME) is self

    def _disable(self, fn: Callable[..., Any] | None = None, *args: Any, **options: Any) -> Any:
        """``fn`` itself for torch's own functions, which asks but once for each; else what the real one returns."""
        if fn is None or options.get("wrapping", True):
            return self.become_real().disable(fn, *args, **options)
        self._disabled.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if self.stands_in() and name in self._answers:
            return self._answers[name]
        # Whoever looks through all modules asks for such names; for __path__ asks who imports a part of this one.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        return getattr(self.become_real(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.become_real(), name, value)

    def __dir__(self) -> list[str]:
        return dir(self.become_real())


class _Part:
    """A module of dynamo's."""

    def __init__(self, whole: _StandIn, name: str, answers: Mapping[str, Callable[[], Any]]) -> None:
        self.__dict__.update(_whole=whole, _name=name, _answers=answers)

    def __getattr__(self, name: str) -> Any:
        if self._whole.stands_in() and name in self._answers:
            return self._answers[name]
        return getattr(getattr(self._whole.become_real(), self._name), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(getattr(self._whole.become_real(), self._name), name, value)


def _nothing(*_: object) -> None:
    """Nothing is compiled: there is no graph to break, and no cache to clear."""
