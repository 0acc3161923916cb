"""What travels to joiners and into checkpoints: tracked objects, variables between epochs, models without a wrapper."""

from __future__ import annotations

import libcst as cst

from elastrain_convert.data import Data
from elastrain_convert.loops import Loop, Loops
from elastrain_convert.plan import Plan, expression
from elastrain_convert.script import Script, argument, code, matcher

is_tracked = matcher(
    r"torch\.optim\..*|torch(\.cuda)?\.amp\.(grad_scaler\.)?GradScaler|.*\.AveragedModel|timm\.utils\.ModelEma(V2|V3)?"
)
is_optimizer = matcher(r"torch\.optim\.(?!lr_scheduler|swa_utils).*")
is_module = matcher(r"torch\.nn\.(modules\.module\.)?Module")
UPDATES = ("step", "update", "update_parameters")


class State:
    """The rules for what is tracked."""

    def __init__(self, script: Script, plan: Plan, loops: Loops, data: Data) -> None:
        self.script, self.plan, self.loops, self.data = script, plan, loops, data
        self.tracked: set[str] = set()
        self.calls: set[cst.CSTNode] = set()
        """The calls that make what is tracked."""
        self.wrapped: set[cst.CSTNode] = set()
        """The calls that make the models of a script for one GPU, whose wrapper trains."""
        self.kept: set[str] = set()
        """Names that became variables of the job."""

    def apply(self) -> None:
        """All rules of this module."""
        done: set[cst.CSTNode] = set()
        for loop in self.loops.found:
            outer = loop.outermost
            if outer in done:
                continue
            done.add(outer)
            if not self.data.count:
                self._wrap(loop)
            self._variables(loop)
            names = self._names(outer)
            if names:
                self.tracked |= set(names)
                self.calls |= {c for n in names for c in self._made(self.script.scope(outer), n)}
                line = f"{self.script.job}.track({', '.join(f'{_last(n)}={n}' for n in names)})"
                self.plan.insert_before(outer, line, "their state reaches joiners and checkpoints")

    # -- tracked objects ---------------------------------------------------------------------------------------------
    def _names(self, outer: cst.For) -> list[str]:
        """As the function of the loop names them; attributes of its object too."""
        scope, owner = self.script.scope(outer), self.script.owner(outer)
        names = [name for where, name in self.script.assignments if where is scope and name.isidentifier()]
        if isinstance(scope, cst.FunctionDef):
            names += [name for name in self.script.parameters(scope) if name not in names]
        if owner is not None:
            names += [
                name
                for where, name in self.script.assignments
                if where is self.script.module and name.startswith("self.")
            ]
        found = [
            n for n in names if (made := self._made(scope, n)) and self._before(made, outer) and self._is_state(made)
        ]
        return [n for n in found if not self._is_a_part(scope, n, found)]

    def _made(self, scope: cst.CSTNode, name: str) -> list[cst.BaseExpression]:
        where = self.script.module if "." in name else scope
        values = self.script.assignments.get((where, name)) or (
            self.script.passed(scope, name) if isinstance(scope, cst.FunctionDef) else []
        )
        return [r for value in values for r in self.script.resolve(value) if isinstance(r, cst.Call)]

    def _before(self, made: list[cst.BaseExpression], outer: cst.For) -> bool:
        return not any(self.script.within(call, outer) for call in made)

    def _is_state(self, made: list[cst.BaseExpression]) -> bool:
        script = self.script
        if any(script.is_a(call, is_tracked) for call in made):
            return True
        own = [
            script.classes[name]
            for call in made
            if isinstance(call, cst.Call) and (name := code(call.func)) in script.classes
        ]
        for kind in own:
            methods = {s.name.value for s in kind.body.body if isinstance(s, cst.FunctionDef)}
            if {"state_dict", "load_state_dict"} <= methods or (
                script.inherits(kind, is_module) and self._updated(made)
            ):
                return True
        return not own and not any(script.full(c).startswith("torch.") for c in made) and self._updated(made, ("step",))

    def _updated(self, made: list[cst.BaseExpression], methods: tuple[str, ...] = UPDATES) -> bool:
        """Whether the script calls one of these methods on it."""
        for call in self.script.calls:
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in methods:
                of = self.script.resolve(call.func.value)
                if any(a is b for a in of for b in made):
                    return True
        return False

    def _is_a_part(self, scope: cst.CSTNode, name: str, others: list[str]) -> bool:
        """A scheduler in a list that another one takes: its state is in that one's."""
        lists = [
            n
            for o in others
            if o != name
            for call in self._made(scope, o)
            for n in self.script.walk(call)
            if isinstance(n, cst.List)
        ]
        return any(isinstance(e.value, cst.Name) and e.value.value == name for found in lists for e in found.elements)

    # -- variables ---------------------------------------------------------------------------------------------------
    def _variables(self, loop: Loop) -> None:
        """``best = 0.0`` before the loop over epochs, and assigned in it: the same for ranks that join later."""
        if loop.epochs is None:
            return
        outer = loop.epochs
        scope, starts = self.script.scope(outer), self._starts(outer)
        inner = {id(n) for n in self.script.walk(loop.node)} if loop.site is None else set()
        names = [n for n in starts if self._changes_in(outer, n, inner)]
        if not names:
            return
        used = {n.value for n in self.script.nodes if isinstance(n, cst.Name)}
        kept = "kept" if "kept" not in used else "kept_by_job"
        values = ", ".join(f"{n}={code(starts[n][1])}" for n in names)
        first = starts[names[0]][0]
        self.plan.insert_before(
            first, f"{kept} = {self.script.job}.variables({values})", "values that joiners and checkpoints receive"
        )
        self.kept |= set(names)
        self._set_alone(outer, names)
        for statement in dict.fromkeys(starts[n][0] for n in names):
            self._without(statement, {n: v for n, (s, v) in starts.items() if s is statement and n not in names})
        for node in self.script.nodes:
            if (
                isinstance(node, cst.Name)
                and node.value in names
                and self.script.scope(node) is scope
                and self._is_name(node)
                and not any(self.script.within(node, starts[n][0]) for n in names)
            ):
                self.plan.edit(
                    node, lambda u: expression(f"{kept}.{u.value}"), "the same on all ranks, also on those that join"
                )

    def _set_alone(self, outer: cst.For, names: list[str]) -> None:
        """Values that one rank sets: the others keep theirs, and a joiner receives the value of any of them."""
        for node in self.script.walk(outer.body):
            targets = [node.target] if isinstance(node, cst.AugAssign) else []
            targets += [t.target for t in node.targets] if isinstance(node, cst.Assign) else []
            flat = {code(e.value) for t in targets if isinstance(t, cst.Tuple) for e in t.elements} | {
                *map(code, targets)
            }
            tests = [n.test for n in self.script.around(node) if isinstance(n, cst.If)]
            if flat & set(names) and any(self.data.process.is_of_rank(test) for test in tests):
                name = sorted(flat & set(names))[0]
                self.plan.note(
                    node, f"{name} is set on one rank only, and must be the same on all of them",
                    f"evaluate on all ranks ({self.script.job}.evaluate), set it on all, and write files on rank 0",
                )  # fmt: skip

    def _starts(self, outer: cst.For) -> dict[str, tuple[cst.SimpleStatementLine, cst.BaseExpression]]:
        """Names that have a constant before the loop: the statement, and the value."""
        siblings, place = self.script.siblings(outer)
        found: dict[str, tuple[cst.SimpleStatementLine, cst.BaseExpression]] = {}
        for earlier in siblings[:place]:
            if (
                earlier in self.plan.removed
                or not isinstance(earlier, cst.SimpleStatementLine)
                or len(earlier.body) != 1
            ):
                continue
            assign = earlier.body[0]
            if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
                continue
            target, value = assign.targets[0].target, assign.value
            pairs = [(target, value)]
            if (
                isinstance(target, cst.Tuple)
                and isinstance(value, cst.Tuple)
                and len(target.elements) == len(value.elements)
            ):
                pairs = [(a.value, b.value) for a, b in zip(target.elements, value.elements, strict=True)]
            if all(isinstance(t, cst.Name) and _is_constant(v) for t, v in pairs):
                found |= {code(t): (earlier, v) for t, v in pairs}
        return found

    def _without(self, statement: cst.SimpleStatementLine, left: dict[str, cst.BaseExpression]) -> None:
        """A statement that no longer sets what travels."""
        if left:
            text = f"{', '.join(left)} = {', '.join(code(v) for v in left.values())}"
            made = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
            self.plan.edits[statement] = [lambda u: made.with_changes(leading_lines=u.leading_lines)]
        else:
            self.plan.removed_but_preceded(statement)

    def _changes_in(self, outer: cst.For, name: str, inner: set[int]) -> bool:
        targets = []
        for node in self.script.walk(outer.body):
            if isinstance(node, cst.AugAssign):
                targets.append(node.target)
            elif isinstance(node, cst.Assign):
                targets += [t.target for t in node.targets]
        flat = [e.value for t in targets if isinstance(t, cst.Tuple) for e in t.elements] + targets
        mine = [t for t in flat if isinstance(t, cst.Name) and t.value == name]
        return bool(mine) and not any(id(t) in inner for t in mine)

    def _is_name(self, node: cst.Name) -> bool:
        parent = self.script.parent(node)
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            return False
        return not (isinstance(parent, cst.Attribute) and parent.attr is node) and not isinstance(parent, cst.Param)

    # -- models without a wrapper --------------------------------------------------------------------------------------
    def _wrap(self, loop: Loop) -> None:
        """A script for one GPU: the training loop gets a wrapper, all else keeps the model."""
        script, plan = self.script, self.plan
        models = [
            m for call in script.calls if is_optimizer(script.full(call)) for n in script.walk(call)
            if isinstance(n, cst.Call) and code(n.func).endswith("parameters") and isinstance(n.func, cst.Attribute)
            for m in script.resolve(n.func.value)
        ]  # fmt: skip
        called = {
            n.func.value: n for n in script.walk(loop.node.body) if isinstance(n, cst.Call)
            and isinstance(n.func, cst.Name) and any(a is b for a in script.resolve(n.func) for b in models)
        }  # fmt: skip
        if len(called) != 1:
            plan.note(
                loop.node, "no single model is called in this loop, so that none is wrapped",
                f"wrap each model before the loop, and call the wrapper in it: wrapped = {script.job}.wrap(model)",
            )  # fmt: skip
            return
        ((name, call),) = called.items()
        self.wrapped |= set(script.resolve(call.func))
        wrapper = f"elastic_{name}"
        there = name
        if loop.site is not None and (given := self._argument(loop, name)) is not None:
            there, wrapper = code(given), f"elastic_{code(given)}"
            plan.edit(given, lambda _: cst.Name(wrapper), "training goes through the wrapper")
        else:
            for node in self.script.walk(loop.node.body):
                if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == name:
                    plan.edit(node.func, lambda _: cst.Name(wrapper), "training goes through the wrapper")
        plan.insert_before(
            loop.outermost, f"{wrapper} = {script.job}.wrap({there})", "gradients become the mean over the global batch"
        )

    def _argument(self, loop: Loop, name: str) -> cst.BaseExpression | None:
        function = self.script.scope(loop.node)
        if (
            loop.site is None
            or not isinstance(function, cst.FunctionDef)
            or name not in self.script.parameters(function)
        ):
            return None
        return argument(loop.site, name, self.script.parameters(function).index(name))


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_constant(value: cst.BaseExpression) -> bool:
    text = code(value)
    if isinstance(value, cst.UnaryOperation):
        return _is_constant(value.expression)
    infinite = ("math.inf", "np.inf", "numpy.inf", "torch.inf", "float('inf')", "float('-inf')")
    return isinstance(value, cst.Integer | cst.Float) or text == "None" or text.replace('"', "'") in infinite
