"""What is to be changed, collected by the rules on the original tree, and applied in one pass from the leaves up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from elastrain_convert.result import Change, Note
from elastrain_convert.script import Script, code

Edit = Callable[[Any], Any]


class Plan:
    """Edits by node, with their reasons."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.edits: dict[cst.CSTNode, list[Edit]] = defaultdict(list)
        self.before: dict[cst.CSTNode, list[str]] = defaultdict(list)
        self.first: dict[cst.CSTNode, list[str]] = defaultdict(list)
        self._spaced: set[cst.CSTNode] = set()
        self._replaced: set[cst.CSTNode] = set()
        self.removed: set[cst.CSTNode] = set()
        self.changes: list[Change] = []
        self.notes: list[Note] = []
        self._noted: set[Note] = set()
        self.refused = False
        """Whether the script stays as it is: a half conversion is none."""

    def says(self, node: cst.CSTNode, what: str) -> None:
        """A line of explanation for the change at ``node``."""
        self.changes.append(Change(self.script.line(node), what))

    def note(self, node: cst.CSTNode, why: str, way: str) -> None:
        """This line needs a person."""
        made = Note(self.script.line(node), why, way)
        if made not in self._noted:
            self._noted.add(made)
            self.notes.append(made)

    def refuse(self, node: cst.CSTNode, why: str, way: str) -> None:
        """For this line nothing is changed at all."""
        self.refused = True
        self.note(node, why, way)

    def edit(self, node: cst.CSTNode, edit: Edit, what: str = "") -> None:
        """Apply ``edit(updated node)``, after the edits of what it contains."""
        self.edits[node].append(edit)
        if what:
            self.says(node, what)

    def replace(self, node: cst.CSTNode, text: str, what: str = "") -> None:
        """Put the expression ``text`` in its place; ``{}`` is its own text by then."""
        self.edit(node, lambda updated: expression(text.replace("{}", code(updated))), what)

    def remove(self, node: cst.CSTNode, what: str = "") -> None:
        """Take a statement out, with its whole line if it is alone on it."""
        statement = self.script.statement(node)
        if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) > 1:
            statement = node
        if statement not in self.removed:
            self.removed.add(statement)
            self.edits[statement] = [lambda _: cst.RemoveFromParent()]
            if what:
                self.says(statement, what)

    def removed_but_preceded(self, statement: cst.CSTNode) -> None:
        """Take a statement out of which only the lines put before it stay."""
        if statement in self.before:
            self._replaced.add(statement)
        else:
            self.remove(statement)

    def is_replaced(self, statement: cst.CSTNode) -> bool:
        """Whether only the lines before it stay."""
        return statement in self._replaced

    def keep_blank_lines(self) -> None:
        """An empty line above a statement that goes is above the next one that stays."""
        for gone in list(self.removed):
            if not getattr(gone, "leading_lines", ()) or gone.leading_lines[0].comment is not None:
                continue
            siblings, place = self.script.siblings(gone)
            following = next((s for s in siblings[place + 1 :] if s not in self.removed), None)
            if following is not None and not following.leading_lines and following not in self._spaced:
                self._spaced.add(following)
                self.edits[following].append(_with_blank_line)

    def insert_before(self, statement: cst.CSTNode, line: str, what: str) -> None:
        """A statement above another one."""
        self.before[statement].append(line)
        self.says(statement, what)

    def insert_first(self, loop: cst.For, line: str) -> None:
        """A statement at the beginning of a loop's body."""
        self.first[loop].append(line)


def _with_blank_line(updated: Any) -> Any:
    if isinstance(updated, cst.SimpleStatementLine | cst.BaseCompoundStatement) and not updated.leading_lines:
        return updated.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return updated


def expression(text: str) -> cst.BaseExpression:
    """Parse an expression, which may have several lines."""
    return cst.parse_expression(text)


def keyword(name: str, value: str) -> cst.Arg:
    """``name=value`` of a call."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(expression(value), cst.Name(name), equal=tight)


def statement(text: str, leading: Sequence[cst.EmptyLine] = ()) -> cst.BaseStatement:
    """Parse a statement, and put empty lines and comments above it."""
    return cst.parse_statement(text).with_changes(leading_lines=leading)


class Apply(cst.CSTTransformer):
    """Applies the edits of a plan. A compound statement whose block has become empty goes with it."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan
        changed = {*plan.edits, *plan.before, *plan.first}
        self._changed = {n for node in changed for n in (node, *plan.script.around(node))}

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Only what contains a change is visited."""
        return node in self._changed

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Called for each node, after those that it contains."""
        updated = updated_node
        if isinstance(updated, cst.For) and (lines := self._plan.first.get(original_node)):
            body = [*map(statement, lines), *updated.body.body]
            updated = updated.with_changes(body=updated.body.with_changes(body=body))
        for edit in self._plan.edits.get(original_node, ()):
            updated = edit(updated)
            if isinstance(updated, cst.RemovalSentinel | cst.FlattenSentinel):
                break
        if isinstance(updated, cst.If | cst.For | cst.With) and self._emptied(original_node, updated):
            updated = self._without(updated)
        if (lines := self._plan.before.get(original_node)) and not isinstance(updated, cst.RemovalSentinel):
            updated = self._preceded(updated, lines, replaced=self._plan.is_replaced(original_node))
        return updated

    @staticmethod
    def _emptied(original: Any, updated: Any) -> bool:
        return isinstance(updated.body, cst.IndentedBlock) and not updated.body.body and bool(original.body.body)

    @staticmethod
    def _without(updated: Any) -> Any:
        rest = getattr(updated, "orelse", None)
        if rest is None or (isinstance(rest, cst.Else) and not rest.body.body):
            return cst.RemoveFromParent()
        if isinstance(updated, cst.If):
            inverted = cst.UnaryOperation(cst.Not(), cst.parse_expression(f"({code(updated.test)})"))
            if isinstance(rest, cst.Else):
                return updated.with_changes(test=inverted, body=rest.body, orelse=None)
        return updated

    @staticmethod
    def _preceded(updated: Any, lines: Sequence[str], *, replaced: bool) -> Any:
        nodes = list(updated.nodes) if isinstance(updated, cst.FlattenSentinel) else [updated]
        leading = nodes[0].leading_lines
        first = [statement(line, leading if not i else ()) for i, line in enumerate(lines)]
        if replaced:
            return cst.FlattenSentinel(first)
        return cst.FlattenSentinel([*first, nodes[0].with_changes(leading_lines=()), *nodes[1:]])
