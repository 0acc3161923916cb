"""Which names a loop carries from one iteration to the next: read from the text. Pure.

A joiner begins at line 1. Of what the loops of the others have changed it needs each name that an iteration may read
before it sets it (``best``, a counter, a list that grows), or that only some iterations set and later code reads. What
every iteration sets first (``loss``, the batch) it does not need.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MUTATORS = frozenset(
    (
        *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "add", "discard"),
        *("update", "clear", "setdefault", "sort", "reverse", "put"),
    )
)
"""Methods that change what they are called on. So do those that end in an underscore: tensors have them."""
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_EVERYTHING = frozenset({"*"})
"""What is set behind a statement that does not go on."""


@dataclass
class Carried:
    """Of one function, or of a module's own statements."""

    names: dict[str, int] = field(default_factory=dict)
    """Carried by a loop: the line that changes each."""


@dataclass
class _Seen:
    """Of one iteration."""

    exposed: set[str] = field(default_factory=set)
    """Read before they are set."""
    stored: dict[str, int] = field(default_factory=dict)
    """Set, or changed in place: by name, the line."""


class Iteration:
    """Walks the body of a loop in the order in which it runs; a loop within it runs at least once."""

    def __init__(self) -> None:
        self.seen = _Seen()

    def block(self, statements: Iterable[ast.stmt], known: frozenset[str]) -> frozenset[str]:
        """Returns the names that are set behind ``statements``; before, ``known`` are."""
        for statement in statements:
            known = self._statement(statement, known)
        return known

    def _statement(  # noqa: PLR0911, PLR0912 - one case for each kind of statement
        self, node: ast.stmt, known: frozenset[str]
    ) -> frozenset[str]:
        match node:
            case ast.If():
                known = self._reads(node.test, known)
                return _both(self.block(node.body, known), self.block(node.orelse, known))
            case ast.For() | ast.AsyncFor():
                known = self._target(node.target, self._reads(node.iter, known))
                return self.block(node.orelse, self.block(node.body, known))
            case ast.While():
                return self.block(node.orelse, self.block(node.body, self._reads(node.test, known)))
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    known = self._reads(item.context_expr, known)
                    known = self._target(item.optional_vars, known) if item.optional_vars else known
                return self.block(node.body, known)
            case ast.Try() | ast.TryStar():
                ends = [self.block(node.orelse, self.block(node.body, known))]
                ends += [self.block(handler.body, known | {str(handler.name)}) for handler in node.handlers]
                together = ends[0]
                for end in ends[1:]:
                    together = _both(together, end)
                return self.block(node.finalbody, together)
            case ast.Match():
                known, ends = self._reads(node.subject, known), list[frozenset[str]]()
                ends = [self.block(case.body, known) for case in node.cases]
                return _both(known, ends[0])
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.seen.exposed |= set(_loads(node)) - known
                return known | {node.name}
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                self._expressions(node, known)
                return _EVERYTHING
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                return self._assign(node, known)
            case ast.Import() | ast.ImportFrom():
                return known | {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            case ast.Delete():
                return known
        return self._expressions(node, known)

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, known: frozenset[str]) -> frozenset[str]:
        if isinstance(node, ast.AugAssign):
            self._touch(node.target, known)
            return self._target(node.target, self._reads(node.value, known))
        if node.value is None:
            return known
        known = self._reads(node.value, known)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            known = self._target(target, known)
        return known

    def _target(self, node: ast.expr, known: frozenset[str]) -> frozenset[str]:
        match node:
            case ast.Name():
                self.seen.stored.setdefault(node.id, node.lineno)
                return known | {node.id}
            case ast.Tuple() | ast.List():
                for element in node.elts:
                    known = self._target(element, known)
            case ast.Starred():
                return self._target(node.value, known)
            case ast.Attribute() | ast.Subscript():
                self._touch(node, known)
                return self._reads(node, known)
        return known

    def _touch(self, node: ast.expr, known: frozenset[str]) -> None:
        """``node`` is changed in place, or read and set: so is what the name before its dots stands for."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name):
            self.seen.stored.setdefault(node.id, node.lineno)
            self.seen.exposed |= {node.id} - _set(known, node.id)

    def _expressions(self, node: ast.stmt, known: frozenset[str]) -> frozenset[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                known = self._reads(child, known)
        return known

    def _reads(self, node: ast.expr, known: frozenset[str]) -> frozenset[str]:
        self.seen.exposed |= {name for name in _loads(node) if name not in _set(known, name)}
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and mutates(call.func.attr):
                self._touch(call.func.value, known)
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "next" and call.args:
                self._touch(call.args[0], known)
            if isinstance(call, ast.NamedExpr):
                known = self._target(call.target, known)
        return known


def mutates(method: str) -> bool:
    """Whether a method of this name changes its object in place."""
    return method in MUTATORS or (method.endswith("_") and not method.startswith("_"))


def carried_by(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module, shared: set[str]) -> Carried:
    """The names that loops of ``function`` carry. ``shared``: names of a module that its functions read."""
    found = Carried()
    own = list(_own_nodes(function))
    for loop in own:
        if not isinstance(loop, ast.For | ast.AsyncFor | ast.While):
            continue
        walk = Iteration()
        start = frozenset[str]()
        if isinstance(loop, ast.While):
            walk._reads(loop.test, start)
        else:
            start = walk._target(loop.target, start)
        always = walk.block(loop.body, start)
        end = loop.end_lineno or loop.lineno
        later = {n.id for n in own if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno > end}
        sometimes = {name for name in walk.seen.stored if name not in _set(always, name)} & later
        for name, line in walk.seen.stored.items():
            if name in walk.seen.exposed or name in sometimes or name in shared:
                found.names.setdefault(name, line)
    return found


def reads_of_module(tree: ast.Module) -> set[str]:
    """Names that functions of the module read and do not bind: those of the module."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, Function):
            found |= set(_loads(node)) - bound_in(node)
    return found - set(dir(builtins))


def changes_of_module(tree: ast.Module) -> dict[str, int]:
    """Names of the module that its functions set (``global``), or change in place: by name, the line."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        declared = {name for n in _own_nodes(node) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
        walk = Iteration()
        walk.block(node.body, frozenset())
        bound = bound_in(node) - declared
        found.update({name: line for name, line in walk.seen.stored.items() if name not in bound})
    return found


def bound_in(function: Function) -> set[str]:
    """The function's own names: its arguments, and what it sets."""
    spec = function.args
    names = {a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg) if a}
    for node in _own_nodes(function):
        match node:
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
    return names


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions and classes within it, which are nodes themselves."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _loads(node: ast.AST) -> Iterator[str]:
    """Names that it reads, without those that its comprehensions bind."""
    bound = {
        name.id for part in ast.walk(node) if isinstance(part, ast.comprehension)
        for name in ast.walk(part.target) if isinstance(name, ast.Name)
    }  # fmt: skip
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id not in bound:
            yield part.id


def _set(known: frozenset[str], name: str) -> frozenset[str]:
    return frozenset({name}) if "*" in known else known


def _both(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """What is set behind two branches; one that leaves says nothing."""
    if "*" in one:
        return other
    return one if "*" in other else one & other
