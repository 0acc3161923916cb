"""Faults of the written script, from its text alone: it would not run, whatever the rules have thought."""

from __future__ import annotations

import ast
import builtins
import difflib
import symtable
from collections.abc import Iterator

from elastrain_convert.result import Note

NAMES = frozenset(dir(builtins)) | {"__file__", "__name__", "__doc__", "__spec__", "__package__", "__builtins__"}
WAY = "change this line by hand (docs, All calls and rules of a script); nothing is written"


def faults(before: str, after: str, job: str) -> list[Note]:
    """What is wrong with ``after``, by the lines of ``before``."""
    try:
        tree = ast.parse(after)
    except SyntaxError as e:
        found = [(e.lineno or 1, f"the change of this line is not Python: {e.msg}")]
    else:
        found = [*_stores(tree, job), *_outside(tree, job), *_unbound(before, after, tree)]
    if not found:
        return []
    places = _places(before, after)
    return sorted({Note(places[min(line, len(places)) - 1], why, WAY) for line, why in found})


def _stores(tree: ast.AST, job: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is(node.value, job):
            yield node.lineno, f"{job}.{node.attr} can only be read, and this line sets it"


def _outside(tree: ast.Module, job: str) -> Iterator[tuple[int, str]]:
    """Code that runs before the job is there."""
    begin = next(
        (s for s in tree.body if _joins(s, job) or (isinstance(s, ast.If) and any(_joins(t, job) for t in s.body))),
        None,
    )
    if begin is None:
        yield 1, "the place where this script starts is not seen: no code of the module calls what trains"
        return
    users = _users(tree, job)
    for statement in tree.body:
        if statement is begin:
            continue
        parts: list[ast.AST] = [statement]
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [*statement.decorator_list, *statement.args.defaults, *filter(None, statement.args.kw_defaults)]
        elif isinstance(statement, ast.ClassDef):
            parts = [*statement.decorator_list, *(s for s in statement.body if not isinstance(s, ast.FunctionDef))]
        for part in parts:
            if any(_is(n, job) or (isinstance(n, ast.Call) and _last(n.func) in users) for n in ast.walk(part)):
                yield statement.lineno, f"this runs when the file is imported, and needs {job}, which is not there yet"
                break


def _users(tree: ast.Module, job: str) -> set[str]:
    """Functions and classes that use the job, also by others."""
    uses: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = list(ast.walk(node))
            called = {_last(n.func) for n in inner if isinstance(n, ast.Call)}
            if any(_is(n, job) for n in inner):
                called.add(job)
            uses[node.name] = uses.get(node.name, set()) | called
    found, queue = set(), [job]
    callers: dict[str, list[str]] = {}
    for name, called in uses.items():
        for other in called:
            callers.setdefault(other, []).append(name)
    while queue:
        for name in callers.get(queue.pop(), ()):
            if name not in found:
                found.add(name)
                queue.append(name)
    return found


def _joins(statement: ast.stmt, job: str) -> bool:
    return isinstance(statement, ast.With) and any(
        item.optional_vars is not None and _is(item.optional_vars, job) for item in statement.items
    )


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _unbound(before: str, after: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names that the change has taken away from code that stays."""
    new = _free(after) - _free(before)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in new:
            yield node.lineno, f"{node.id} is used here, and the change takes away what sets it"
            new = new - {node.id}


def _free(text: str) -> set[str]:
    top = symtable.symtable(text, "script", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    found: set[str] = set()
    queue = [top]
    while queue:
        table = queue.pop()
        queue += table.get_children()
        found |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (s.is_global() or table is top)}
        bound |= {s.get_name() for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()}
    return found - bound - NAMES


def _places(before: str, after: str) -> list[int]:
    """The line of ``before`` at which each line of ``after`` stands."""
    old, new = before.splitlines(), after.splitlines()
    places: list[int] = []
    for _, first, last, start, end in difflib.SequenceMatcher(None, old, new).get_opcodes():
        places += [min(first + min(i, max(last - first - 1, 0)), len(old) - 1) + 1 for i in range(end - start)]
    return places or [1]
