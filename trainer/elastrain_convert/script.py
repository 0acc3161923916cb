"""What is known of a script before it is changed: names, definitions, calls, loops. Pure: from its text alone."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import islice

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, ScopeProvider

_EMPTY = cst.Module([])
DEPTH = 8
"""Bases of a class that are followed."""
MOST = 64
"""Definitions of a name, and calls of a function, that are looked at: enough for a script."""


def code(node: cst.CSTNode) -> str:
    """The text of a node, without blanks around it."""
    return str(_EMPTY.code_for_node(node)).strip()


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.BaseExpression | None:
    """The value of a keyword, or of a position from 0; None without it."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
    plain = [arg for arg in call.args if arg.keyword is None and not arg.star]
    return plain[position].value if position is not None and position < len(plain) else None


def last_name(call: cst.Call) -> str:
    """What a call names: of ``a.b(x)`` it is ``b``."""
    func = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return func.value if isinstance(func, cst.Name) else ""


class _Reading(cst.CSTVisitor):
    """All nodes in the order of the text: of each its place, the place behind its last part, and the node around it."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[cst.CSTNode] = []
        self.spans: dict[cst.CSTNode, tuple[int, int]] = {}
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._open: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._open:
            self.parents[node] = self._open[-1]
        self._open.append(node)
        self.spans[node] = len(self.nodes), 0
        self.nodes.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._open.pop()
        self.spans[original_node] = self.spans[original_node][0], len(self.nodes)


class Script:
    """A parsed script, which is Python."""

    def __init__(self, source: str) -> None:
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)  # no node is in it twice
        self.module = wrapper.module
        self._scopes = wrapper.resolve(ScopeProvider)
        self._places = wrapper.resolve(PositionProvider)
        self.module.visit(read := _Reading())
        self.nodes, self._spans, self._parents = read.nodes, read.spans, read.parents
        self._returned: dict[cst.FunctionDef, list[cst.BaseExpression]] = {}
        self._blocks: dict[cst.CSTNode, tuple[list[cst.CSTNode], dict[cst.CSTNode, int]]] = {}
        self.calls = [n for n in self.nodes if isinstance(n, cst.Call)]
        self.fors = [n for n in self.nodes if isinstance(n, cst.For)]
        self.functions: dict[str, cst.FunctionDef] = {}
        self.classes: dict[str, cst.ClassDef] = {}
        for node in self.nodes:
            if isinstance(node, cst.FunctionDef):
                self.functions.setdefault(node.name.value, node)
            elif isinstance(node, cst.ClassDef):
                self.classes[node.name.value] = node
        self.assignments: dict[tuple[cst.CSTNode, str], list[cst.BaseExpression]] = defaultdict(list)
        self._collect_assignments()
        self.sites: dict[str, list[cst.Call]] = defaultdict(list)
        for call in self.calls:
            self.sites[last_name(call)].append(call)
        used = {n.value for n in self.nodes if isinstance(n, cst.Name)}
        self.job = next(name for name in ("job", "elastic_job", "elastrain_job") if name not in used)

    def walk(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """The node and all nodes in it, in the order of the text; of a node of ours, itself."""
        return self.nodes[slice(*self._spans[node])] if node in self._spans else [node]

    # -- places ------------------------------------------------------------------------------------------------------
    def line(self, node: cst.CSTNode) -> int:
        """Its first line, from 1."""
        return int(self._places[node].start.line)

    def column(self, node: cst.CSTNode) -> int:
        """Its first column, from 0."""
        return int(self._places[node].start.column)

    def end(self, node: cst.CSTNode) -> int:
        """Its last line."""
        return int(self._places[node].end.line)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        """The node around it."""
        return self._parents[node]

    def around(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around it, from the nearest."""
        while node is not self.module and node in self._parents:
            node = self._parents[node]
            yield node

    def scope(self, node: cst.CSTNode) -> cst.CSTNode:
        """The function around it, or the module."""
        return next((n for n in self.around(node) if isinstance(n, cst.FunctionDef)), self.module)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The whole statement that it is a part of."""
        while not isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            node = self._parents[node]
        return node

    def within(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Whether ``outer`` contains it."""
        first, end = self._spans[outer]
        return first < self._spans.get(node, (0, 0))[0] < end

    def siblings(self, statement: cst.CSTNode) -> tuple[list[cst.CSTNode], int]:
        """The statements of its block, and its place in it."""
        around = self._parents[statement]
        if around not in self._blocks:
            body = list(getattr(around, "body", ()))
            self._blocks[around] = body, {s: i for i, s in enumerate(body)}
        body, places = self._blocks[around]
        return body, places.get(statement, -1)

    # -- names -------------------------------------------------------------------------------------------------------
    def full(self, node: cst.CSTNode) -> str:
        """The dotted name of something imported, as ``torch.nn.Linear``; of a call that of its function. Else ""."""
        if isinstance(node, cst.Call):
            node = node.func
        root = node
        while isinstance(root, cst.Attribute):
            root = root.value
        if not isinstance(root, cst.Name):
            return ""
        scope = self._scopes.get(node)
        found = scope.get_qualified_names_for(node) if scope is not None else ()
        return next((n.name for n in found if n.source.name in ("IMPORT", "BUILTIN")), "")

    def _collect_assignments(self) -> None:
        for node in self.nodes:
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    self._assign(node, target.target, node.value)
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                self._assign(node, node.target, node.value)
            elif isinstance(node, cst.WithItem) and node.asname is not None:
                self._assign(node, node.asname.name, node.item)

    def _assign(self, node: cst.CSTNode, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple):
            values = [value]
            if isinstance(value, cst.Call) and isinstance(value.func, cst.Name) and value.func.value in self.functions:
                values = self._results(self.functions[value.func.value])
            for found in values:
                if isinstance(found, cst.Tuple) and len(found.elements) == len(target.elements):
                    for left, right in zip(target.elements, found.elements, strict=True):
                        self._assign(node, left.value, right.value)
            return
        scope = self.module if isinstance(target, cst.Attribute) else self.scope(node)
        self.assignments[scope, code(target)].append(value)

    def parameters(self, function: cst.FunctionDef) -> list[str]:
        """Names of what it takes, in order; without ``self``."""
        p = function.params
        return [n for x in (*p.posonly_params, *p.params, *p.kwonly_params) if (n := x.name.value) != "self"]

    def passed(self, function: cst.FunctionDef, name: str) -> list[cst.BaseExpression]:
        """What its calls pass for this parameter."""
        names = self.parameters(function)
        found = []
        for call in self.sites_of(function)[:MOST]:
            value = argument(call, name, names.index(name) if name in names else None)
            if value is not None:
                found.append(value)
        return found

    def sites_of(self, function: cst.FunctionDef) -> list[cst.Call]:
        """Its calls; of ``__init__`` those of the class."""
        owner = self.owner(function)
        if owner is not None and function.name.value == "__init__":
            return self.sites[owner.name.value]
        method = owner is not None
        return [c for c in self.sites[function.name.value] if isinstance(c.func, cst.Attribute) == method]

    def owner(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """The class around it."""
        return next((n for n in self.around(node) if isinstance(n, cst.ClassDef)), None)

    def definitions(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """What a name, or an attribute, has been assigned; for a parameter what calls pass."""
        name = code(node)
        if isinstance(node, cst.Attribute):
            return self.assignments.get((self.module, name), [])
        scope = self.scope(node) if node in self._parents else self.module
        while True:
            if found := self.assignments.get((scope, name)):
                return found
            if isinstance(scope, cst.FunctionDef) and name in self.parameters(scope):
                return self.passed(scope, name)
            if scope is self.module:
                return []
            scope = self.scope(scope)

    def resolve(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """What an expression can be: names are followed to what was assigned, and local functions to their results,
        over :data:`MOST` expressions."""
        found: dict[cst.BaseExpression, None] = {}
        seen, queue = {node}, deque([node])
        while queue:
            step = queue.popleft()
            further = self._followed(step) if len(seen) < MOST else []
            if not further:
                found[step] = None
            new = [n for n in islice(further, MOST) if n not in seen]
            seen.update(new)
            queue.extendleft(reversed(new))
        return list(found)

    def _followed(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """What an expression stands for, one step further; empty: itself."""
        if isinstance(node, cst.IfExp):
            return [node.body, node.orelse]
        if isinstance(node, cst.Name | cst.Attribute):
            return self.definitions(node)
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
            function = self.functions.get(node.func.value)
            return self._results(function) if function is not None else []
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in (
            "to", "cuda", "cpu", "train", "eval", "float", "double", "half", "bfloat16",
        ):  # fmt: skip
            return [node.func.value]
        return []

    def _results(self, function: cst.FunctionDef) -> list[cst.BaseExpression]:
        if function not in self._returned:
            self._returned[function] = [
                n.value for n in self.walk(function.body)
                if isinstance(n, cst.Return) and n.value is not None and self.scope(n) is function
            ]  # fmt: skip
        return self._returned[function]

    def is_a(self, node: cst.BaseExpression, matches: Callable[[str], bool], depth: int = DEPTH) -> bool:
        """Whether it is made by a class whose dotted name matches, or by an heir of one in the script."""
        for call in self.resolve(node):
            if not isinstance(call, cst.Call):
                continue
            if matches(self.full(call)):
                return True
            own = self.classes.get(code(call.func))
            if own is not None and self.inherits(own, matches, depth):
                return True
        return False

    def inherits(self, own: cst.ClassDef, matches: Callable[[str], bool], depth: int = DEPTH) -> bool:
        """Whether a class of the script has such a base."""
        for base in own.bases:
            if matches(self.full(base.value)):
                return True
            other = self.classes.get(code(base.value))
            if depth and other is not None and self.inherits(other, matches, depth - 1):
                return True
        return False

    def reaches(self, node: cst.CSTNode, matches: Callable[[cst.CSTNode], bool]) -> bool:
        """Whether it, or a function of the script that it calls, contains such a node."""
        seen: set[str] = set()
        queue = [node]
        while queue:
            for inner in self.walk(queue.pop()):
                if matches(inner):
                    return True
                if isinstance(inner, cst.Call):
                    name = last_name(inner)
                    if name in self.functions and name not in seen and self._is_own(inner):
                        seen.add(name)
                        queue.append(self.functions[name])
        return False

    def _is_own(self, call: cst.Call) -> bool:
        """A function of the script, or a method of one of its classes."""
        function = self.functions[last_name(call)]
        method = any(isinstance(n, cst.ClassDef) for n in self.around(function))
        return isinstance(call.func, cst.Attribute) == method


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a dotted name matches the whole pattern."""
    return lambda name: re.fullmatch(pattern, name) is not None
