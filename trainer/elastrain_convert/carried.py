"""Values that a loop keeps from turn to turn, and values of one rank's part of a batch that decide something."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import libcst as cst

from elastrain_convert.effects import REPORTS
from elastrain_convert.objects import assigned
from elastrain_convert.plan import Plan
from elastrain_convert.script import Script, code

LEAVES = cst.Continue, cst.Break, cst.Return, cst.Raise


class Carried:
    """Names of a loop's body that are read before they are set in it."""

    def __init__(
        self, script: Script, plan: Plan, *, gated: Iterable[cst.CSTNode] = (), kept: Iterable[str] = ()
    ) -> None:
        """``kept``: names that travel."""
        self.script, self.plan, self.gated, self.kept = script, plan, set(gated), set(kept)
        self._here: set[str] = set()
        self.found: dict[str, cst.CSTNode] = {}

    def of(self, loop: cst.For) -> dict[str, cst.CSTNode]:
        """Each such name, with the place where it is read."""
        self.found = {}
        self._here = {n for n, _ in assigned(loop.body, self.plan.removed)} - self.kept
        bound = {n for n, _ in assigned(cst.For(loop.target, loop.iter, cst.IndentedBlock([])), ())}
        self._block(loop.body.body, bound)
        return self.found

    def _block(self, body: Sequence[cst.CSTNode], bound: set[str]) -> bool:
        """Adds what is set for certain. Returns whether it leaves the loop's turn."""
        for statement in body:
            if statement in self.plan.removed or statement in self.gated:
                continue
            if self._statement(statement, bound):
                return True
        return False

    def _statement(self, node: cst.CSTNode, bound: set[str]) -> bool:
        if isinstance(node, cst.SimpleStatementLine):
            for small in node.body:
                self._small(small, bound)
            return any(isinstance(small, LEAVES) for small in node.body)
        if isinstance(node, cst.If):
            return self._if(node, bound)
        if isinstance(node, cst.For | cst.While):
            self._reads(node.iter if isinstance(node, cst.For) else node.test, bound)
            bound |= {n for n, _ in assigned(node.target, ())} if isinstance(node, cst.For) else set()
            if isinstance(node, cst.For):
                self._targets(node.target, bound)
            self._block(node.body.body, bound)
        elif isinstance(node, cst.With):
            for item in node.items:
                self._reads(item.item, bound)
                if item.asname is not None:
                    self._targets(item.asname.name, bound)
            return self._block(node.body.body, bound)
        elif isinstance(node, cst.Try):
            self._block(node.body.body, bound)
            for handler in node.handlers:
                self._block(handler.body.body, set(bound))
        elif isinstance(node, cst.FunctionDef | cst.ClassDef):
            bound.add(node.name.value)
        else:
            self._reads(node, bound)
        return False

    def _if(self, node: cst.If, bound: set[str]) -> bool:
        self._reads(node.test, bound)
        yes, no = set(bound), set(bound)
        left = self._block(node.body.body, yes)
        other = False
        if isinstance(node.orelse, cst.If):
            other = self._if(node.orelse, no)
        elif node.orelse is not None:
            other = self._block(node.orelse.body.body, no)
        bound |= no if left else yes if other else yes & no
        return left and other

    def _small(self, small: cst.CSTNode, bound: set[str]) -> None:
        if isinstance(small, cst.Assign):
            self._reads(small.value, bound)
            for target in small.targets:
                self._targets(target.target, bound)
        elif isinstance(small, cst.AugAssign):
            self._reads(small.value, bound)
            self._reads(small.target, bound)
        elif isinstance(small, cst.AnnAssign):
            self._reads(small.value, bound)
            self._targets(small.target, bound)
        elif not isinstance(small, cst.Import | cst.ImportFrom):
            self._reads(small, bound)

    def _targets(self, target: cst.CSTNode, bound: set[str]) -> None:
        if isinstance(target, cst.Name):
            bound.add(target.value)
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._targets(element.value, bound)
        else:
            self._reads(target, bound)

    def _reads(self, node: cst.CSTNode | None, bound: set[str]) -> None:
        if node is None:
            return
        own: set[str] = set()
        for inner in self.script.walk(node):
            if isinstance(inner, cst.CompFor):
                own |= {n.value for n in self.script.walk(inner.target) if isinstance(n, cst.Name)}
            if isinstance(inner, cst.Lambda):
                own |= {p.name.value for p in inner.params.params}
        for inner in self.script.walk(node):
            if not isinstance(inner, cst.Name) or inner.value not in self._here or inner.value in bound | own:
                continue
            parent = self.script.parent(inner)
            if (isinstance(parent, cst.Arg) and parent.keyword is inner) or (
                isinstance(parent, cst.Attribute) and parent.attr is inner
            ):
                continue
            self.found.setdefault(inner.value, inner)


class Parts:
    """Values of one rank's part of its steps: they may be reported, and decide nothing."""

    def __init__(self, script: Script, plan: Plan, *, gated: Iterable[cst.CSTNode]) -> None:
        self.script, self.plan, self.gated = script, plan, set(gated)
        self._reads: dict[tuple[cst.CSTNode, str], list[cst.CSTNode]] = defaultdict(list)
        for node in script.nodes:
            if isinstance(node, cst.Name) or (isinstance(node, cst.Attribute) and code(node.value) == "self"):
                scope = script.module if isinstance(node, cst.Attribute) else script.scope(node)
                self._reads[scope, code(node)].append(node)
        self._seen: set[tuple[cst.CSTNode, str]] = set()

    def decides(self, name: str, scope: cst.CSTNode, *, outside: cst.CSTNode) -> cst.CSTNode | None:
        """The first place outside of the loop where the value is more than a report; None: there is none."""
        key = (self.script.module if name.startswith("self.") else scope, name)
        if key in self._seen:
            return None
        self._seen.add(key)
        for node in self._reads[key]:
            if self.script.within(node, outside) or not self._is_read(node):
                continue
            if (found := self._use(node)) is not None:
                return found
        return None

    def _is_read(self, node: cst.CSTNode) -> bool:
        parent = self.script.parent(node)
        if isinstance(parent, cst.AssignTarget | cst.Param | cst.Global | cst.Nonlocal | cst.NameItem):
            return False
        if isinstance(parent, cst.Element) and self._is_target(parent):
            return False
        if isinstance(parent, cst.For | cst.CompFor | cst.AugAssign) and parent.target is node:
            return False
        return not (
            (isinstance(parent, cst.Arg) and parent.keyword is node)
            or (isinstance(parent, cst.Attribute) and parent.attr is node)
        )

    def _is_target(self, element: cst.CSTNode) -> bool:
        around = self.script.parent(element)
        parent = self.script.parent(around)
        return isinstance(parent, cst.AssignTarget) or (isinstance(parent, cst.For) and parent.target is around)

    def _use(self, node: cst.CSTNode) -> cst.CSTNode | None:  # noqa: PLR0911 - one return per kind of statement
        """``node`` if it is used for more than a report."""
        statement = self.script.statement(node)
        if statement in self.plan.removed or any(n in self.gated for n in (statement, *self.script.around(node))):
            return None
        scope = self.script.scope(node)
        if isinstance(statement, cst.For) and self.script.within(node, statement.iter):
            return self._spread(statement.target, scope, node)
        if isinstance(statement, cst.If):
            only = [s for s in statement.body.body if not self._reports(s)]
            return None if not only and statement.orelse is None else node
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            return node
        small = statement.body[0]
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            func = small.value.func
            of_itself = isinstance(func, cst.Attribute) and (func.value is node or self.script.within(node, func.value))
            return None if of_itself or self._reports(statement) else node
        if isinstance(small, cst.Assign):
            for target in small.targets:
                if (found := self._spread(target.target, scope, node)) is not None:
                    return found
            return None
        if isinstance(small, cst.AugAssign):
            return self._spread(small.target, scope, node)
        if isinstance(small, cst.Return) and isinstance(scope, cst.FunctionDef):
            return self._returned(scope)
        return node

    def _reports(self, statement: cst.CSTNode) -> bool:
        if not (isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1):
            return False
        small = statement.body[0]
        if not (isinstance(small, cst.Expr) and isinstance(small.value, cst.Call)):
            return isinstance(small, cst.Expr)
        return code(small.value.func).rpartition(".")[2] in REPORTS

    def _spread(self, target: cst.BaseExpression, scope: cst.CSTNode, node: cst.CSTNode) -> cst.CSTNode | None:
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                if (found := self._spread(element.value, scope, node)) is not None:
                    return found
            return None
        if isinstance(target, cst.Name) or (isinstance(target, cst.Attribute) and code(target.value) == "self"):
            return self.decides(code(target), scope, outside=target)
        return node

    def _returned(self, function: cst.FunctionDef) -> cst.CSTNode | None:
        for site in self.script.sites_of(function):
            parent = self.script.parent(site)
            if not isinstance(parent, cst.Expr) and (found := self._use(site)) is not None:
                return found
        return None
