"""What a script does with an Accelerator, and in the loop of its own."""

from __future__ import annotations

import re

import libcst as cst

from elastrain_convert.carried import Carried, Parts
from elastrain_convert.effects import Effects
from elastrain_convert.objects import assigned
from elastrain_convert.script import code
from elastrain_convert.served import Served
from elastrain_convert.tables import CALLS_OF_ACCELERATOR, OF_ACCELERATOR


class Accelerated(Served):
    """Looks at the calls of the Accelerator, and at the loop."""

    def accelerator(self, call: cst.Call, *, processes: int | None) -> None:
        """An Accelerator, and the script's own loop with it."""
        self.options(call, OF_ACCELERATOR)
        self.uses(call, CALLS_OF_ACCELERATOR)
        loops = [n for n in self.script.fors if self.trains(n)]
        inner = [n for n in loops if not any(o is not n and self.script.within(o, n) for o in loops)]
        if len(inner) != 1 or any(isinstance(n, cst.While) for n in self.script.around(inner[0])):
            self.plan.refuse(
                call,
                "not one loop over batches with accelerator.backward() in this file",
                "one loop over epochs, one over batches",
            )
            return
        loop = inner[0]
        self._prepared(loop)
        self._numbers(loop)
        self._loop(loop, next((o for o in loops if o is not loop), None))
        if processes != 1:
            self._schedules()

    def trains(self, node: cst.For) -> bool:
        """Whether its body calls a backward."""
        return any(
            isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "backward"
            for n in self.script.walk(node.body)
        )

    def _loop(self, loop: cst.For, epochs: cst.For | None) -> None:
        script, plan, job = self.script, self.plan, self.script.job
        prepared = [
            r
            for c in script.sites["prepare"]
            for a in c.args
            for r in script.resolve(a.value)
            if isinstance(r, cst.Call)
        ]
        Effects(script, plan, tracked=prepared, served=self._of_accelerator).body(loop.body, loop)
        if epochs is not None:
            Effects(script, plan, served=self._of_accelerator).between(epochs.body, epochs, without=[loop])
        for turn in filter(None, (loop, epochs)):
            for name, place in Carried(script, plan).of(turn).items():
                plan.note(
                    place,
                    f"{name} is kept from one turn of the loop to the next: a process that joins does not receive it",
                    f"compute it from {job}.step, or keep it in {job}.variables() or a tracked object",
                )
        parts = Parts(script, plan, gated=())
        for name in sorted({n for n, _ in assigned(loop, ())}):
            if (found := parts.decides(name, script.scope(loop), outside=loop)) is not None:
                plan.note(
                    found,
                    f"{name} is of this rank's part of the batch, and decides something here",
                    f"use {job}.loss or {job}.sums",
                )
        for node in self.script.walk(loop):
            if isinstance(node, cst.Break | cst.Return | cst.Continue):
                plan.note(
                    node, "a rank that leaves its loop alone fails the job", f"{job}.stop() ends training on all ranks"
                )
            elif isinstance(node, cst.Call) and code(node.func).rpartition(".")[2] in (
                "gather",
                "reduce",
                "gather_for_metrics",
            ):
                plan.note(node, "ranks cannot meet in the loop body", f"{job}.add(), or {job}.loss")

    def _prepared(self, loop: cst.For) -> None:
        """What trains is prepared, and the loader that trains comes first."""
        script, plan = self.script, self.plan
        args = [a.value for c in script.sites["prepare"] for a in c.args]
        made = [r for a in args for r in script.resolve(a)]
        for value in args:
            if not any(isinstance(r, cst.Call) for r in script.resolve(value)):
                plan.note(value, f"what {code(value)} is cannot be seen in this file", "make it in this file")
        loaders = [m for m in made if isinstance(m, cst.Call) and script.full(m) == "torch.utils.data.DataLoader"]
        iterable = loop.iter
        while isinstance(iterable, cst.Call) and iterable.args:
            iterable = iterable.args[0].value
        trains = script.resolve(iterable)
        if not loaders or loaders[0] not in trains:
            plan.note(loop, "the loader of this loop is not the first that is prepared", "prepare it first")
        for node in script.walk(loop.body):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
                called = [m for m in script.resolve(node.func) if isinstance(m, cst.Call)]
                modules = [m for m in called if code(m.func) in script.classes or not script.full(m).endswith("Loss")]
                if any(m not in made for m in modules):
                    plan.note(node, f"{code(node.func)} is not seen to be prepared", "accelerator.prepare(…)")
            elif isinstance(node, cst.If) and "sync_gradients" not in code(node.test):
                acts = [n for n in script.walk(node) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)]
                if any(n.func.attr.value in ("step", "backward", "zero_grad") for n in acts):
                    plan.note(node, "an update under a condition of the script", "accelerator.accumulate(model)")

    def _of_accelerator(self, call: cst.Call) -> bool:
        return (
            isinstance(call.func, cst.Attribute)
            and code(call.func.value).rpartition(".")[2] == "accelerator"
            and (call.func.attr.value in CALLS_OF_ACCELERATOR)
        )

    def _schedules(self) -> None:
        """A prepared schedule steps once for each process in accelerate, and once for each step here."""
        for call in self.script.calls:
            if not (
                "lr_scheduler" in self.script.full(call)
                or re.fullmatch(r"get_\w*schedule\w*|get_scheduler", code(call.func))
            ):
                continue
            if "num_processes" not in code(call):
                self.plan.note(
                    call,
                    "accelerate steps a prepared schedule once for each process, and a job once for each step",
                    "count its steps in optimizer steps of the whole job (docs, accelerate), and compare the rates",
                )

    def _numbers(self, loop: cst.For) -> None:
        """Epochs that begin at another one, and numbers of processes."""
        script, plan = self.script, self.plan
        for outer in script.around(loop):
            made = outer.iter if isinstance(outer, cst.For) else None
            first = made.args[0].value if isinstance(made, cst.Call) and len(made.args) > 1 else None
            if made is not None and first is not None and script.full(made) == "builtins.range" and code(first) != "0":
                plan.note(outer, "the first epoch is not 0", "the job resumes by itself: range(epochs)")
        for node in script.nodes:
            if isinstance(node, cst.Attribute) and node.attr.value == "num_processes":
                calls = [n for n in script.around(node) if isinstance(n, cst.Call)]
                if not any("schedule" in code(n.func) or "lr_scheduler" in script.full(n) for n in calls):
                    plan.note(node, "num_processes is 1 in a job", "write the number that was meant")
