"""Scripts whose loop is a framework's: its elastic form takes the place of its Trainer."""

from __future__ import annotations

import libcst as cst

from elastrain_convert.plan import Plan, expression, keyword
from elastrain_convert.script import Script, argument, code, matcher

TRAINERS = {"transformers.Trainer": "ElasticTrainer", "transformers.trainer.Trainer": "ElasticTrainer"}
ARGUMENTS = {"transformers.TrainingArguments": "ElasticTrainingArguments"}
of_trl = matcher(r"trl\.(?P<name>\w+)(Trainer|Config)")
is_lightning = matcher(r"(lightning|pytorch_lightning)(\.pytorch)?\.Trainer")
LIGHTNING_LOADERS = ("train_dataloader",)


class Frameworks:
    """The rules for Hugging Face's Trainer, TRL, Lightning's Trainer and accelerate."""

    def __init__(self, script: Script, plan: Plan, *, processes: int | None) -> None:
        self.script, self.plan, self.processes = script, plan, processes
        self.imports: list[str] = []

    def applies(self) -> bool:
        """Convert the calls of a framework, if there are any."""
        for call in self.script.calls:
            full = self.script.full(call)
            if full in TRAINERS:
                self._trainer(call, TRAINERS[full])
            elif full in ARGUMENTS:
                self._arguments(call, ARGUMENTS[full])
            elif of_trl(full):
                self._trl(call, full.rpartition(".")[2])
            elif is_lightning(full):
                self._lightning(call)
            elif full in ("accelerate.Accelerator", "accelerate.accelerator.Accelerator"):
                self._accelerator(call)
        self.imports = sorted(set(self.imports), key=lambda line: (line.startswith(("@", "class")), line))
        return bool(self.plan.edits)

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
        per_device = argument(call, "per_device_train_batch_size")
        accumulated = argument(call, "gradient_accumulation_steps")
        parts = [
            f"({code(p)})" if isinstance(p, cst.BinaryOperation) else code(p)
            for p in (per_device if per_device is not None else cst.Integer("8"), accumulated) if p is not None
        ]  # fmt: skip
        parts += [str(self.processes)] if self.processes else []
        total = " * ".join(parts)
        if not self.processes:
            self.plan.note(
                call, f"global_batch_size={total} is of one process; it is the batch over all of them",
                "multiply it by the number of processes that the script was written for, or give --processes N",
            )  # fmt: skip

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
        if size is None:
            self.plan.note(
                call, "the batch of a process cannot be seen in this file",
                "give ElasticTrainerStrategy(job, global_batch_size=…) the batch over all ranks",
            )  # fmt: skip
            return
        self._import("lightning_trainer", "ElasticTrainerStrategy")
        total = size
        if self.processes:
            total = f"{self.processes} * {size}"
        else:
            self.plan.note(
                call, f"global_batch_size={size} is of one process; it is the batch over all of them",
                "multiply it by the number of processes that the script was written for, or give --processes N",
            )  # fmt: skip
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
            init = next(
                (s for s in owner.body.body if isinstance(s, cst.FunctionDef) and s.name.value == "__init__"), None
            ) if owner is not None else None  # fmt: skip
            if owner is None or init is None or not made:
                return []
            names = self.script.parameters(init)
            sites = self.script.sites[owner.name.value]
            return [
                v for site in sites for m in made if m.value in names
                and (v := argument(site, m.value, names.index(m.value))) is not None
            ]  # fmt: skip
        return [size]

    # -- accelerate --------------------------------------------------------------------------------------------------
    def _accelerator(self, call: cst.Call) -> None:
        self._import("accelerate", "ElasticAccelerator")

        def made(updated: cst.Call) -> cst.Call:
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if updated.args else cst.MaybeSentinel.DEFAULT
            job = cst.Arg(cst.Name(self.script.job), comma=comma)
            return updated.with_changes(func=cst.Name("ElasticAccelerator"), args=[job, *updated.args])

        self.plan.edit(call, made, "the accelerator of an elastic job")
