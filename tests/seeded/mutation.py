"""Small changes of a source text ("mutants"), made by rule and not by hand. Pure.

The operators are those that mutation testing has used since Mothra (King and Offutt, 1991): relations, connectives,
arithmetic, constants, negated conditions, extremes. Docstrings, annotations and messages of errors are left alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

RELATIONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNTOUCHED = (ast.Raise, ast.Assert, ast.AnnAssign)
"""Of annotated assignments, only the value is looked at."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    """From 1."""
    before: str
    after: str
    text: str
    """The whole file with the change."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


def mutants(file: str, text: str) -> Iterator[Mutant]:
    """Every mutant of ``text``, the content of ``file``, in the order of its lines. Raises ``SyntaxError``."""
    lines = text.splitlines(keepends=True)
    for node in _expressions(ast.parse(text)):
        for changed in _changes(node):
            begin, end = _offset(lines, node.lineno, node.col_offset), _offset(lines, *_end(node))
            before, after = text[begin:end], f"({ast.unparse(changed)})"
            yield Mutant(file, node.lineno, " ".join(before.split()), after[1:-1], text[:begin] + after + text[end:])


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.AnnAssign):
            yield from _expressions(ast.Expression(child.value)) if child.value else ()
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _expressions(child.args)
            body = child.body if isinstance(child.body, list) else [child.body]
            yield from _expressions(ast.Tuple(elts=body, ctx=ast.Load()))  # type: ignore[arg-type]
        elif not isinstance(child, UNTOUCHED) and not _is_text(child) and not isinstance(child, ast.arg):
            if isinstance(child, ast.expr) and not isinstance(child, ast.JoinedStr):
                yield child
            if not isinstance(child, ast.JoinedStr):
                yield from _expressions(child)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in RELATIONS:
            yield _with(node, ops=[RELATIONS[type(op)](), *rest])
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.And() if isinstance(op, ast.Or) else ast.Or())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield _with(node, op=ARITHMETIC[type(op)]())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(2 * value + 1)  # also far from a bound that has some tolerance
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield _with(node, func=ast.Name(NAMES[name], ast.Load()))
        case ast.IfExp(body=body, orelse=orelse):
            yield _with(node, body=orelse, orelse=body)


def _with(node: ast.expr, **fields: object) -> ast.expr:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _end(node: ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _offset(lines: list[str], line: int, column: int) -> int:
    """Characters before a place that ``ast`` gives by line and by bytes of UTF-8 in it."""
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())
