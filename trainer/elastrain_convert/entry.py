"""Where the script joins the job, and what it imports."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import libcst as cst

from elastrain_convert.plan import Plan, expression
from elastrain_convert.script import Script, argument, code

GUARD = ("__name__ == '__main__'", '__name__ == "__main__"', "'__main__' == __name__", '"__main__" == __name__')


class Entry:
    """The rules for the beginning of a script."""

    def __init__(self, script: Script, plan: Plan, *, bitwise: bool, spawned: dict[str, cst.Call]) -> None:
        self.script, self.plan, self.spawned = script, plan, spawned
        self.joined = (
            f"{'elastrain.join(numerics=' + chr(34) + 'bitwise' + chr(34) + ')' if bitwise else 'elastrain.join()'}"
        )

    def apply(self, first: cst.CSTNode | None = None) -> None:
        """``first``: the statement of the module with which a script without a guard begins to train."""
        for name, call in self.spawned.items():
            self._unspawn(name, call)
        guard = next((s for s in self.script.module.body if isinstance(s, cst.If) and code(s.test) in GUARD), None)
        what = "connects to the agent of this worker"
        if guard is not None:
            self.plan.edit(guard.body, lambda u: u.with_changes(body=[self._with(u.body)]))
            self.plan.says(guard.body.body[0], what)
        elif first is not None:
            begin = next(i for i, s in enumerate(self.script.module.body) if s is first)
            self._from(begin)
            self.plan.says(first, what)

    def _unspawn(self, name: str, call: cst.Call) -> None:
        def made(updated: cst.Call) -> cst.BaseExpression:
            given = argument(updated, "args", 1)
            rest = [code(e.value) for e in given.elements] if isinstance(given, cst.Tuple) else []
            rest += [f"*{code(given)}"] if given is not None and not isinstance(given, cst.Tuple) else []
            return expression(f"{name}({', '.join([f'{self.script.job}.rank', *rest])})")

        self.plan.edit(call, made, "the agent starts the processes")

    def _with(self, body: Sequence[Any]) -> cst.With:
        kept = list(body) or [cst.parse_statement("pass")]
        header = cst.ensure_type(cst.parse_statement(f"with {self.joined} as {self.script.job}:\n    pass"), cst.With)
        return header.with_changes(body=cst.IndentedBlock(kept))

    def _from(self, begin: int) -> None:
        """Everything from this statement on is inside of the block."""
        kept = self.script.module.body[begin:]
        edits = self.plan.edits

        def moved(updated: cst.Module) -> cst.Module:
            split = len(updated.body) - self._after
            before, inside = updated.body[:split], updated.body[split:]
            made = self._with([_indented(s, i) for i, s in enumerate(inside)])
            return updated.with_changes(body=[*before, made.with_changes(leading_lines=[cst.EmptyLine()])])

        self._after = sum(self._becomes(s, edits) for s in kept)
        self.plan.edit(self.script.module, moved)

    _after = 0

    def _becomes(self, statement: Any, edits: Any) -> int:
        """Statements that one becomes."""
        stays = statement not in self.plan.removed and not self.plan.is_replaced(statement)
        return stays + len(self.plan.before.get(statement, ()))


def _indented(statement: Any, place: int) -> Any:
    """A statement of the module in a block: its empty lines stay empty."""
    lines = statement.leading_lines if place else [n for n in statement.leading_lines if n.comment is not None]
    return statement.with_changes(
        leading_lines=[n if n.comment is not None else n.with_changes(indent=False) for n in lines]
    )


def with_imports(before: cst.Module, after: cst.Module, added: Sequence[str]) -> cst.Module:
    """Import what is new, and no longer what only the old text has used."""
    lines = [cst.ensure_type(cst.parse_module(text).body[0], cst.BaseStatement) for text in added]
    old, new = _used(before.code), _used("\n".join([after.code, *added]))
    cleaned = cst.ensure_type(after.visit(_Unused(old - new)), cst.Module)
    body = list(cleaned.body)
    last = -1
    for i, statement in enumerate(body):
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(
            statement.body[0], cst.Import | cst.ImportFrom
        ):
            last = i
        elif i > 0 and not isinstance(statement, cst.SimpleStatementLine):
            break
    lines = [_spaced(line, i) for i, line in enumerate(lines)]
    body = [*body[: last + 1], *lines, *body[last + 1 :]]
    if body and not cleaned.header and not before.body[0].leading_lines:
        body[0] = body[0].with_changes(leading_lines=[n for n in body[0].leading_lines if n.comment is not None])
    return cleaned.with_changes(body=body)


def _spaced(line: Any, place: int) -> Any:
    blank = 2 if isinstance(line, cst.ClassDef) else int(not place)
    return line.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * blank)


def _used(text: str) -> set[str]:
    """The names in the text, without those of attributes and imports."""
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


class _Unused(cst.CSTTransformer):
    """Takes out imports of these names."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self._names = names

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        return any(isinstance(small, cst.Import | cst.ImportFrom) for small in node.body)

    def _left(self, updated: Any) -> Any:
        if isinstance(updated.names, cst.ImportStar):
            return updated
        kept = [a for a in updated.names if self._local(a) not in self._names]
        if len(kept) == len(updated.names):
            return updated
        if not kept:
            return cst.RemoveFromParent()
        last = kept[-1].with_changes(comma=updated.names[-1].comma)
        return updated.with_changes(names=[*kept[:-1], last])

    @staticmethod
    def _local(alias: cst.ImportAlias) -> str:
        if alias.asname is not None:
            return code(alias.asname.name)
        return code(alias.name).partition(".")[0]

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> Any:
        return self._left(updated_node)

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> Any:
        return self._left(updated_node)
