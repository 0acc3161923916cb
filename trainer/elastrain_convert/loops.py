"""Training loops: which they are, their epochs, and what takes their place."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from elastrain_convert.plan import Plan, expression, keyword
from elastrain_convert.process import Process
from elastrain_convert.script import Script, argument, code, last_name

LOADER = "torch.utils.data.DataLoader"
BARS = ("tqdm", "trange", "track", "auto", "notebook")


def is_backward(node: cst.CSTNode) -> bool:
    """``loss.backward()`` of torch."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "backward"
        and not [a for a in node.args if a.keyword is None]
    )


@dataclass
class Loop:
    """A loop over the batches of a loader that trains."""

    node: cst.For
    loader: cst.BaseExpression
    """As the loop names it."""
    counter: cst.Name | None = None
    """Of ``enumerate``."""
    bars: list[cst.Call] = field(default_factory=list)
    bar: str = ""
    """The name of the bar that shows its steps; "" without one."""
    shown: cst.BaseExpression | None = None
    """The bar as the loop iterates over it."""
    epochs: cst.For | None = None
    """The loop around it, which may be in the calling function."""
    bound: str = "1"
    """Epochs to which the loop trains, as an expression in its function."""
    site: cst.Call | None = None
    """The call of the loop's function in :attr:`epochs`."""

    @property
    def outermost(self) -> cst.For:
        """The loop before which the state is tracked."""
        return self.epochs or self.node


class Loops:
    """The training loops of a script."""

    def __init__(self, script: Script, plan: Plan) -> None:
        self.script, self.plan = script, plan
        self.found: list[Loop] = []
        self.evaluations: list[cst.For] = []
        self.dropped: set[cst.CSTNode] = set()
        """What is in no statement afterwards."""
        for node in script.fors:
            loop = self._peeled(node)
            if loop is None:
                continue
            inner = [n for n in script.fors if n is not node and script.within(n, node) and self._peeled(n)]
            if script.reaches(node.body, is_backward) and not any(script.reaches(n.body, is_backward) for n in inner):
                self._around(loop)
                self.found.append(loop)
            elif not script.reaches(node.body, is_backward):
                self.evaluations.append(node)

    def _peeled(self, node: cst.For) -> Loop | None:
        """The loader of a loop, without enumerations and bars around it; None if it iterates over something else."""
        loop, iterable, target = Loop(node, node.iter), node.iter, node.target
        while isinstance(iterable, cst.Call) and iterable.args:
            full = self.script.full(iterable)
            name = last_name(iterable)
            if full == "builtins.enumerate":
                if loop.counter is None and isinstance(target, cst.Tuple) and len(target.elements) == 2:
                    first = target.elements[0].value
                    loop.counter = first if isinstance(first, cst.Name) else None
            elif name in BARS:
                loop.bars.append(iterable)
            else:
                break
            iterable = iterable.args[0].value
        if isinstance(iterable, cst.Name):  # bar = tqdm(loader)
            for made in self.script.definitions(iterable):
                if isinstance(made, cst.Call) and last_name(made) in BARS and made.args:
                    loop.bars.append(made)
                    loop.bar, loop.shown = iterable.value, iterable
                    iterable = made.args[0].value
                    break
        loop.loader = iterable
        return loop if self.script.is_a(iterable, lambda full: full == LOADER) else None

    def _around(self, loop: Loop) -> None:
        function = self.script.scope(loop.node)
        loop.epochs = self._epochs(loop.node)
        if loop.epochs is None and isinstance(function, cst.FunctionDef):
            for call in self.script.sites[function.name.value]:
                if (epochs := self._epochs(call)) is not None:
                    loop.epochs, loop.site = epochs, call

    def _epochs(self, node: cst.CSTNode) -> cst.For | None:
        """The nearest loop over a range around it."""
        for outer in self.script.around(node):
            if isinstance(outer, cst.For) and isinstance(outer.target, cst.Name) and self._range(outer) is not None:
                return outer
            if isinstance(outer, cst.FunctionDef):
                return None
        return None

    def _range(self, node: cst.For) -> cst.Call | None:
        """Its ``range(…)``, also within a bar."""
        iterable = node.iter
        if isinstance(iterable, cst.Call) and last_name(iterable) in BARS and iterable.args:
            iterable = iterable.args[0].value
        return iterable if isinstance(iterable, cst.Call) and self.script.full(iterable) == "builtins.range" else None

    # -- rules -------------------------------------------------------------------------------------------------------
    def apply(self, process: Process) -> None:
        """All rules of this module."""
        done: set[cst.CSTNode] = set()
        for loop in self.found:
            if loop.epochs is not None and loop.epochs in done:
                self.plan.note(
                    loop.node, "a second training loop in one loop over epochs",
                    "give each its own bounds: job.steps(loader, steps=…)",
                )  # fmt: skip
            if loop.epochs is not None:
                done.add(loop.epochs)
            self._bound(loop)
            self._steps(loop)
            self._leaves(loop)

    def _bound(self, loop: Loop) -> None:
        if loop.epochs is None:
            return
        script, plan, outer = self.script, self.plan, loop.epochs
        target = code(outer.target)
        made = self._range(outer)
        assert made is not None
        values = [a.value for a in made.args]
        from_one = len(values) == 2 and code(values[0]) == "1"
        count = values[0] if len(values) == 1 else values[1]
        total = code(count)
        loader = self._loader_there(loop)
        if from_one:
            total = (
                code(count.left)
                if isinstance(count, cst.BinaryOperation) and code(count.right) == "1"
                else f"{total} - 1"
            )
        elif len(values) > 1 and code(values[0]) != "0":
            plan.says(outer, "the job knows its epoch: a resume begins there")
        text = f"{script.job}.epochs({loader}, {total})"
        if from_one:
            text = f"(done + 1 for done in {text})"
        plan.edit(made, lambda _: expression(text), "the epochs that are left when this process joins")
        name = self._name_there(loop, target)
        loop.bound = name if from_one else f"{name} + 1"

    def _loader_there(self, loop: Loop) -> str:
        """The loader's name at the loop over epochs."""
        if loop.site is None or not isinstance(loop.loader, cst.Name):
            return code(loop.loader)
        function = self.script.scope(loop.node)
        assert isinstance(function, cst.FunctionDef)
        names = self.script.parameters(function)
        if loop.loader.value in names:
            value = argument(loop.site, loop.loader.value, names.index(loop.loader.value))
            if value is not None:
                return code(value)
        return code(loop.loader)

    def _name_there(self, loop: Loop, epoch: str) -> str:
        """The name of the epoch in the function of the inner loop, which becomes a parameter if it is none."""
        if loop.site is None:
            return epoch
        function = self.script.scope(loop.node)
        assert isinstance(function, cst.FunctionDef)
        names = self.script.parameters(function)
        for name in names:
            value = argument(loop.site, name, names.index(name))
            if value is not None and code(value) == epoch:
                return name
        site, used = loop.site, {n.value for n in self.script.walk(function) if isinstance(n, cst.Name)}
        own = "epoch" if "epoch" not in used else "epoch_of_job"

        def with_parameter(updated: cst.FunctionDef) -> cst.FunctionDef:
            params = updated.params
            added = cst.Param(cst.Name(own))
            star = (
                params.star_arg if params.kwonly_params or isinstance(params.star_arg, cst.Param) else cst.ParamStar()
            )
            return updated.with_changes(
                params=params.with_changes(kwonly_params=[*params.kwonly_params, added], star_arg=star)
            )

        self.plan.edit(function, with_parameter, "the loop needs the epoch")
        passed = keyword(own, epoch)
        self.plan.edit(site, lambda u: u.with_changes(args=[*u.args, passed]), "the loop needs the epoch")
        return own

    def _steps(self, loop: Loop) -> None:
        script, plan, job = self.script, self.plan, self.script.job
        text = f"{job}.steps({{}}, epochs={loop.bound})"
        what = "this rank's part of each step"
        if len(loop.bars) == 1 and last_name(loop.bars[0]) == "tqdm":
            self._shown(loop, text, what)
        else:
            plan.replace(loop.loader, text, what)
            for bar in loop.bars:
                self._bar(bar, code(loop.loader))
        made = loop.node.iter
        layers = [made]
        while isinstance(layers[-1], cst.Call) and layers[-1].args and layers[-1] is not loop.loader:
            layers.append(layers[-1].args[0].value)
        numbered = next((n for n in layers if isinstance(n, cst.Call) and script.full(n) == "builtins.enumerate"), None)
        if numbered is None:
            return
        start = numbered.args[1].value if len(numbered.args) > 1 else None
        if start is not None and not isinstance(start, cst.Integer):
            plan.note(
                loop.node, f"the counter begins at {code(start)}, and each epoch has its own",
                f"{job}.step counts the steps of all epochs",
            )  # fmt: skip
        plan.edit(numbered, lambda u: u.args[0].value, "the job counts steps: a body may run again")
        if loop.counter is None:
            plan.note(
                loop.node, "the counter of enumerate() is no name", f"use {job}.step, which counts committed steps"
            )
            return
        name = loop.counter.value
        plan.edit(loop.node.target, lambda u: _bare(u.elements[1].value))
        first = f" + {code(start)}" if start is not None and code(start) != "0" else ""
        if any(isinstance(n, cst.Name) and n.value == name for n in self.script.walk(loop.node.body)):
            plan.insert_first(loop.node, f"{name} = {job}.step % len({code(loop.loader)}){first}")

    def _shown(self, loop: Loop, text: str, what: str) -> None:
        """The bar of rank 0 counts committed steps; the loop goes over the steps themselves."""
        bar, loader = loop.bars[0], code(loop.loader)
        why = "rank 0 shows committed steps"

        def made(updated: cst.Call) -> cst.Call:
            own = [
                a
                for a in updated.args[1:]
                if a.keyword is None or a.keyword.value not in ("total", "disable", "initial")
            ]
            kept = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in own]
            return updated.with_changes(args=[keyword("total", f"len({loader})"), *kept, keyword("delay", "0.01")])

        for arg in bar.args[1:]:
            if arg.keyword is not None and arg.keyword.value == "disable":
                self.dropped.update(self.script.walk(arg))
        if loop.shown is not None:
            self.plan.edit(bar, made, why)
            self.plan.edit(loop.shown, lambda _: expression(text.replace("{}", loader)), what)
            return
        used = {n.value for n in self.script.nodes if isinstance(n, cst.Name)}
        loop.bar = next(name for name in ("bar", "steps_bar", "bar_of_steps") if name not in used)
        self.plan.insert_before(loop.node, f"{loop.bar} = {code(made(bar))}", why)
        self.plan.edit(bar, lambda _: expression(text.replace("{}", loader)), what)

    def _bar(self, bar: cst.Call, loader: str) -> None:
        """A bar has no length of its own any more."""
        if any(a.keyword is not None and a.keyword.value == "total" for a in bar.args):
            return
        total = keyword("total", f"len({loader})")
        self.plan.edit(bar, lambda u: u.with_changes(args=[u.args[0], total, *u.args[1:]]), "a bar needs its length")

    def _leaves(self, loop: Loop) -> None:
        """Ways out of the body that would differ between ranks."""
        for node in self.script.walk(loop.node.body):
            if isinstance(node, cst.Break) and self._loop_of(node) is loop.node:
                self.plan.note(
                    node, "a rank that leaves its loop alone fails the job, and a joiner counts from 0",
                    f"{self.script.job}.stop() ends training on all ranks after the same step",
                )  # fmt: skip
            elif isinstance(node, cst.Return) and self.script.scope(node) is self.script.scope(loop.node):
                self.plan.note(
                    node, "a return in the loop body ends this rank's loop only", f"use {self.script.job}.stop()"
                )
            elif (
                isinstance(node, cst.Continue)
                and self._loop_of(node) is loop.node
                and not self._after_backward(loop, node)
            ):
                self.plan.note(
                    node, "a batch that is skipped has no backward, for which the other ranks wait",
                    f"leave such samples out of the data set, or call {self.script.job}.backward(loss * 0)",
                )  # fmt: skip

    def _loop_of(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return next((n for n in self.script.around(node) if isinstance(n, cst.For | cst.While)), None)

    def _after_backward(self, loop: Loop, node: cst.CSTNode) -> bool:
        lines = [self.script.line(n) for n in self.script.walk(loop.node.body) if is_backward(n)]
        return bool(lines) and min(lines) < self.script.line(node)


def _bare(target: cst.BaseExpression) -> cst.BaseExpression:
    """``for i, (x, y) in`` becomes ``for x, y in``."""
    if isinstance(target, cst.Tuple) and len(target.elements) > 1:
        return target.with_changes(lpar=(), rpar=())
    return target
