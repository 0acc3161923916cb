"""Loaders, their samplers, and the models that are wrapped."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from elastrain_convert.loops import LOADER, Loops
from elastrain_convert.plan import Plan, expression
from elastrain_convert.process import Process
from elastrain_convert.script import Script, argument, code, matcher

SAMPLER = "torch.utils.data.distributed.DistributedSampler"
is_sampler = matcher(r"torch\.utils\.data\.(distributed\.)?DistributedSampler")
is_wrapper = matcher(r"torch\.nn\.(parallel\.|parallel\.distributed\.)?(DistributedDataParallel|DataParallel)")
POSITIONS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
)
KEPT = (
    "num_workers", "collate_fn", "pin_memory", "prefetch_factor", "timeout", "worker_init_fn",
    "multiprocessing_context", "drop_last",
)  # fmt: skip
OF_WRAPPER = ("find_unused_parameters", "static_graph", "broadcast_buffers", "bucket_cap_mb", "gradient_as_bucket_view")
WIDTH = 110
"""Columns of a line that is written; longer calls get a line for each argument."""


class Data:
    """The rules for loaders, samplers and wrapped models."""

    def __init__(
        self, script: Script, plan: Plan, process: Process, loops: Loops, *, micro_batches: int | None
    ) -> None:
        self.script, self.plan, self.process, self.loops = script, plan, process, loops
        self.micro_batches = micro_batches
        self.whole: set[cst.CSTNode] = set()
        self._divided: dict[cst.CSTNode, bool] = {}

    def apply(self) -> None:
        """All rules of this module."""
        training = [r for loop in self.loops.found for r in self.script.resolve(loop.loader)]
        for call in self.script.calls:
            if self.script.full(call) == LOADER:
                if any(call is other for other in training):
                    self._training(call)
                else:
                    self._evaluation(call)
        self.sizes()
        self._samplers()
        self._wrapped()

    # -- loaders -----------------------------------------------------------------------------------------------------
    def _training(self, call: cst.Call) -> None:
        script, plan, job = self.script, self.plan, self.script.job
        options = {name: argument(call, name, i) for i, name in enumerate(POSITIONS)}
        options |= {a.keyword.value: a.value for a in call.args if a.keyword is not None}
        if options["dataset"] is None or options["batch_sampler"] is not None or any(a.star for a in call.args):
            plan.note(
                call,
                "this loader has a form that is not converted",
                f"write {job}.dataloader(dataset, global_batch_size=…)",
            )
            return
        if script.is_a(options["dataset"], lambda full: full == "torch.utils.data.IterableDataset"):
            plan.note(
                call, "a stream that shares its samples by rank",
                "make it an elastrain.data.ElasticIterable, which names its shards: the job cuts each batch",
            )  # fmt: skip
        sampler = self._sampler(options["sampler"])
        size = options["batch_size"] or cst.Integer("1")
        factor = self._factor(call, size)
        micro = f", micro_batches={self.micro_batches}" if self.micro_batches else ""
        seed = self._seed(call, sampler)
        shuffled = self._shuffled(options, sampler)
        own_sampler = None if sampler or options["sampler"] is None else options["sampler"]
        if own_sampler is not None:
            plan.note(
                call, f"{code(own_sampler)} decides which rank has which samples, or cannot be seen",
                "a sampler gives the order of the whole data set (docs, Data); leave it out for a shuffled one",
            )  # fmt: skip
        column = script.column(script.statement(call))

        def made(updated: cst.Call) -> cst.BaseExpression:
            now = {n: v for n, v in ((n, argument(updated, n, i)) for i, n in enumerate(POSITIONS)) if v is not None}
            now |= {a.keyword.value: a.value for a in updated.args if a.keyword is not None}
            parts = [
                code(now["dataset"]),
                f"global_batch_size={factor}{_factored(now.get('batch_size', size), factor)}{micro}",
            ]
            parts += [f"seed={seed}"] if seed else []
            parts += shuffled
            parts += [f"sampler={code(now['sampler'])}"] if own_sampler is not None else []
            parts += [f"{name}={code(now[name])}" for name in KEPT if name in now]
            return _call(f"{job}.dataloader", parts, column)

        dropped = [
            n
            for n in ("persistent_workers", "generator", "pin_memory_device", "in_order")
            if options.get(n) is not None
        ]
        also = f"; without {', '.join(dropped)}: the job keeps workers and draws by the step" if dropped else ""
        plan.edit(call, made, f"one loader of the whole job{also}")

    def _factor(self, call: cst.Call, size: cst.BaseExpression) -> str:
        """What the size of a process is multiplied by."""
        if self._undivided(size) or not self.process.distributed:
            return ""
        if self.process.processes:
            return f"{self.process.processes} * "
        self.plan.note(
            call, f"batch_size={code(size)} is of one process; elastrain takes the batch over all of them",
            "multiply it by the number of processes that the script was written for, or give --processes N",
        )  # fmt: skip
        return ""

    def _undivided(self, size: cst.BaseExpression) -> bool:
        """Take ``// world_size`` out of an expression, or of what its names were assigned."""
        found = False
        for part in self._parts(size):
            if part in self._divided:
                found = found or self._divided[part]
                continue
            self._divided[part] = False
            for node in self.script.walk(part):
                if (
                    isinstance(node, cst.BinaryOperation)
                    and isinstance(node.operator, cst.FloorDivide | cst.Divide)
                    and self.process.kind(node.right) == "world"
                ):
                    self.process.claimed(node.right)
                    self.plan.edit(node, lambda u: u.left, "the batch is over all ranks")
                    self._divided[part] = found = True
        return found

    def _parts(self, size: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        if isinstance(size, cst.Name) and (definitions := self.script.definitions(size)):
            for definition in definitions:
                yield from self._parts(definition)
        else:
            yield size

    def _sampler(self, sampler: cst.BaseExpression | None) -> cst.Call | None:
        if sampler is None:
            return None
        for made in self.script.resolve(sampler):
            if isinstance(made, cst.Call) and is_sampler(self.script.full(made)):
                return made
        return None

    def _seed(self, call: cst.Call, sampler: cst.Call | None) -> str:
        """That of the sampler, or of ``torch.manual_seed`` in the same function."""
        if sampler is not None:
            value = argument(sampler, "seed")
            return code(value) if value is not None else ""
        for other in self.script.calls:
            if (
                self.script.full(other) == "torch.manual_seed"
                and other.args
                and self.script.scope(other) is self.script.scope(call)
            ):
                value = other.args[0].value
                return code(value) if isinstance(value, cst.Integer | cst.Name | cst.Attribute) else ""
        return ""

    def _shuffled(self, options: dict[str, cst.BaseExpression | None], sampler: cst.Call | None) -> list[str]:
        value = argument(sampler, "shuffle") if sampler is not None else options["shuffle"]
        if options["sampler"] is not None and sampler is None:
            return []
        plain = sampler is None and value is None
        return ["shuffle=False"] if plain or (value is not None and code(value) == "False") else []

    def _evaluation(self, call: cst.Call) -> None:
        """Each rank evaluates all of it: the same values everywhere, and no sum over the ranks."""
        sampler, size = argument(call, "sampler", 3), argument(call, "batch_size", 1)
        if size is not None:
            self._undivided(size)
        if self._sampler(sampler) is not None:
            self.plan.edit(call, _without_sampler, "each rank evaluates everything; job.evaluate() shares the batches")
            self.whole.add(call)

    def sizes(self) -> None:
        """``len(loader.sampler) * world_size`` where each rank has the whole loader: its samples."""
        for node in self.script.nodes:
            if not (isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply)):
                continue
            if self.process.kind(node.right) != "world" or not isinstance(node.left, cst.Call) or not node.left.args:
                continue
            of = node.left.args[0].value
            if isinstance(of, cst.Attribute) and of.attr.value == "sampler" and any(
                made in self.whole for made in self.script.resolve(of.value)
            ):  # fmt: skip
                self.process.claimed(node.right)
                self.plan.edit(node, lambda u: u.left, "each rank has all samples")

    # -- samplers ----------------------------------------------------------------------------------------------------
    def _samplers(self) -> None:
        for node in self.script.nodes:
            if isinstance(node, cst.Assign) and any(
                isinstance(n, cst.Call) and is_sampler(self.script.full(n)) and not self._in_loader(n)
                for n in self.script.walk(node.value)
            ):
                self.plan.remove(node, "the loader shares the samples")
            elif (
                isinstance(node, cst.Call)
                and isinstance(node.func, cst.Attribute)
                and node.func.attr.value == "set_epoch"
            ):
                self.plan.remove(node, "the order follows from seed and step")

    def _in_loader(self, sampler: cst.Call) -> bool:
        return any(isinstance(n, cst.Call) and self.script.full(n) == LOADER for n in self.script.around(sampler))

    # -- models ------------------------------------------------------------------------------------------------------
    def _wrapped(self) -> None:
        job, seen = self.script.job, set[str]()
        for call in self.script.calls:
            if not is_wrapper(self.script.full(call)) or not call.args:
                continue
            module = code(call.args[0].value)
            if module in seen and any(isinstance(n, cst.For) for n in self.script.around(call)):
                self.plan.remove(call, "parameters may train later without a new wrapper")
                continue
            name = f', name="{self._target(call, module)}"' if seen else ""
            seen.add(module)
            for inner in set(self.script.walk(call)) - set(self.script.walk(call.args[0].value)):
                self.process.claimed(inner)

            def made(updated: cst.Call, name: str = name) -> cst.BaseExpression:
                kept = [
                    f", {code(a).rstrip(',')}"
                    for a in updated.args
                    if a.keyword is not None and a.keyword.value in OF_WRAPPER
                ]
                return expression(f"{job}.wrap({code(updated.args[0].value)}{''.join(kept)}{name})")

            self.plan.edit(call, made, "gradients become the mean over the global batch")
        self.count = len(seen)

    count = 0
    """Models that the script wraps itself."""

    def _target(self, call: cst.Call, module: str) -> str:
        parent = self.script.parent(call)
        text = code(parent.targets[0].target) if isinstance(parent, cst.Assign) else module
        return text.rpartition(".")[2]


def _factored(size: cst.BaseExpression, factor: str) -> str:
    return f"({code(size)})" if factor and isinstance(size, cst.BinaryOperation) else code(size)


def _without_sampler(updated: cst.Call) -> cst.Call:
    args = [a for a in updated.args if a.keyword is None or a.keyword.value != "sampler"]
    plain = [a for a in args if a.keyword is None]
    if len(plain) > 3:
        args = [a for a in args if a is not plain[3]]
    return updated.with_changes(args=[*args[:-1], args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _call(name: str, parts: list[str], column: int) -> cst.BaseExpression:
    """A call in one line, or with a line for each argument."""
    line = f"{name}({', '.join(parts)})"
    if column + len(line) + 15 <= WIDTH:
        return expression(line)
    return expression(f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + ")")  # its block adds the indent
