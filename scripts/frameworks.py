"""Writes ``docs/reference/frameworks.md``: what each name of a framework's classes does in an elastic job.

A name is served by the adapter if the adapter overrides it, refused if the adapter says so, and the framework's own
otherwise. So a name that a release of a framework adds changes the page: look at it, then ``--write``. ``--check`` only
compares, and exits with 1. To be run in the repository's root, with all frameworks installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import sys
import textwrap
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import accelerate
import lightning.fabric
import lightning.pytorch
import transformers
import trl
from lightning.fabric import strategies as of_fabric
from lightning.pytorch import callbacks
from lightning.pytorch import strategies as of_trainer

from elastrain.integrations import accelerate as with_accelerate
from elastrain.integrations.huggingface import adapter as huggingface
from elastrain.integrations.huggingface import loop as trainer_loop
from elastrain.integrations.lightning import fabric as with_fabric
from elastrain.integrations.lightning import loggers as lightning_loggers
from elastrain.integrations.lightning import options as lightning_options
from elastrain.integrations.lightning import progress as lightning_state
from elastrain.integrations.lightning import trainer as lightning_trainer
from elastrain.integrations.refusals import Refusal

PAGE = Path("docs/reference/frameworks.md")
FRAMEWORKS = ("transformers", "trl", "accelerate", "lightning")
HEAD = """<!-- Written by scripts/frameworks.py (`make reference`). Do not edit. -->

# Frameworks, name by name

What each name of a framework's classes does in an elastic job, from the adapters themselves. *Served*: the adapter
gives it its meaning in the job. *Refused*: an error names it and the way out, before the first step. All other names
are the framework's own code. [What that means for a script](../integrations.md).

Looked at with {versions}.
"""


def defined(cls: type, *, beside: type = object) -> set[str]:
    """Public and protected methods and properties of a framework's class, without those of ``beside``."""
    classes = [c for c in cls.__mro__ if c.__module__.partition(".")[0] in FRAMEWORKS and c not in beside.__mro__]
    members = [(name, value) for c in classes for name, value in vars(c).items()]
    kinds = property | staticmethod | classmethod
    return {name for name, value in members if "__" not in name and (callable(value) or isinstance(value, kinds))}


def fields(cls: Any, beside: Any = None) -> set[str]:
    others = {field.name for field in dataclasses.fields(beside)} if beside else set()
    return {field.name for field in dataclasses.fields(cls)} - others


def parameters(cls: type) -> set[str]:
    return set(inspect.signature(cls.__init__).parameters) - {"self", "args", "kwargs"}


def of(refusals: Iterable[Refusal]) -> dict[str, str]:
    return {refusal.option: refusal.instead for refusal in refusals}


def overridden(*adapters: type) -> set[str]:
    return {name for adapter in adapters for name in vars(adapter) if not name.startswith("__")}


def raising(adapter: type, error: str) -> dict[str, str]:
    """Methods of an adapter that only raise, and why."""
    docs = {name: inspect.getdoc(value) or "" for name, value in vars(adapter).items()}
    begin = f"Raises ``{error}``: "
    return {name: doc.removeprefix(begin).rstrip(".") for name, doc in docs.items() if doc.startswith(begin)}


def section(title: str, names: set[str], served: Iterable[str], refused: Mapping[str, str]) -> str:
    """One class. ``served`` and ``refused`` may have more names, of its bases."""
    refused = {name: why for name, why in refused.items() if name in names}
    served = {*served} & names - refused.keys()
    own = names - served - refused.keys()
    rows = "".join(f"| `{name}` | {why} |\n" for name, why in sorted(refused.items()))
    text = f"\n## {title}\n\n{len(names)} names: {len(served)} served, {len(refused)} refused, {len(own)} its own.\n"
    if served:
        text += f"\nServed: {listed(served)}\n"
    if refused:
        text += f"\n| refused | way out |\n| --- | --- |\n{rows}"
    return text + f"\nIts own: {listed(own)}\n"


def listed(names: Iterable[str]) -> str:
    return "\n".join(textwrap.wrap(", ".join(f"`{name}`" for name in sorted(names)) + ".", 150, break_on_hyphens=False))


def page() -> str:
    """The text of the page."""
    seams = overridden(trainer_loop.Seams, huggingface.ElasticTrainer)
    trainer, arguments = transformers.Trainer, transformers.TrainingArguments
    search = {"hyperparameter_search": "`train(trial=…)` is refused: each trial is a job"}
    strategy, of_lightning = lightning_trainer.ElasticTrainerStrategy, of(lightning_options._REFUSALS)
    fabric = raising(with_fabric.ElasticStrategy, "NotImplementedError")
    stock = {name for name in callbacks.__all__ if isinstance(getattr(callbacks, name), type)}
    of_bases = {
        name: of_lightning[base.__name__]
        for name in stock
        for base in getattr(callbacks, name).__mro__
        if base.__name__ in of_lightning
    }
    parts = [
        section("transformers: Trainer", defined(trainer), seams, search),
        section(
            "transformers: TrainingArguments", fields(arguments), fields(huggingface.ElasticTrainingArguments)
            & {"per_device_train_batch_size", "save_strategy", "disable_tqdm", "report_to", "seed", "data_seed",
               "gradient_accumulation_steps", "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "output_dir"},
            of(huggingface._REFUSALS),
        ),
        section("transformers: TrainerCallback", defined(transformers.TrainerCallback), (), {}),
        section("trl: SFTTrainer", defined(trl.SFTTrainer, beside=trainer), seams, {}),
        section("trl: SFTConfig", fields(trl.SFTConfig, arguments), (), {}),
        section(
            "accelerate: Accelerator", defined(accelerate.Accelerator),
            overridden(with_accelerate.ElasticAccelerator, with_accelerate.OfJob),
            raising(with_accelerate.ElasticAccelerator, "NotImplementedError"),
        ),
        section(
            "accelerate: options of the Accelerator", parameters(accelerate.Accelerator),
            {"gradient_accumulation_steps", "mixed_precision", "cpu", "kwargs_handlers", "dataloader_config"},
            of(with_accelerate._REFUSALS),
        ),
        section("Lightning: Fabric", defined(lightning.fabric.Fabric), overridden(with_fabric.ElasticStrategy)
                | {"setup", "setup_optimizers", "clip_gradients", "is_global_zero", "save", "load"}, fabric),
        section("Lightning: SingleDeviceStrategy under Fabric", defined(of_fabric.SingleDeviceStrategy),
                overridden(with_fabric.ElasticStrategy, with_fabric.RankOfJob), fabric),
        section("Lightning: options of the Trainer", parameters(lightning.pytorch.Trainer),
                {"strategy", "logger", "callbacks", "max_epochs", "max_steps"}, of_lightning),
        section("Lightning: Trainer", defined(lightning.pytorch.Trainer),
                {"is_global_zero", "global_rank", "save_checkpoint", "log_dir", "logger", "loggers"}, {}),
        section("Lightning: LightningModule", defined(lightning.pytorch.LightningModule),
                {"log", "log_dict", "all_gather", "global_rank", "training_step", "lr_scheduler_step"},
                {"backward": of_lightning["LightningModule.backward()"],
                 "manual_backward": of_lightning["automatic_optimization"]}),
        section("Lightning: LightningDataModule", defined(lightning.pytorch.LightningDataModule),
                {"train_dataloader", "state_dict", "load_state_dict"}, {}),
        section("Lightning: hooks of a Callback", defined(callbacks.Callback), {"state_dict", "load_state_dict"}, {}),
        section("Lightning: callbacks", stock, {"ModelCheckpoint", "EarlyStopping"}, of_bases),
        section("Lightning: SingleDeviceStrategy under the Trainer", defined(of_trainer.SingleDeviceStrategy),
                overridden(strategy, with_fabric.RankOfJob), {}),
        section("Lightning: CSVLogger", defined(lightning.pytorch.loggers.CSVLogger),
                overridden(lightning_loggers.OfJob, lightning_loggers.OfCsv), {}),
        section("Lightning: TensorBoardLogger", defined(lightning.pytorch.loggers.TensorBoardLogger),
                overridden(lightning_loggers.OfJob, lightning_loggers.OfTensorBoard), {}),
        section("Lightning: ModelCheckpoint", defined(callbacks.ModelCheckpoint, beside=callbacks.Callback),
                {*lightning_state._OF_SAVES, "file_exists", "state_dict", "load_state_dict"}, {}),
    ]  # fmt: skip
    return HEAD.format(versions=", ".join(f"{name} {version(name)}" for name in FRAMEWORKS)) + "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    written, text = PAGE.read_text() if PAGE.exists() else "", page()
    if parser.parse_args().write:
        PAGE.write_text(text)
    elif written != text:
        sys.exit(
            "\n".join(difflib.unified_diff(written.splitlines(), text.splitlines(), str(PAGE), "now", lineterm=""))
        )


if __name__ == "__main__":
    main()
