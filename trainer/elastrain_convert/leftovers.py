"""Shapes that no rule has taken: they are named, never guessed."""

from __future__ import annotations

import libcst as cst

from elastrain_convert.loops import Loops, is_backward
from elastrain_convert.plan import Plan
from elastrain_convert.process import DIST, Process
from elastrain_convert.script import Script, code, matcher

WAYS = {
    "all_gather_object": "all_gather_object() between loops",
    "all_gather": "all_gather_object() between loops",
    "broadcast": "track() what must be the same on all ranks",
    "broadcast_object_list": "track() what must be the same on all ranks",
    "reduce": "all_reduce() between loops",
}

RANDOM = matcher(
    r"(torch|numpy\.random|random)\.(rand|randn|randint|rand_like|randn_like|normal|uniform|bernoulli|multinomial|random|choice|beta)"
)


class Leftovers:
    """Notes for what the plan leaves as it is."""

    def __init__(self, script: Script, plan: Plan, process: Process, loops: Loops) -> None:
        self.script, self.plan, self.process, self.loops = script, plan, process, loops

    def apply(self) -> None:
        """All rules of this module, after the others."""
        gone = {n for s in self.plan.removed for n in self.script.walk(s)}
        for call in self.script.calls:
            full = self.script.full(call)
            if (
                full.startswith(DIST)
                and call not in gone
                and call not in self.plan.edits
                and not self.process.handled(call)
                and not self._noted(call)
            ):
                way = WAYS.get(full.removeprefix(DIST), "all_reduce() and all_gather_object() between loops")
                self.plan.note(call, f"{code(call.func)}() has no process group", f"{self.script.job}.{way}")
        self._alone()
        self._draws()
        self._iterated()
        self._resumes()
        if not self.loops.found:
            self._no_loop()

    def _noted(self, node: cst.CSTNode) -> bool:
        return any(note.line == self.script.line(node) for note in self.plan.notes)

    def _alone(self) -> None:
        """``if rank == 0:`` before the training loop: rank 0 is every process there."""
        for node in self.script.nodes:
            if not isinstance(node, cst.If) or node in self.plan.removed:
                continue
            if not self.process.is_of_rank(node.test) or all("print" in code(s) for s in node.body.body):
                continue
            scope = self.script.scope(node)
            later = [o.outermost for o in self.loops.found if self.script.scope(o.outermost) is scope]
            if later and self.script.line(node) < self.script.line(later[0]):
                self.plan.note(
                    node, f"{self.script.job}.rank is 0 in every process before its first step",
                    "do it before the job, or in a way that several processes may do at the same time",
                )  # fmt: skip

    def _draws(self) -> None:
        """Random numbers in the body itself: as many as this rank's part has samples."""
        for loop in self.loops.found:
            for node in self.script.walk(loop.node.body):
                if isinstance(node, cst.Call) and RANDOM(self.script.full(node)) and not any(
                    a.keyword is not None and a.keyword.value == "generator" for a in node.args
                ):  # fmt: skip
                    self.plan.note(
                        node, "each rank draws for its part of the batch: the numbers depend on how many ranks train",
                        "draw in the data set, by sample; or leave it as it is with DDP",
                    )  # fmt: skip

    def _iterated(self) -> None:
        """``next(iter(loader))`` of a loader that trains: which part is this rank's is known in a step only."""
        trains = [made for loop in self.loops.found for made in self.script.resolve(loop.loader)]
        for call in self.script.calls:
            if self.script.full(call) == "builtins.iter" and call.args:
                made = self.script.resolve(call.args[0].value)
                if any(a is b for a in made for b in trains):
                    self.plan.note(
                        call, "a loader of the job has no batches outside of a step",
                        "take a sample of the data set: dataset[0]",
                    )  # fmt: skip

    def _resumes(self) -> None:
        """State that the script loads itself, before its loops."""
        first = min((self.script.line(loop.outermost) for loop in self.loops.found), default=0)
        for call in self.script.calls:
            if self.script.full(call) == "torch.load" and self.script.line(call) < first:
                self.plan.note(
                    call, "the job resumes by itself, from spec.checkpoint",
                    "leave the script's own resume out, and what it saves for that; pretrained weights may stay",
                )  # fmt: skip

    def _elsewhere(self) -> None:
        """The line that shows best that the script trains, with a loop that cannot be seen."""
        of_training = matcher(
            r".*(DistributedDataParallel|DataParallel|DistributedSampler)|torch\.optim\.\w+|torch\.utils\.data\.DataLoader"
        )
        calls = self.script.calls
        seen = [c for c in calls if of_training(self.script.full(c))]
        seen += [c for c in calls if isinstance(c.func, cst.Attribute) and c.func.attr.value in ("fit", "train")]
        if seen:
            self.plan.note(
                seen[0], "this file prepares a training, and no loop with a backward() is seen in it",
                "convert the file that has the loop, or bring the loop into this one",
            )  # fmt: skip
        else:
            self.plan.note(
                self.script.module,
                "no loop, Trainer or accelerator that trains is seen in this file",
                "convert the file that trains",
            )

    def _no_loop(self) -> None:
        """Say which loop was not understood."""
        backward = next((n for n in self.script.nodes if is_backward(n)), None)
        if backward is None:
            self._elsewhere()
            return
        loop = next((n for n in self.script.around(backward) if isinstance(n, cst.For | cst.While)), backward)
        job = self.script.job
        self.plan.note(
            loop, "this loop trains, and goes over no torch.utils.data.DataLoader that can be seen in this file",
            f"make the data a data set: for x in {job}.steps({job}.dataloader(dataset, global_batch_size=…), steps=…)",
        )  # fmt: skip
