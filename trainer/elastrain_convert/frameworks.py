"""Scripts whose loop is a framework's: its elastic form takes the place of its Trainer."""

from __future__ import annotations

import libcst as cst

from elastrain_convert.accelerated import Accelerated
from elastrain_convert.loops import LOADER
from elastrain_convert.plan import Plan, expression, keyword
from elastrain_convert.script import Script, argument, code, matcher
from elastrain_convert.tables import ARGUMENTS as OPTIONS
from elastrain_convert.tables import OF_TRL, is_framework

TRAINERS = {"transformers.Trainer": "ElasticTrainer", "transformers.trainer.Trainer": "ElasticTrainer"}
ARGUMENTS = {"transformers.TrainingArguments": "ElasticTrainingArguments"}
of_trl = matcher(rf"trl\.({'|'.join(OF_TRL)})")
ACCELERATORS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")
is_lightning = matcher(r"(lightning|pytorch_lightning)(\.pytorch)?\.Trainer")
LIGHTNING_LOADERS = ("train_dataloader",)


class Frameworks:
    """The rules for Hugging Face's Trainer, TRL, Lightning's Trainer and accelerate."""

    def __init__(self, script: Script, plan: Plan, *, processes: int | None) -> None:
        self.script, self.plan, self.processes = script, plan, processes
        self.imports: list[str] = []
        self.served = Accelerated(script, plan)

    def applies(self) -> bool:
        """Convert the calls of a framework, if there are any."""
        if not any(
            isinstance(n, cst.Name | cst.Attribute) and is_framework(self.script.full(n)) for n in self.script.nodes
        ):
            return False
        found: dict[cst.Call, str] = {}
        for call in self.script.calls:
            full = self.script.full(call)
            if full in TRAINERS or full in ARGUMENTS or of_trl(full) or is_lightning(full) or full in ACCELERATORS:
                found[call] = full
        for call, full in found.items():
            if full in ARGUMENTS:
                self._arguments(call, ARGUMENTS[full])
            elif of_trl(full) and full.endswith("Config"):
                self._trl(call, full.rpartition(".")[2])
        configs = [c for c, full in found.items() if full in ARGUMENTS or full.endswith("Config")]
        trainers = [c for c in found if c not in configs]
        if len(trainers) != 1:
            self.plan.refuse(
                trainers[1] if trainers else self._first(),
                f"{len(trainers)} Trainers or Accelerators that are known",
                "one script for each training, with one of those that the docs (Hugging Face, Lightning) name",
            )
        for call in trainers:
            self._loop_of(call, found[call], configs)
        self.served.apply(set(found))
        self.imports = sorted(set(self.imports), key=lambda line: (line.startswith(("@", "class")), line))
        return True

    def _first(self) -> cst.CSTNode:
        return next(
            n
            for n in self.script.nodes
            if isinstance(n, cst.Name | cst.Attribute) and is_framework(self.script.full(n))
        )

    def _loop_of(self, call: cst.Call, full: str, configs: list[cst.Call]) -> None:
        name = full.rpartition(".")[2]
        if full in ACCELERATORS:
            self._accelerator(call)
            return
        for other in self.script.calls:
            if isinstance(other.func, cst.Attribute) and other.func.attr.value == "backward":
                self.plan.refuse(other, "a loop of the script's own beside a Trainer", "one script for each training")
        if is_lightning(full):
            self._lightning(call)
            self.served.lightning(call)
            return
        if of_trl(full):
            self._trl(call, name)
        else:
            self._trainer(call, TRAINERS[full])
        self.served.trainer(call, name, list(configs))

    # -- Hugging Face ------------------------------------------------------------------------------------------------
    def _import(self, module: str, name: str) -> None:
        for i, line in enumerate(self.imports):
            if line.startswith(f"from elastrain.integrations.{module} import "):
                names = sorted({*line.partition(" import ")[2].split(", "), name})
                self.imports[i] = f"from elastrain.integrations.{module} import {', '.join(names)}"
                return
        self.imports.append(f"from elastrain.integrations.{module} import {name}")

    def _trainer(self, call: cst.Call, name: str) -> None:
        self._import("huggingface", name)
        self._with_job(call, name)

    def _with_job(self, call: cst.Call, name: str) -> None:
        job = keyword("job", self.script.job)

        def made(updated: cst.Call) -> cst.Call:
            args = list(updated.args)
            plain = sum(a.keyword is None and not a.star for a in args)
            comma = args[-1].comma if args and plain < len(args) else cst.MaybeSentinel.DEFAULT
            if len(args) > 1 and plain < len(args):
                comma = args[0].comma
            return updated.with_changes(
                func=cst.Name(name), args=[*args[:plain], job.with_changes(comma=comma), *args[plain:]]
            )

        self.plan.edit(call, made, "the Trainer of an elastic job")

    def _arguments(self, call: cst.Call, name: str) -> None:
        self._import("huggingface", name)
        self.served.options(call, OPTIONS, also=OF_TRL.get(code(call.func).rpartition(".")[2], frozenset()))
        per_device = argument(call, "per_device_train_batch_size")
        accumulated = argument(call, "gradient_accumulation_steps")
        parts = [
            f"({code(p)})" if isinstance(p, cst.BinaryOperation) else code(p)
            for p in (per_device if per_device is not None else cst.Integer("8"), accumulated)
            if p is not None
        ]
        parts += [str(self.processes)] if self.processes else []
        total = " * ".join(parts)
        if not self.processes:
            self.plan.note(
                call,
                f"global_batch_size={total} is of one process; it is the batch over all of them",
                "multiply it by the number of processes that the script was written for, or give --processes N",
            )

        def made(updated: cst.Call) -> cst.Call:
            size = keyword("global_batch_size", total)
            kept: list[cst.Arg] = []
            for arg in updated.args:
                word = arg.keyword.value if arg.keyword is not None else ""
                if word == "gradient_accumulation_steps":
                    continue
                kept.append(arg)
                if word == "per_device_train_batch_size":
                    kept.append(size.with_changes(comma=arg.comma))
            if per_device is None:
                kept.append(size)
            return updated.with_changes(func=cst.Name(name), args=kept)

        self.plan.edit(call, made, "the batch over all ranks; a rank accumulates as often as it needs")

    def _trl(self, call: cst.Call, name: str) -> None:
        own = f"Elastic{name}"
        if name.endswith("Config"):
            self._import("huggingface", "ElasticTrainingArguments")
            self.imports.append("from dataclasses import dataclass")
            bases = f"{name}, ElasticTrainingArguments"
            self._class(f"@dataclass\nclass {own}({bases}):  # in this order: the defaults are TRL's\n    pass\n")
            self._arguments(call, "ElasticTrainingArguments")
            self.plan.edit(call, lambda u: u.with_changes(func=cst.Name(own)))
        else:
            self._import("huggingface", "ElasticTrainer")
            self._class(f"class {own}(ElasticTrainer, {name}):\n    pass\n")
            self._with_job(call, own)

    def _class(self, text: str) -> None:
        if text not in self.imports:
            self.imports.append(text)

    # -- Lightning ---------------------------------------------------------------------------------------------------
    def _lightning(self, call: cst.Call) -> None:
        size = self._lightning_batch()
        if size in (None, "None"):
            self.plan.refuse(
                call,
                "the batch of a process cannot be seen in this file",
                "give ElasticTrainerStrategy(job, global_batch_size=…) the batch over all ranks",
            )
            return
        self._import("lightning_trainer", "ElasticTrainerStrategy")
        total = size
        if self.processes:
            total = f"{self.processes} * {size}"
        else:
            self.plan.note(
                call,
                f"global_batch_size={size} is of one process; it is the batch over all of them",
                "multiply it by the number of processes that the script was written for, or give --processes N",
            )
        seed = next(
            (code(c.args[0].value) for c in self.script.calls if code(c.func).endswith("seed_everything") and c.args),
            "",
        )
        made_of = f"{self.script.job}, global_batch_size={total}" + (f", seed={seed}" if seed else "")
        strategy = f"ElasticTrainerStrategy({made_of})"

        values = {"strategy": strategy, "devices": "1"}

        def made(updated: cst.Call) -> cst.Call:
            kept = []
            words = [a.keyword.value for a in updated.args if a.keyword is not None]
            for arg in updated.args:
                word = arg.keyword.value if arg.keyword is not None else ""
                if word not in ("num_nodes", "use_distributed_sampler"):
                    kept.append(arg.with_changes(value=expression(values[word])) if word in values else arg)
            comma = updated.args[0].comma if len(updated.args) > 1 else cst.MaybeSentinel.DEFAULT
            added = [keyword(word, value) for word, value in values.items() if word not in words]
            return updated.with_changes(args=[*(a.with_changes(comma=comma) for a in added), *kept])

        self.plan.edit(call, made, "the job is the strategy; each rank has one device")

    def _lightning_batch(self) -> str | None:
        """The batch size that the loader of the training set is given, as the script's main function can name it."""
        for name in LIGHTNING_LOADERS:
            function = self.script.functions.get(name)
            for call in self.script.calls:
                if self.script.full(call) != "torch.utils.data.DataLoader":
                    continue
                inside = function is not None and self.script.within(call, function)
                size = argument(call, "batch_size", 1)
                if size is None or (function is not None and not inside):
                    continue
                values = [code(v) for v in self._followed(size)]
                return values[0] if len(set(values)) == 1 else None
        return None

    def _followed(self, size: cst.BaseExpression) -> list[cst.BaseExpression]:
        """``self.batch_size`` to what the class was made with."""
        if isinstance(size, cst.Attribute) and code(size.value) == "self":
            owner = next((n for n in self.script.around(size) if isinstance(n, cst.ClassDef)), None)
            made = [d for d in self.script.definitions(size) if isinstance(d, cst.Name)]
            init = (
                next(
                    (s for s in owner.body.body if isinstance(s, cst.FunctionDef) and s.name.value == "__init__"), None
                )
                if owner is not None
                else None
            )
            if owner is None or init is None or not made:
                return []
            names = self.script.parameters(init)
            sites = self.script.sites[owner.name.value]
            return [
                v
                for site in sites
                for m in made
                if m.value in names and (v := argument(site, m.value, names.index(m.value))) is not None
            ]
        return [size]

    # -- accelerate --------------------------------------------------------------------------------------------------
    def _accelerator(self, call: cst.Call) -> None:
        self._import("accelerate", "ElasticAccelerator")

        def made(updated: cst.Call) -> cst.Call:
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if updated.args else cst.MaybeSentinel.DEFAULT
            job = cst.Arg(cst.Name(self.script.job), comma=comma)
            return updated.with_changes(func=cst.Name("ElasticAccelerator"), args=[job, *updated.args])

        self.plan.edit(call, made, "the accelerator of an elastic job")
        self.served.accelerator(call, processes=self.processes)
        self._batch_of_all()

    def _batch_of_all(self) -> None:
        """The batch of the loader that trains: accelerate takes that of one process, and the job that of all."""
        loops = [n for n in self.script.fors if self.served.trains(n)]
        made = [
            m
            for n in loops
            for m in self.script.resolve(_bare(n.iter))
            if isinstance(m, cst.Call) and self.script.full(m) == LOADER
        ]
        if len(set(made)) != 1:
            self.plan.refuse(
                loops[-1] if loops else self._first(),
                "which torch DataLoader this loop goes over is not seen in this file",
                "make the loader in this file, and give it the batch over all ranks",
            )
            return
        size = argument(made[0], "batch_size", 1)
        if size is None or not self.processes:
            self.plan.note(
                made[0],
                f"batch_size={code(size) if size is not None else 1} is of one process; the job takes that of all",
                "multiply it by the number of processes that the script was written for, or give --processes N",
            )
        elif self.processes > 1:
            text = (
                f"{self.processes} * ({code(size)})"
                if isinstance(size, cst.BinaryOperation)
                else f"{self.processes} * {code(size)}"
            )
            self.plan.edit(size, lambda _: expression(text), "the batch over all ranks")


def _bare(iterable: cst.BaseExpression) -> cst.BaseExpression:
    """What a loop goes over, without enumerations and bars."""
    while (
        isinstance(iterable, cst.Call)
        and iterable.args
        and code(iterable.func).rpartition(".")[2] in ("enumerate", "tqdm")
    ):
        iterable = iterable.args[0].value
    return iterable
