"""What the expressions of a script stand for: modules, what a body makes anew, what an optimizer has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from elastrain_convert.script import Script, code

is_module = "torch.nn.Module", "torch.nn.modules.module.Module"
MADE_OF_MODULES = ("torch.nn.", "torchvision.models.", "transformers.", "timm.")


class Objects:
    """Follows expressions, over-careful: what is not seen is nothing known."""

    def __init__(self, script: Script, tracked: Iterable[cst.CSTNode]) -> None:
        """``tracked``: the calls that made tracked objects."""
        self.script, self.tracked = script, set(tracked)
        self._own_object = False
        """Whether ``self`` is an object that each turn makes anew."""
        self._home: cst.CSTNode | None = None
        """The loop at which a walk has begun: what is made in it is made anew in each body."""

    def _is_model(self, value: cst.BaseExpression) -> bool:
        if isinstance(value, cst.Attribute) and value.attr.value == "module":
            value = value.value
        made = [self._unwrapped(m) for m in self.script.resolve(value)]
        return any(
            isinstance(m, cst.Call)
            and (
                self.script.full(m).startswith((*MADE_OF_MODULES, "torch.optim."))
                or ((own := self.script.classes.get(code(m.func))) is not None and self._is_module(own))
            )
            for m in made
        )

    def _is_module(self, own: cst.ClassDef) -> bool:
        return self.script.inherits(own, lambda full: full in is_module)

    def _objects(self, func: cst.BaseExpression) -> list[cst.BaseExpression]:
        """What is called; of an element its containers."""
        if isinstance(func, cst.Subscript):
            return [func.value]
        for around in self.script.around(func):
            if isinstance(around, cst.For) and any(
                isinstance(n, cst.Name) and n.value == code(func) for n in self.script.walk(around.target)
            ):
                made = around.iter
                while isinstance(made, cst.Call) and self.script.full(made).startswith("builtins.") and made.args:
                    if self.script.full(made) == "builtins.zip":
                        return [a.value for a in made.args]
                    made = made.args[0].value
                return [made]
        return [func]

    def _unwrapped(self, made: cst.BaseExpression) -> cst.BaseExpression:
        """The model that a wrapper has."""
        for _ in range(4):
            full = self.script.full(made) if isinstance(made, cst.Call) else ""
            if (
                not isinstance(made, cst.Call)
                or not made.args
                or not full.endswith(
                    (
                        "DistributedDataParallel",
                        "DataParallel",
                        "convert_sync_batchnorm",
                        "AveragedModel",
                        "deepcopy",
                        "torch.compile",
                    )
                )
            ):
                return made
            inner = self.script.resolve(made.args[0].value)
            if len(inner) != 1 or inner[0] is made:
                return made
            made = inner[0]
        return made

    def _in_init(self, node: cst.CSTNode) -> bool:
        scope = self.script.scope(node)
        return isinstance(scope, cst.FunctionDef) and scope.name.value == "__init__"

    def _of_optimizer(self, target: cst.BaseExpression) -> bool:
        """``group["lr"]`` of a group of an optimizer, which is tracked."""
        base = target.value if isinstance(target, cst.Subscript | cst.Attribute) else target
        if "param_groups" in code(base):
            return True
        return isinstance(base, cst.Name) and any(
            isinstance(n, cst.For) and code(n.target) == base.value and "param_groups" in code(n.iter)
            for n in self.script.around(base)
        )

    @staticmethod
    def _trains(target: cst.BaseExpression) -> bool:
        return isinstance(target, cst.Attribute) and target.attr.value == "requires_grad"

    def _is_fresh(self, base: cst.BaseExpression) -> bool:  # noqa: PLR0911 - one return per kind of expression
        """Whether each body makes it anew."""
        while isinstance(base, cst.Subscript):
            base = base.value
        if isinstance(base, cst.Dict | cst.List | cst.Set | cst.ListComp | cst.DictComp):
            return True
        if code(base).partition(".")[0] == "self" and (self._own_object or self._in_init(base)):
            return True
        if isinstance(base, cst.Attribute) and any(m in self.tracked for m in self.script.resolve(base.value)):
            return True
        if not isinstance(base, cst.Name):
            return False
        scope = self.script.scope(base)
        for around in self.script.around(base):
            if isinstance(around, cst.For) and code(around.target) == base.value:
                return isinstance(around.iter, cst.Tuple | cst.List) and all(
                    self._is_fresh(e.value) for e in around.iter.elements
                )
        while not (values := self.script.assignments.get((scope, base.value), [])):
            if scope is self.script.module or base.value in self.script.parameters(scope):
                return False
            scope = self.script.scope(scope)
        if scope is self.script.module and self._home is not None and scope is not self.script.scope(self._home):
            return False
        if isinstance(scope, cst.FunctionDef) and base.value in self.script.parameters(scope):
            return False
        made_here = (
            self._home is None
            or scope is not self.script.scope(self._home)
            or all(self.script.within(v, self._home) for v in values)
        )
        return made_here and not any(isinstance(v, cst.Name | cst.Attribute | cst.Subscript) for v in values)


def assigned(block: cst.CSTNode, removed: Iterable[cst.CSTNode]) -> Iterator[tuple[str, cst.CSTNode]]:
    """Names that a block assigns, with the place; not those of functions in it."""
    gone = removed if isinstance(removed, set) else set(removed)
    if block in gone or isinstance(block, cst.FunctionDef | cst.ClassDef | cst.Lambda):
        return
    targets: list[cst.BaseExpression] = []
    if isinstance(block, cst.Assign):
        targets = [t.target for t in block.targets]
    elif isinstance(block, cst.AugAssign | cst.AnnAssign | cst.For | cst.NamedExpr):
        targets = [block.target]
    elif isinstance(block, cst.WithItem) and block.asname is not None:
        targets = [block.asname.name]
    while targets:
        target = targets.pop()
        if isinstance(target, cst.Name):
            yield target.value, target
        elif isinstance(target, cst.Tuple | cst.List):
            targets += [e.value for e in target.elements]
    for child in block.children:
        yield from assigned(child, gone)
