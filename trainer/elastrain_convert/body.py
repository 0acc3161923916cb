"""The loop body: its backward, its counters, its reports, and what is summed over the ranks in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import libcst as cst

from elastrain_convert.loops import Loop, Loops, is_backward
from elastrain_convert.plan import Plan, expression
from elastrain_convert.process import DIST, Process
from elastrain_convert.script import Script, code

REPORTS = re.compile(
    r"(.*\.)?(print|info|debug|warning|log|write|append|extend|add|add_scalar|add_scalars|update|set_postfix|set_postfix_str|"
    r"set_description|set_description_str|log_metrics)"
)
SHOWN = re.compile(r"(print|torch\.save|.*\.(save|save_pretrained|add_scalar|log))\(")
ACTS = re.compile(
    r"(.*\.)?(step|zero_grad|backward|update_parameters|unscale_|clip_grad_norm_|clip_grad_value_|step_update)"
)


class Body:
    """The rules for the bodies of training loops."""

    def __init__(self, script: Script, plan: Plan, process: Process, loops: Loops) -> None:
        self.script, self.plan, self.process, self.loops = script, plan, process, loops
        self.gated: set[cst.CSTNode] = set()
        """Statements of bodies that run once for each committed step."""
        self.counted: set[cst.CSTNode] = set()
        """Backwards of sums over tokens, with their counts."""
        self.alone: set[cst.CSTNode] = set()
        """Statements that rank 0 runs."""

    def apply(self) -> None:
        """All rules of this module, before those of the process."""
        for loop in self.loops.found:
            self._token_means(loop)
            self._counters(loop)
        self._backwards()
        self._without_no_sync()

    def reports(self, tracked: set[str]) -> None:
        """Meters and prints of the bodies, once ``tracked`` is known: they count committed steps."""
        for loop in self.loops.found:
            self._loss(loop)
            self._gate(loop, tracked)
        if not self.process.distributed:
            self._shown_once()

    # -- backward ----------------------------------------------------------------------------------------------------
    def _backwards(self) -> None:
        for call in self.script.calls:
            if is_backward(call) and not self._is_own_method(call) and call not in self.plan.edits:
                self.plan.edit(call, self._backward, "averaged over the global batch")

    def _is_own_method(self, call: cst.Call) -> bool:
        """``accelerator.backward`` and the like have an argument; this is for classes of the script."""
        return isinstance(call.func, cst.Attribute) and code(call.func.value) in ("self", "super()")

    def _backward(self, updated: cst.Call) -> cst.BaseExpression:
        func = cst.ensure_type(updated.func, cst.Attribute)
        rest = "".join(f", {code(a).rstrip(',')}" for a in updated.args)
        value = func.value
        text = code(value.with_changes(lpar=(), rpar=())) if hasattr(value, "lpar") else code(value)
        return expression(f"{self.script.job}.backward({text}{rest})")

    def _without_no_sync(self) -> None:
        for node in self.script.nodes:
            if (
                isinstance(node, cst.With)
                and any(".no_sync(" in code(item.item) for item in node.items)
                and len(node.items) == 1
            ):
                self.plan.edit(
                    node,
                    lambda u: cst.FlattenSentinel(list(u.body.body)),
                    "gradients are kept until the step that drops them",
                )
                for inner in self.script.walk(node.items[0]):
                    self.process.claimed(inner)

    # -- means over tokens -------------------------------------------------------------------------------------------
    def _token_means(self, loop: Loop) -> None:
        """``all_reduce(n); (loss * world_size / n).backward()`` is a mean over tokens."""
        reduced = self._reduced(loop)
        for call in [n for n in self.script.walk(loop.node.body) if is_backward(n)]:
            assert isinstance(call, cst.Call)
            value = cst.ensure_type(call.func, cst.Attribute).value
            if not (isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide)):
                continue
            count, top = code(value.right), value.left
            if count not in reduced or not (
                isinstance(top, cst.BinaryOperation) and isinstance(top.operator, cst.Multiply)
            ):
                continue
            loss = next(
                (a for a, b in ((top.left, top.right), (top.right, top.left)) if self.process.kind(b) == "world"), None
            )
            if loss is None:
                continue
            for inner in self.script.walk(call):
                self.process.claimed(inner)
            text = f"{self.script.job}.backward({code(loss)}, count={count})"
            self.counted.add(call)
            self.plan.replace(call, text, "the mean over all tokens of the global batch")
            self.plan.remove(reduced.pop(count), "counts travel with the gradients")
            self._logged_means(loop, loss, reduced)
        for statement in reduced.values():
            self.plan.note(
                statement, "ranks cannot meet in the loop body: a step may have to be repeated",
                f"{self.script.job}.backward() returns the loss over all ranks; else use "
                f"{self.script.job}.all_reduce() in a function of {self.script.job}.every()",
            )  # fmt: skip

    def _reduced(self, loop: Loop) -> dict[str, cst.CSTNode]:
        found: dict[str, cst.CSTNode] = {}
        for node in self.script.walk(loop.node.body):
            if isinstance(node, cst.Call) and self.script.full(node) == f"{DIST}all_reduce" and node.args:
                found[code(node.args[0].value)] = node
        return found

    def _logged_means(self, loop: Loop, loss: cst.BaseExpression, reduced: dict[str, cst.CSTNode]) -> None:
        """``mean = loss / n; all_reduce(mean)``: the job's loss."""
        names = {n.value for n in self.script.walk(loss) if isinstance(n, cst.Name)}
        for node in self.script.walk(loop.node.body):
            if isinstance(node, cst.Assign) and (name := code(node.targets[0].target)) in reduced:
                if not names & {n.value for n in self.script.walk(node.value) if isinstance(n, cst.Name)}:
                    continue
                self.plan.remove(node, f"{self.script.job}.loss is the mean over all ranks")
                self.plan.remove(reduced.pop(name))
                self._read_as_loss(self.script.scope(node), name)

    def _read_as_loss(self, scope: cst.CSTNode, name: str) -> None:
        for node in self.script.walk(scope):
            if isinstance(node, cst.Call) and code(node) in (
                f"{name}.item()",
                f"{name}.detach().item()",
                f"float({name})",
            ):
                self.plan.edit(node, lambda _: expression(f"{self.script.job}.loss"), "the loss over the global batch")

    # -- counters ----------------------------------------------------------------------------------------------------
    def _counters(self, loop: Loop) -> None:
        """``step = 0`` before the loops and ``step += 1`` in the body: the job's step."""
        if loop.site is not None:
            return
        scope = self.script.scope(loop.node)
        for statement in loop.node.body.body:
            if not (isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1):
                continue
            small = statement.body[0]
            if not (
                isinstance(small, cst.AugAssign)
                and isinstance(small.operator, cst.AddAssign)
                and code(small.value) == "1"
            ):
                continue
            name = code(small.target)
            starts = self.script.assignments.get((scope, name), [])
            if (
                len(starts) != 1
                or not isinstance(starts[0], cst.Integer)
                or self.script.within(starts[0], loop.outermost)
            ):
                continue
            if self.script.line(starts[0]) > self.script.line(loop.outermost):
                continue
            self._counted(loop, scope, name, statement, starts[0])

    def _counted(self, loop: Loop, scope: cst.CSTNode, name: str, plus: cst.CSTNode, start: cst.Integer) -> None:
        job = self.script.job
        self.plan.remove(plus, f"{job}.step counts committed steps, the same on all ranks")
        self.plan.remove(self.script.parent(start))
        first = start.evaluated_value
        for node in self.script.nodes:
            if isinstance(node, cst.Name) and node.value == name and self.script.scope(node) is scope:
                if self.script.statement(node) in self.plan.removed or not self.process.is_read(node):
                    continue
                later = self.script.within(node, loop.node) and self.script.line(node) > self.script.line(plus)
                add = first + int(later)
                text = f"{job}.step" if not add else f"({job}.step + {add})"
                self.plan.replace(node, text, f"{job}.step counts committed steps")

    # -- reports -----------------------------------------------------------------------------------------------------
    def _loss(self, loop: Loop) -> None:
        """``loss.item()`` behind the only backward is the job's loss."""
        backwards = [n for n in self.script.walk(loop.node.body) if is_backward(n)]
        if len(backwards) != 1:
            return
        value = cst.ensure_type(cst.ensure_type(backwards[0], cst.Call).func, cst.Attribute).value
        if isinstance(value, cst.Call) and code(value.func).endswith(".scale") and value.args:
            value = value.args[0].value
        if isinstance(value, cst.Name):
            self._read_as_loss(self.script.scope(loop.node), value.value)

    def _gate(self, loop: Loop, tracked: set[str]) -> None:
        own = {code(t.target) for n in self.script.walk(loop.node.body) if isinstance(n, cst.Assign) for t in n.targets}
        job = self.script.job
        gated = [s for s in loop.node.body.body if s not in self.plan.removed and self._is_report(s, own, tracked)]
        self._carried(loop)
        self.gated |= set(gated)
        for statement in gated:
            self.plan.edit(statement, self._gate_of(loop, statement), "once for each committed step")
        if gated:
            self.plan.edit(loop.node.body, lambda u: _after_backward(u, job))
        if loop.bar:
            self.plan.edit(loop.node.body, lambda u: self._with_bar(u, loop))

    def _gate_of(self, loop: Loop, statement: cst.CSTNode) -> Callable[[Any], Any]:
        """Committed steps; what a reader or a file sees once, on rank 0 only."""
        text, job = code(statement), self.script.job
        shown = bool(SHOWN.match(text))
        if isinstance(statement, cst.If) and statement.orelse is None:
            shown = all(SHOWN.match(code(s)) for s in statement.body.body)
        alone = (loop.bar and text.startswith(f"{loop.bar}.")) or (not self.process.distributed and shown)
        condition = f"{job}.committed and {job}.rank == 0" if alone else f"{job}.committed"
        return lambda updated: _under(updated, condition)

    def _shown_once(self) -> None:
        """Files and prints of a script for one GPU: on rank 0 only. Those of loop bodies have their own gate."""
        first = min((self.script.line(loop.outermost) for loop in self.loops.found), default=0)
        bodies = [loop.node for loop in self.loops.found]
        for call in self.script.calls:
            alone = isinstance(self.script.parent(call), cst.Expr) and bool(SHOWN.match(f"{code(call.func)}("))
            early = (
                code(call.func) == "print"
                and self.script.line(call) < first
                and self.script.scope(call) in self._mains()
            )
            if alone and not early and not any(self.script.within(call, body) for body in bodies):
                self.alone.add(self.script.statement(call))
                self.plan.edit(
                    self.script.statement(call), lambda u: _under(u, f"{self.script.job}.rank == 0"), "rank 0 writes"
                )  # fmt: skip

    def _mains(self) -> set[cst.CSTNode]:
        return {self.script.scope(loop.outermost) for loop in self.loops.found}

    def _with_bar(self, block: cst.IndentedBlock, loop: Loop) -> cst.IndentedBlock:
        job, bar = self.script.job, loop.bar
        count = f"{bar}.update({job}.step % len({code(loop.loader)}) + 1 - {bar}.n)"
        shown = cst.parse_statement(f"if {job}.committed and {job}.rank == 0:\n    {count}")
        body = [
            s
            for s in block.body
            if not code(s).endswith(f"{bar}.update(1)") and not code(s).endswith(f"{bar}.update()")
        ]
        return _merged(block.with_changes(body=[*body, shown]))

    def _carried(self, loop: Loop) -> None:
        """A parameter that the body adds to: a process that joins in this loop was called with an old value."""
        function = self.script.scope(loop.node)
        if not isinstance(function, cst.FunctionDef):
            return
        for node in self.script.walk(loop.node.body):
            if isinstance(node, cst.AugAssign) and code(node.target) in self.script.parameters(function):
                self.plan.note(
                    node, f"{code(node.target)} was passed before this process received the state",
                    f"compute it from {self.script.job}.step, or keep it in {self.script.job}.variables()",
                )  # fmt: skip

    def _is_report(self, statement: cst.CSTNode, own: set[str], tracked: set[str]) -> bool:
        if isinstance(statement, cst.If):
            block = [
                *statement.body.body,
                *(statement.orelse.body.body if isinstance(statement.orelse, cst.Else) else ()),
            ]
            inner = [s for s in block if s not in self.plan.removed]
            reports = [self._is_report(s, own, tracked) for s in inner]
            values = [isinstance(s, cst.SimpleStatementLine) and isinstance(s.body[0], cst.Assign) for s in inner]
            return any(reports) and all(a or b for a, b in zip(reports, values, strict=True))
        if isinstance(statement, cst.For | cst.With):
            inner = list(statement.body.body)
            return bool(inner) and all(self._is_report(s, own, tracked) for s in inner)
        if not (isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1):
            return False
        small = statement.body[0]
        if isinstance(small, cst.AugAssign):
            return code(small.target) not in own
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            name = code(small.value.func)
            return bool(REPORTS.fullmatch(name)) and not ACTS.fullmatch(name) and not self._acts(name, own, tracked)
        return False

    @staticmethod
    def _acts(name: str, own: set[str], tracked: set[str]) -> bool:
        """A method of what is tracked, or of something that the body makes for itself."""
        of = name.partition(".")[0]
        return "." in name and (of in tracked or of in own or of in ("ema", "scaler", "model_ema"))


def _under(statement: Any, condition: str) -> Any:
    """The statement under ``if condition:``; an ``if`` gets the condition into its own."""
    if not isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        return statement
    if isinstance(statement, cst.If) and statement.orelse is None:
        test = code(statement.test)
        if isinstance(statement.test, cst.BooleanOperation) and isinstance(statement.test.operator, cst.Or):
            test = f"({test})"
        return statement.with_changes(test=expression(f"{condition} and {test}"))
    block = cst.IndentedBlock([statement.with_changes(leading_lines=())])
    return cst.If(expression(condition), block, leading_lines=statement.leading_lines)


def _after_backward(block: cst.IndentedBlock, job: str) -> cst.IndentedBlock:
    """Conditional statements before the backward move behind it; neighbours with one condition become one."""
    body, condition = list(block.body), f"{job}.committed"

    def gated(statement: cst.BaseStatement) -> bool:
        return isinstance(statement, cst.If) and code(statement.test).startswith(condition)

    last = max((i for i, s in enumerate(body) if f"{job}.backward(" in code(s)), default=-1)
    early = [s for s in body[: max(last, 0)] if gated(s)]
    rest = [s for s in body[: max(last, 0)] if not gated(s)]
    ordered = [*rest, *body[max(last, 0) : last + 1], *early, *body[last + 1 :]]
    return _merged(block.with_changes(body=ordered))


def _merged(block: cst.IndentedBlock) -> cst.IndentedBlock:
    """Neighbours with one condition become one."""
    merged: list[Any] = []
    for statement in block.body:
        last = merged[-1] if merged else None
        if (
            isinstance(last, cst.If) and isinstance(statement, cst.If) and code(last.test) == code(statement.test)
            and "committed" in code(last.test) and last.orelse is None and statement.orelse is None
        ):  # fmt: skip
            both = [*last.body.body, *statement.body.body]
            merged[-1] = last.with_changes(body=last.body.with_changes(body=both))
        else:
            merged.append(statement)
    return block.with_changes(body=merged)
