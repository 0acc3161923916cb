"""Numbers that a script reads once, and that change while it runs: its rank, and the world between loops.

A plain ``int`` would freeze what the set-up saw: ``is_main = rank == 0`` would be true for ever in a process that the
job made rank 0 once. No subclass of ``int``: C code would read its digits, which never change.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from elastrain_exec.refusals import Scripts, refuse


class Live:
    """A number, or a comparison of one: each use has the present value."""

    __array_ufunc__ = None

    def __init__(
        self, read: Callable[[], Any], *, compared: Callable[[], Any] | None = None, keeps: bool = True
    ) -> None:
        """``compared()``: what comparisons see, and ``keeps`` whether what is kept of one stays live; ``read()``: all
        other uses."""
        self.read, self.compared, self.keeps = read, compared or read, keeps

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


class World(Live):
    """The world size: N, as the script was written for; arithmetic with it is looked at."""

    keeps = False

    def __init__(self, processes: int, arithmetic: Callable[[str], int]) -> None:
        """``arithmetic(operation)``: the number for this operation; raises where none is right."""
        super().__init__(lambda: processes)
        self.arithmetic = arithmetic

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "").strip("_").removeprefix("r").removeprefix("i").rstrip("_")
        divides = name in ("div", "divide", "truediv", "true_divide")
        with_number = [a.arithmetic("truediv" if divides else name) if type(a) is World else now(a) for a in args]
        return function(*with_number, **{key: now(value) for key, value in (kwargs or {}).items()})


def now(item: Any) -> Any:
    """``item``, or the present value of a :class:`Live` one."""
    return item.read() if is_live(item) else item


def is_live(item: Any) -> bool:
    """Whether ``item`` follows the job."""
    return type(item) in (Live, World)


def _define() -> None:
    """The operators, which give plain numbers, and the comparisons, which scripts keep and which stay live."""

    def value(live: Any, operation: str) -> Any:
        return live.arithmetic(operation) if type(live) is World else live.read()

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod", "and_", "or_", "xor"):
        apply: Any = divmod if name == "divmod" else getattr(operator, name)
        plain = name.strip("_")
        setattr(Live, f"__{plain}__", lambda s, o, apply=apply, n=name: apply(value(s, n), now(o)))
        setattr(Live, f"__r{plain}__", lambda s, o, apply=apply, n=name: apply(now(o), value(s, n)))
    unary: dict[str, Any] = {"neg": operator.neg, "abs": operator.abs, "bool": bool, "float": float}
    for name, apply in unary.items():
        setattr(Live, f"__{name}__", lambda s, apply=apply: apply(s.read()))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        apply = getattr(operator, name)

        def compare(self: Live, other: Any, apply: Any = apply) -> Any:
            def present() -> Any:
                return apply(self.compared(), other.compared() if is_live(other) else other)

            return Live(present) if self.keeps else present()

        setattr(Live, f"__{name}__", compare)


_define()


class Text(str):
    """A number in the environment; ``int(…)`` of it is :attr:`live`."""

    live: Live

    def __int__(self) -> int:
        """Raises :class:`Refused` where the script would keep the number of its set-up, as by ``type=int``."""
        caller = sys._getframe(1)
        if caller.f_code.co_filename in Scripts.files or caller.f_globals.get("__name__") == "argparse":
            refuse(
                "a rank of the environment becomes a number out of sight, and stays that of the set-up", "int(…) of it"
            )
        return int(str(self))


class Environ(type(os.environ)):  # type: ignore[misc]
    """The environment as the script reads it. Processes that it starts inherit plain texts."""

    live: ClassVar[dict[str, Live]] = {}

    def __getitem__(self, key: str) -> str:
        value = str(super().__getitem__(key))
        if key not in self.live:
            return value
        text = Text(value)
        text.live = self.live[key]
        return text


def as_int(*args: Any, **kwargs: Any) -> Any:
    """``int(…)`` in the script's text."""
    return args[0].live if args and isinstance(args[0], Text) else int(*args, **kwargs)
