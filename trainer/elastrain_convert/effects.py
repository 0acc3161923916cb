"""What code leaves behind that a loop body calls: only what is known to end with the body is passed over.

A body can run without committing a step, and a process can join in the middle of training. So of each call, store and
read it must be known that neither matters; what is not known is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import libcst as cst

from elastrain_convert.known import (
    BUILTINS,
    CHANGES,
    IN_PLACE,
    OF_MODULES,
    OF_TRACKED,
    RANDOM,
    RANDOM_METHODS,
    READS_TRACKED,
    VALUES,
    WRITES,
    is_pure,
    words,
)
from elastrain_convert.objects import MADE_OF_MODULES, Objects
from elastrain_convert.plan import Plan
from elastrain_convert.process import DIST
from elastrain_convert.script import Script, argument, code

REPORTS = words(
    """
    print info debug warning log write add_scalar add_scalars set_postfix set_postfix_str set_description
    set_description_str log_metrics
    """
)
NO_MEAN = "a loss that is no mean over samples: a rank's part has another size with each number of ranks"


class Effects(Objects):
    """Looks at the code of loop bodies, and at the functions of the script that it reaches."""

    def __init__(
        self,
        script: Script,
        plan: Plan,
        *,
        gated: Iterable[cst.CSTNode] = (),
        tracked: Iterable[cst.CSTNode] = (),
        served: Callable[[cst.Call], bool] = lambda _: False,
        bitwise: bool = False,
        counted: bool = False,
    ) -> None:
        """``gated``: statements that run once for each committed step. ``tracked``: the calls that made tracked
        objects. ``served``: calls of a framework that are known. ``counted``: backwards have a count."""
        super().__init__(script, tracked)
        self.counted = counted
        self.plan, self.served, self.bitwise, self.gated = plan, served, bitwise, set(gated)
        self.job = script.job
        self._seen: set[tuple[cst.CSTNode, bool]] = set()
        self._queue: list[tuple[cst.CSTNode, bool, bool]] = []
        self._methods: dict[str, list[cst.FunctionDef]] = {}
        for node in script.nodes:
            if isinstance(node, cst.FunctionDef) and script.owner(node) is not None:
                self._methods.setdefault(node.name.value, []).append(node)

    def body(self, block: cst.CSTNode, home: cst.CSTNode) -> None:
        """Code that may run without a step that counts."""
        self._home = home
        self._walk(block, counts=False)
        for own in self.script.classes.values():
            if self._is_module(own):
                self._enqueue(f for f in self._methods.get("forward", ()) if self.script.owner(f) is own)
        self._drain()

    def between(self, block: cst.CSTNode, home: cst.CSTNode, *, without: Iterable[cst.CSTNode]) -> None:
        """Code of a loop over epochs, beside the loops over batches ``without``: it runs once on each rank, and a
        process that joins later does not run it."""
        self._home = home
        self._seen.update((node, True) for node in without)
        self._walk(block, counts=True)
        self._drain()

    def _drain(self) -> None:
        while self._queue:
            node, counts, self._own_object = self._queue.pop()
            self._walk(node, counts=counts)

    def _enqueue(self, functions: Iterable[cst.FunctionDef], *, counts: bool = False, own: bool = False) -> None:
        self._queue += [(f.body, counts, own) for f in functions]

    def _walk(self, node: cst.CSTNode, *, counts: bool) -> None:
        """Each statement and call, from the outside; what a rule has taken out is left out."""
        if (node, counts) in self._seen or node in self.plan.removed:
            return
        self._seen.add((node, counts))
        if node in self.gated and not counts:
            self._within_gated(node)
            return
        if isinstance(node, cst.Call):
            self._call(node, counts=counts)
        elif isinstance(node, cst.Assign):
            for target in node.targets:
                self._store(target.target, counts=counts)
        elif isinstance(node, cst.AnnAssign | cst.AugAssign):
            self._store(node.target, counts=counts, adds=isinstance(node, cst.AugAssign))
        elif isinstance(node, cst.Global | cst.Nonlocal):
            names = ", ".join(item.name.value for item in node.names)
            self._note(
                node, f"{names} of the module changes here, and a process that joins does not receive it", self._keep()
            )
        elif isinstance(node, cst.Del | cst.Await | cst.Yield):
            if not isinstance(node, cst.Yield) and not isinstance(getattr(node, "target", None), cst.Name):
                self._note(node, "what this leaves behind is not known", self._gate())
        elif isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda) and counts:
            return
        if isinstance(node, cst.For | cst.CompFor) and self._is_used_up(node.iter):
            self._changed(node, node.iter, counts=counts)
        for child in node.children:
            self._walk(child, counts=counts)

    def _is_used_up(self, iterable: cst.BaseExpression) -> bool:
        """An iterator or generator that outlives the loop."""
        if self._is_fresh(iterable) or not isinstance(iterable, cst.Name | cst.Attribute):
            return False
        ends = ("builtins.iter", "builtins.map", "builtins.zip", "builtins.enumerate", "builtins.filter")
        return any(
            isinstance(made, cst.GeneratorExp)
            or (isinstance(made, cst.Call) and (self.script.full(made) in ends or self._yields(made)))
            for made in self.script.resolve(iterable)
        )

    def _yields(self, call: cst.Call) -> bool:
        function = self.script.functions.get(code(call.func))
        return function is not None and any(isinstance(n, cst.Yield) for n in self.script.walk(function.body))

    def passed(self) -> None:
        """Functions of the script that others call, such as the rule of a schedule: they keep nothing."""
        for call in self.script.calls:
            if code(call.func).endswith(".apply"):
                continue
            for arg in call.args:
                if isinstance(arg.value, cst.Name) and arg.value.value in self.script.functions:
                    self._enqueue([self.script.functions[arg.value.value]], counts=True)
        self._drain()

    def _within_gated(self, statement: cst.CSTNode) -> None:
        """Its arguments; the report itself has its gate."""
        queue: list[cst.CSTNode] = [statement]
        while queue:
            node = queue.pop()
            if node in self.plan.removed:
                continue
            if isinstance(node, cst.AugAssign) and not self._is_counter(node.target, statement):
                self._changed(node, node.target, counts=True)
            if isinstance(node, cst.Call):
                name = code(node.func).rpartition(".")[2]
                full = self.script.full(node)
                if full and (name in CHANGES or name in OF_TRACKED or full == "builtins.next"):
                    self._call(node, counts=False)
                elif isinstance(node.func, cst.Name) and name in self.script.functions:
                    self._call(node, counts=True)
                elif name not in REPORTS and name not in CHANGES and name not in OF_TRACKED:
                    self._call(node, counts=False)
                elif name not in REPORTS and any(self._is_model(a.value) for a in node.args):
                    of = code(node.func).rpartition(".")[0]
                    self._note(
                        node,
                        f"what {of} keeps of the model is not received by a process that joins",
                        f"give it state_dict() and load_state_dict(), and {self.job}.track({_word(of)}={of})",
                    )
            queue += node.children

    def _is_counter(self, target: cst.BaseExpression, gated: cst.CSTNode) -> bool:
        """A name that is no element of something else."""
        loops = [n for n in self.script.walk(gated) if isinstance(n, cst.For)]
        elements = [n for loop in loops for n in self.script.walk(loop.target) if isinstance(n, cst.Name)]
        return isinstance(target, cst.Name) and target.value not in [n.value for n in elements]

    # -- calls ----
    def _call(self, call: cst.Call, *, counts: bool) -> None:
        if call in self.plan.edits or self.served(call):
            self._edited(call, counts=counts)
            return
        script, full = self.script, self.script.full(call)
        if (out := argument(call, "out")) is not None and not self._is_fresh(out):
            self._changed(call, out, counts=counts)
        if not counts:
            self._sums(call)
        if full == "builtins.next" and call.args:
            of = call.args[0].value
            if not (isinstance(of, cst.Call) or self._is_fresh(of)):
                self._changed(call, of, counts=counts)
        elif full:
            self._library(call, full, counts=counts)
        elif isinstance(call.func, cst.Attribute):
            self._method(call, call.func, counts=counts)
        elif isinstance(call.func, cst.Name) and call.func.value in script.functions:
            self._enqueue([script.functions[call.func.value]], counts=counts)
        elif isinstance(call.func, cst.Name) and call.func.value in script.classes:
            self._enqueue(self._methods.get("__init__", ()), counts=counts)
        else:
            self._called(call, counts=counts)

    def _sums(self, call: cst.Call) -> None:
        """A sum over a part of the batch, which has another size with each number of ranks."""
        given = [argument(call, word) for word in ("reduction", "size_average", "reduce")]
        kinds = {code(value).strip("\"'") for value in given if value is not None}
        if kinds - {"mean", "none", "batchmean", "True"} and not self.counted:
            self._note(call, NO_MEAN, f"{self.job}.backward(loss_sum, count=n) makes the mean over the whole batch")

    def _edited(self, call: cst.Call, *, counts: bool) -> None:
        full = self.script.full(call)
        if not counts and full.startswith(DIST) and full.removeprefix(DIST) not in ("get_rank", "get_world_size"):
            self._note(
                call,
                "ranks cannot meet in code of a loop body: a step may have to be repeated",
                f"{self.job}.add() before {self.job}.backward() sums numbers; else {self.job}.all_reduce() in one "
                f"of {self.job}.every()",
            )

    def _library(self, call: cst.Call, full: str, *, counts: bool) -> None:
        name = full.removeprefix("builtins.")
        if full.startswith("builtins."):
            if name in BUILTINS or (counts and name == "print"):
                return
            if name == "print":
                self._note(call, "prints also in a body that does not count", self._gate())
            elif not (name == "open" and counts):
                self._unknown(call, counts=counts)
        elif full.startswith(DIST):
            self._edited(call, counts=counts)
        elif RANDOM(full):
            self._random(call, counts=counts)
        elif not (is_pure(full) or (counts and self._between(full))):
            self._unknown(call, counts=counts)

    @staticmethod
    def _between(full: str) -> bool:
        """What code between loops may do: it runs once."""
        return (
            not WRITES(full)
            and full.partition(".")[0]
            in (
                "torch",
                "torchvision",
                "numpy",
                "os",
                "time",
                "logging",
                "json",
                "pathlib",
                "sklearn",
                "gc",
                "math",
                "tqdm",
            )
            and not full.startswith(("torch.optim.", "torch.load"))
        )

    def _random(self, call: cst.Call, *, counts: bool) -> None:
        if counts or self.bitwise or argument(call, "generator") is not None:
            return
        self._note(
            call,
            "each rank draws for its part of the batch: the numbers depend on how many ranks train",
            "draw in the data set, by sample; or leave it as it is with DDP",
        )

    def _method(self, call: cst.Call, func: cst.Attribute, *, counts: bool) -> None:
        name = func.attr.value
        if any(m in self.tracked for m in self.script.resolve(func.value)) and name != "step":
            return  # a body may change what is tracked
        if name in OF_TRACKED and not self._own(name) and not self._is_fresh(func.value):
            self._of_tracked(call, func, counts=counts)
        elif name in self._methods:
            self._enqueue(self._methods[name], counts=counts, own=self._is_fresh(func.value))
        elif name in RANDOM_METHODS and not self._is_fresh(func.value):
            self._random(call, counts=counts)
        elif name == "join" and isinstance(func.value, cst.SimpleString | cst.FormattedString):
            return
        elif name in CHANGES or (IN_PLACE.fullmatch(name) and name not in OF_MODULES):
            if not self._is_fresh(func.value):
                self._changed(call, func.value, counts=counts)
        elif name in VALUES or name in OF_MODULES or name in READS_TRACKED or name == "no_sync":
            return  # a rule takes no_sync() out
        elif (name == "manual_seed" and self.script.full(func.value) == "torch.Generator") or (
            isinstance(func.value, cst.Attribute | cst.Name) and self._resolved(call, counts=counts)
        ):
            return
        elif not (counts and name in REPORTS | {"save", "save_pretrained", "mkdir", "exists", "flush", "close"}):
            self._unknown(call, counts=counts)

    def _own(self, name: str) -> bool:
        return name in self._methods and name not in ("step", "zero_grad")

    def _of_tracked(self, call: cst.Call, func: cst.Attribute, *, counts: bool) -> None:
        made = self.script.resolve(func.value)
        if func.attr.value == "step" and any(code(a.value) in self.script.functions for a in call.args):
            self._note(
                call,
                "a step() with a closure runs the backward as often as it likes",
                f"a loop with {self.job}.backward() and one step()",
            )
        if any(m in self.tracked for m in made) or func.attr.value == "zero_grad":
            return
        if func.attr.value == "update" and self._is_fresh(func.value):
            return
        self._note(
            call,
            f"{code(func.value)} is not seen to be tracked: {code(func)}() acts also in a body that does not count",
            f"{self.job}.track({_word(code(func.value))}={code(func.value)}) before the loops",
        )

    def _called(self, call: cst.Call, *, counts: bool) -> None:
        """The call of an object."""
        if not self._resolved(call, counts=counts):
            self._unknown(call, counts=counts)

    def _resolved(self, call: cst.Call, *, counts: bool) -> bool:
        """Whether each thing that is called can be seen; the script's own are looked at."""
        if isinstance(call.func, cst.Attribute) and code(call.func.value) in ("self", "super()"):
            made = self.script.definitions(call.func)
            made = [r for m in made for r in self.script.resolve(m)]
        else:
            made = [r for of in self._objects(call.func) for r in self.script.resolve(of)]
        made = [self._unwrapped(m) for m in made]
        if isinstance(call.func, cst.Name) and call.func.value == "self":
            self._enqueue(self._methods.get("forward", ()), counts=counts)
            return True
        return (
            bool(made)
            and all(self._is_seen(m, counts=counts) for m in made if m is not call.func)
            and made != [call.func]
        )

    def _is_seen(self, made: cst.BaseExpression, *, counts: bool) -> bool:
        if isinstance(made, cst.Lambda):
            self._queue.append((made.body, counts, False))
            return True
        if isinstance(made, cst.Name) and made.value in self.script.functions:
            self._enqueue([self.script.functions[made.value]], counts=counts)
            return True
        if isinstance(made, cst.Name | cst.Attribute):
            return is_pure(self.script.full(made))
        if not isinstance(made, cst.Call):
            return False
        full, own = self.script.full(made), self.script.classes.get(code(made.func))
        if own is not None:
            names = ("forward", "__call__")
            self._enqueue(
                (f for n in names for f in self._methods.get(n, ()) if self.script.owner(f) is own), counts=counts
            )
            return True
        return full.startswith(MADE_OF_MODULES) or full in ("torch.compile", "functools.partial", "torch.jit.script")

    def _unknown(self, call: cst.Call, *, counts: bool) -> None:
        name = code(call.func).splitlines()[0][:60]
        if counts:
            self._note(
                call,
                f"what {name}() leaves behind is not known: a process that joins in a later epoch does not call it",
                f"call it after the loops, or {self._keep()}",
            )
        else:
            self._note(call, f"what {name}() does in a body that does not count is not known", self._gate())

    def _changed(self, node: cst.CSTNode, what: cst.BaseExpression, *, counts: bool) -> None:
        name = code(what).splitlines()[0][:60]
        if counts:
            self._note(
                node, f"{name} is kept from epoch to epoch, and a process that joins does not receive it", self._keep()
            )
        else:
            self._note(
                node,
                f"{name} changes also in a body that does not count, and a process that joins does not receive it",
                f"{self._gate()}, and {self._keep()}",
            )

    # -- stores ----
    def _store(self, target: cst.BaseExpression, *, counts: bool, adds: bool = False) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._store(element.value, counts=counts)
        elif isinstance(target, cst.StarredElement):
            self._store(target.value, counts=counts)
        elif isinstance(target, cst.Attribute | cst.Subscript) and target not in self.plan.edits:
            base = target.value
            mine = self._own_object and code(base).partition(".")[0] == "self"
            if not (mine or self._is_fresh(base) or self._of_optimizer(target) or (counts and self._trains(target))):
                self._changed(target, target if isinstance(target, cst.Attribute) else base, counts=counts)

    # -- notes ----
    def _gate(self) -> str:
        return f"put it under `if {self.job}.committed:`, behind {self.job}.backward()"

    def _keep(self) -> str:
        return f"keep it in {self.job}.variables() or in a tracked object"

    def _note(self, node: cst.CSTNode, why: str, way: str) -> None:
        self.plan.note(node, why, way)


def _word(text: str) -> str:
    last = text.rpartition(".")[2]
    return last if last.isidentifier() else "name"
