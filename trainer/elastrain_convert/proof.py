"""The proof behind exit 0, for scripts with a loop of their own: what is not known is a line for a person."""

from __future__ import annotations

import libcst as cst

from elastrain_convert.around import Around, reached
from elastrain_convert.body import Body
from elastrain_convert.carried import Carried, Parts
from elastrain_convert.data import Data, is_wrapper
from elastrain_convert.effects import NO_MEAN, REPORTS, Effects
from elastrain_convert.loops import LOADER, Loop, Loops, is_backward
from elastrain_convert.objects import assigned
from elastrain_convert.plan import Plan
from elastrain_convert.process import Process
from elastrain_convert.script import Script, argument, code
from elastrain_convert.state import State

DATA_SETS = (
    "torch.utils.data.",
    "torchvision.datasets.",
    "datasets.",
    "sklearn.datasets.",
    "builtins.list",
    "torchaudio.datasets.",
)


class Proof:
    """Looks at all that the rules have left as it is."""

    def __init__(  # noqa: PLR0917 - all that the rules have seen
        self,
        script: Script,
        plan: Plan,
        process: Process,
        loops: Loops,
        data: Data,
        state: State,
        rules: Body,
        *,
        bitwise: bool,
    ) -> None:
        self.script, self.plan, self.process, self.loops = script, plan, process, loops
        self.data, self.state, self.rules, self.bitwise = data, state, rules, bitwise
        self.job = script.job

    def apply(self) -> None:
        """All that is to be known."""
        for place, loop in enumerate(self.loops.found):
            self._bounds(loop, place)
            self._turns(loop)
            self._loader(loop)
        self._backwards()
        for loop in self.loops.found:
            self._decides(loop)
        self._effects()
        Around(self.script, self.plan, self.process, self.loops, self.rules).apply()

    # -- loops ----
    def _bounds(self, loop: Loop, place: int) -> None:
        plan, job, outer = self.plan, self.job, loop.outermost
        if place:
            plan.note(
                loop.node,
                "a second loop that trains: its steps begin where those of the first have ended",
                f"give it its own bound: {job}.steps(loader, steps={job}.step + …)",
            )
        around = next(
            (n for n in self.script.around(outer) if isinstance(n, cst.For | cst.While | cst.FunctionDef)), None
        )
        if isinstance(around, cst.For | cst.While):
            plan.note(outer, "this loop is in another one: its steps are counted from the first", self._of_epochs())
        scope = self.script.scope(outer)
        if isinstance(scope, cst.FunctionDef):
            sites = self.script.sites_of(scope)
            if len(sites) > 1 or any(isinstance(n, cst.For | cst.While) for s in sites for n in self.script.around(s)):
                plan.note(
                    outer, f"{scope.name.value}() is called several times, and trains each time", self._of_epochs()
                )
        inner = self.script.scope(loop.node)
        if loop.site is not None and isinstance(inner, cst.FunctionDef) and len(self.script.sites_of(inner)) > 1:
            plan.note(loop.node, f"{inner.name.value}() is called at several places", self._of_epochs())
        for node in {loop.node, outer}:
            if node.orelse is not None:
                plan.note(
                    node, "an else of a loop runs in each process that joins later", "put the code behind the loop"
                )
        made = self.loops._range(outer) if loop.epochs is not None else None
        if made is not None and (
            len(made.args) > 2 or (len(made.args) == 2 and code(made.args[0].value) not in ("0", "1"))
        ):
            plan.note(
                made,
                "the first epoch is not 0 or 1: the job counts its epochs from 0",
                f"{job}.epochs(loader, n), where n is the number of all epochs; the job resumes by itself",
            )

    def _backwards(self) -> None:
        """A backward in no loop that is understood: a half conversion is none."""
        bodies = [loop.node for loop in self.loops.found]
        called = reached(self.script, self.loops, [loop.node.body for loop in self.loops.found])
        for call in self.script.calls:
            if not (isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward"):
                continue
            inside = any(self.script.within(call, body) for body in bodies)
            if call not in self.plan.edits or not (inside or any(n in called for n in self.script.around(call))):
                self.plan.refuse(
                    call,
                    "this backward() is in no loop over batches that is understood",
                    "one loop over one DataLoader for each training",
                )

    def _decides(self, loop: Loop) -> None:
        """What each rank must do in each step, and the sums that a loss must not be."""
        own = {n for n, _ in assigned(loop.node, self.plan.removed)}
        own -= {loop.counter.value} if loop.counter is not None else set()
        for node in self.script.walk(loop.node.body):
            if isinstance(node, cst.If | cst.While) and not self._is_gone(node):
                names = {n.value for n in self.script.walk(node.test) if isinstance(n, cst.Name)} & own
                if names:
                    self.plan.note(
                        node,
                        f"each rank decides by its own part: {', '.join(sorted(names))}",
                        f"decide by {self.job}.step or by tracked state, which are the same on all ranks",
                    )
            elif isinstance(node, cst.Try):
                self.plan.note(node, "a body that goes on behind an error, on one rank", "let the error end the body")
            elif isinstance(node, cst.Call) and is_backward(node):
                self._backward(node, loop)
            elif node in self.rules.gated:
                self._reported(node, own)

    def _reported(self, statement: cst.CSTNode, own: set[str]) -> None:
        """A report has no forward of its own; one of a script for one GPU is of the whole batch."""
        nodes = self.script.walk(statement)
        for call in nodes:
            if isinstance(call, cst.Call) and any(self._is_wrapped(m) for m in self.script.resolve(call.func)):
                self.plan.note(call, "a second forward of the wrapped model", "call the model itself, under no_grad()")
        sums = {code(n.target) for n in nodes if isinstance(n, cst.AugAssign)}
        edited = {n for e in nodes if e in self.plan.edits and isinstance(e, cst.Call) for n in self.script.walk(e)}
        parts = [n for n in nodes if isinstance(n, cst.Name) and n.value in own - sums and n not in edited]
        if parts and not self.process.distributed and not isinstance(self.script.parent(parts[0]), cst.AssignTarget):
            self.plan.note(
                statement,
                f"{parts[0].value} is of this rank's part of the batch, and was of the whole batch",
                f"{self.job}.add(name=number) before the backward and {self.job}.sums, or {self.job}.loss",
            )

    def _is_wrapped(self, made: cst.BaseExpression) -> bool:
        return made in self.state.wrapped or (isinstance(made, cst.Call) and is_wrapper(self.script.full(made)))

    def _backward(self, call: cst.Call, loop: Loop) -> None:
        around = [n for n in self.script.around(call) if self.script.within(n, loop.node)]
        if any(isinstance(n, cst.If) and not self._in_both(n) for n in around):
            self.plan.note(call, "a body without a backward, for which the other ranks wait", "a backward in each body")
        value = cst.ensure_type(call.func, cst.Attribute).value
        parts = [n for made in (value, *self.script.resolve(value)) for n in self.script.walk(made)]
        if call not in self.rules.counted and any(isinstance(n, cst.Call) and self._is_sum(n) for n in parts):
            self.plan.note(call, NO_MEAN, f"{self.job}.backward(loss_sum, count=n) makes the mean over the whole batch")

    def _is_gone(self, node: cst.CSTNode) -> bool:
        places = (node, *self.script.around(node))
        return any(n in self.plan.removed or n in self.rules.gated for n in places)

    def _in_both(self, node: cst.If) -> bool:
        return node.orelse is not None and all(
            any(is_backward(n) for n in self.script.walk(part)) for part in (node.body, node.orelse)
        )

    def _is_sum(self, call: cst.Call) -> bool:
        name = code(call.func).rpartition(".")[2]
        return name == "sum" and len(call.args) == int(self.script.full(call).startswith("torch."))

    def _of_epochs(self) -> str:
        job = self.job
        return f"one loop: for epoch in {job}.epochs(loader, n), with {job}.steps(loader, epochs=epoch + 1) in it"

    def _turns(self, loop: Loop) -> None:
        """What a turn of a loop leaves to the next one."""
        gated, kept = self.rules.gated, self.state.kept
        for turn in {loop.node, loop.outermost}:
            within = Carried(self.script, self.plan, gated=gated, kept=kept).of(turn)
            for name, place in within.items():
                self.plan.note(
                    place,
                    f"{name} is kept from one turn of the loop to the next: a process that joins does not receive it, "
                    "and a body that does not count changes it",
                    f"compute it from {self.job}.step, or keep it in {self.job}.variables() or a tracked object",
                )
        parts = Parts(self.script, self.plan, gated=gated)
        scope = self.script.scope(loop.node)
        for name in sorted(self._part_names(loop)):
            if (place := parts.decides(name, scope, outside=loop.node)) is not None:
                self.plan.note(
                    place,
                    f"{name} is of this rank's part of the steps that this process has computed, and decides something "
                    "here",
                    f"use {self.job}.loss or {self.job}.sums, which are of the global batch, in tracked state",
                )

    def _part_names(self, loop: Loop) -> set[str]:
        names = {n for n, _ in assigned(loop.node, self.plan.removed)} - self.state.kept
        if loop.counter is not None:
            names.discard(loop.counter.value)
        for statement in self.rules.gated:
            for node in self.script.walk(statement):
                if (
                    isinstance(node, cst.Expr)
                    and isinstance(node.value, cst.Call)
                    and isinstance(node.value.func, cst.Attribute)
                ):
                    of, last = code(node.value.func.value), node.value.func.attr.value
                    if last not in REPORTS and not self.script.full(node.value):
                        names.add(of)
                elif isinstance(node, cst.AugAssign):
                    names.add(code(node.target))
        return {n for n in names if n.removeprefix("self.").isidentifier()}

    def _loader(self, loop: Loop) -> None:
        made = [m for m in self.script.resolve(loop.loader) if isinstance(m, cst.Call)]
        if len(made) > 1:
            self.plan.note(
                loop.node, "this loop has one of several loaders", "one loader for the job: job.dataloader(…)"
            )
        for call in made:
            if self.script.full(call) != LOADER:
                self.plan.note(
                    call, "this loader has a class of the script's own", f"write {self.job}.dataloader(dataset, …)"
                )
                continue
            dataset, size = argument(call, "dataset", 0), argument(call, "batch_size", 1)
            if dataset is not None and not self._is_seen(dataset):
                self.plan.note(
                    call,
                    f"what {code(dataset).splitlines()[0]} is cannot be seen here: a stream is not shared by rank",
                    "a data set with a length and an index per sample; a stream is an elastrain.data.ElasticIterable",
                )
            if size is not None and code(size) == "None":
                self.plan.note(call, "a loader without batches", "give it a batch_size")
            shuffle, sampler = argument(call, "shuffle", 2), argument(call, "sampler", 3)
            if (shared := self.data._sampler(sampler)) is not None:
                self._shared(shared, dataset)
            if sampler is None and shuffle is not None and code(shuffle) not in ("True", "False"):
                self.plan.note(call, f"shuffle={code(shuffle)} is not seen to be True or False", "write which it is")
        name = code(loop.loader)
        for node in self.script.nodes:
            if (
                isinstance(node, cst.Attribute)
                and node.attr.value != "dataset"
                and code(node.value) == name
                and (self.script.statement(node) not in self.plan.removed and node.attr.value != "set_epoch")
                and any(m in made for m in self.script.resolve(node.value))
            ):
                self.plan.note(
                    node,
                    f"a loader of the job has no {node.attr.value} of one process",
                    "len(loader) and loader.dataset are of all ranks",
                )

    def _shared(self, sampler: cst.Call, dataset: cst.BaseExpression | None) -> None:
        for place, (word, kind) in enumerate({"num_replicas": "world", "rank": "rank"}.items()):
            value = argument(sampler, word, place + 1)
            if value is not None and self.process.kind(value) not in (kind, "local_rank"):
                self.plan.note(sampler, f"{word}={code(value)} is not seen to be that of the processes", "leave it out")
        of = argument(sampler, "dataset", 0)
        if of is not None and dataset is not None and code(of) != code(dataset):
            self.plan.note(sampler, "the sampler has another data set than the loader", "give the loader the sampler's")

    def _is_seen(self, dataset: cst.BaseExpression) -> bool:
        for made in self.script.resolve(dataset):
            of = made
            while isinstance(of, cst.Subscript):
                of = next(iter(self.script.resolve(of.value)), of.value)
            if isinstance(of, cst.List | cst.ListComp | cst.Tuple):
                continue
            own = self.script.classes.get(code(of.func)) if isinstance(of, cst.Call) else None
            streams = own is not None and self.script.inherits(own, lambda full: "Iterable" in full)
            if own is not None and not streams:
                continue
            full = self.script.full(of) if isinstance(of, cst.Call) else ""
            if not full.startswith(DATA_SETS) or "streaming" in code(of):
                return False
        return True

    # -- code ----
    def _effects(self) -> None:
        bodies = [loop.node for loop in self.loops.found]
        for loop in self.loops.found:
            effects = Effects(
                self.script,
                self.plan,
                gated=self.rules.gated,
                tracked=self.state.calls,
                bitwise=self.bitwise,
                counted=bool(self.rules.counted),
            )
            effects.body(loop.node.body, loop.node)
            effects.passed()
            if loop.epochs is not None:
                effects.between(loop.epochs.body, loop.epochs, without=bodies)
