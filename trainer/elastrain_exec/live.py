"""Numbers that a script reads once, and that change while it runs: its rank, and the world between loops.

A plain ``int`` would freeze what the set-up saw: ``is_main = rank == 0`` would be true for ever in a process that the
job made rank 0 once. No subclass of ``int``: C code would read its digits, which never change.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any, ClassVar


class Live:
    """A number, or a comparison of one: each use has the present value."""

    __array_ufunc__ = None

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``isinstance(rank, int)`` is true."""
        return int

    def __int__(self) -> int:
        return int(self.read())

    __index__ = __int__

    def __hash__(self) -> int:
        return hash(self.read())

    def __format__(self, spec: str) -> str:
        return format(self.read(), spec)

    def __str__(self) -> str:
        return str(self.read())

    __repr__ = __str__

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return int, (int(self.read()),)

    def __deepcopy__(self, _memo: Any) -> Live:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(int(self.read()), name)

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*map(now, args), **{key: now(value) for key, value in (kwargs or {}).items()})


def now(item: Any) -> Any:
    """``item``, or the present value of a :class:`Live` one."""
    return item.read() if type(item) is Live else item


def is_live(item: Any) -> bool:
    """Whether ``item`` follows the job."""
    return type(item) is Live


def _define() -> None:
    """The operators, which give plain numbers, and the comparisons, which scripts keep and which stay live."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod", "and_", "or_", "xor"):
        apply: Any = divmod if name == "divmod" else getattr(operator, name)
        plain = name.strip("_")
        setattr(Live, f"__{plain}__", lambda self, other, apply=apply: apply(self.read(), now(other)))
        setattr(Live, f"__r{plain}__", lambda self, other, apply=apply: apply(now(other), self.read()))
    unary: dict[str, Any] = {"neg": operator.neg, "abs": operator.abs, "bool": bool, "float": float}
    for name, apply in unary.items():
        setattr(Live, f"__{name}__", lambda self, apply=apply: apply(self.read()))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        apply = getattr(operator, name)
        setattr(
            Live, f"__{name}__", lambda self, other, apply=apply: Live(lambda: apply(self.read(), now(other)))
        )  # fmt: skip


_define()


class Text(str):
    """A number in the environment; ``int(…)`` of it is :attr:`live`."""

    live: Live


class Environ(type(os.environ)):  # type: ignore[misc]
    """The environment as the script reads it. Processes that it starts inherit plain texts."""

    live: ClassVar[dict[str, Live]] = {}

    def __getitem__(self, key: str) -> str:
        value = Text(super().__getitem__(key))
        if key not in self.live:
            return str(value)
        value.live = self.live[key]
        return value


def as_int(*args: Any, **kwargs: Any) -> Any:
    """``int(…)`` in the script's text."""
    return args[0].live if args and isinstance(args[0], Text) else int(*args, **kwargs)
