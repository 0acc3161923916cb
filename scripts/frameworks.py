"""Writes ``docs/reference/frameworks.md``: what each name of a framework's classes does in an elastic job.

A name is served by the adapter if the adapter overrides it or NOTES has its meaning, refused if the adapter says so,
and the framework's own otherwise. These are in LEDGER, so that a name that a release of a framework adds changes it:
look at it, then ``--write``. Without it the program only compares, and exits with 1. To be run in the repository's
root, with all frameworks installed.
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

from elastrain_frameworks import accelerate as with_accelerate
from elastrain_frameworks.huggingface import adapter as huggingface
from elastrain_frameworks.huggingface import loop as trainer_loop
from elastrain_frameworks.lightning import fabric as with_fabric
from elastrain_frameworks.lightning import loggers as lightning_loggers
from elastrain_frameworks.lightning import options as lightning_options
from elastrain_frameworks.lightning import progress as lightning_state
from elastrain_frameworks.lightning import trainer as lightning_trainer
from elastrain_frameworks.refusals import Refusal

PAGE = Path("docs/reference/frameworks.md")
LEDGER = Path("scripts/frameworks.txt")
"""The frameworks' own names, which no reader needs and which have been looked at."""
FRAMEWORKS = ("transformers", "trl", "accelerate", "lightning")
HEAD = """<!-- Written by scripts/frameworks.py (`make reference`). Do not edit. -->

# Frameworks, name by name

What each name of a framework's classes does in an elastic job, from the adapters themselves. *Served*: the adapter
gives it its meaning in the job. *Refused*: an error names it and the way out, before the first step. All other names
are the framework's own code. [What that means for a script](../integrations.md).

Looked at with {versions}.
"""


NOTES: dict[str, dict[str, str]] = {
    "transformers: Trainer": {
        "training_step": (
            "also runs for the warm-up, for micro-batches and for discarded executions. Plain attributes of the "
            "Trainer (numbers, texts, tensors, lists of them) that these change are put back, and joiners "
            "receive them. The logged loss is that of the global batch, over *tokens* where the Trainer "
            "averages over tokens"
        ),
        "get_train_dataloader": (
            "the Trainer's own order, by (`data_seed`, epoch). A DataLoader of your own needs a `batch_size`; "
            "its sampler is taken over ([samplers](../data.md)), a `batch_sampler` is refused before the first "
            "step"
        ),
        "evaluation_loop": "every rank evaluates all of `eval_dataset` at the same step",
        "floating_point_ops": "`total_flos` is 0",
        "_save_checkpoint": ("rank 0 writes; if it is lost before the files are complete, the next rank 0 writes them"),
        "train": (
            "to the end, over all changes of size; the job resumes from "
            "[`spec.checkpoint`](../training-scripts.md#state)"
        ),
    },
    "transformers: TrainingArguments": {
        "per_device_train_batch_size": "the most that a rank computes at a time",
        "gradient_accumulation_steps": (
            "times `per_device_train_batch_size`: the default of `global_batch_size`, which is one optimizer "
            "step of all ranks"
        ),
        "save_strategy": 'the default is `"no"`',
        "max_grad_norm": "the norm of the gradient over the global batch",
        "fp16": "the loss scale is part of the job's state",
        "report_to": (
            "TensorBoard and W&B have one folder, or run, for all processes. In TensorBoard a new rank 0 goes "
            "on behind the last committed step, also after a resume; at W&B it resumes the run (`WANDB_RUN_ID`, "
            "chosen if you give none), where the rows of one step may be twice"
        ),
        "train_sampling_strategy": "`group_by_length` groups within global batches",
    },
    "transformers: TrainerCallback": {
        "on_step_end": (
            "as all events, once for each committed step; joiners receive the state of callbacks that export "
            "it, the models and tensors that callbacks and a derived Trainer hold (TRL's `sync_ref_model`; made in "
            "`__init__`: later ones are refused), and the arguments that callbacks have changed. "
            "`should_training_stop` ends training after the same "
            "step as in one process, if all ranks set it there, as `EarlyStoppingCallback` does. If one rank alone "
            "does, the job fails and names it, and the rank's log names the callback: the other ranks have begun "
            "the next step. Call `job.stop()` there, which ends training on all ranks with that step. "
            "`should_epoch_stop` is refused: the "
            "order of the data has whole epochs"
        ),
    },
    "accelerate: Accelerator": {
        "num_processes": ("1, also for the functions of `accelerate.utils`: the job computes the steps on all ranks"),
        "prepare": (
            "wraps the model, tracks optimizers, schedulers and the loss scaler. The first DataLoader is that "
            "of training, and its sampler is taken over ([samplers](../data.md)); every rank reads all samples "
            "of the others. For a `batch_sampler` prepare a loader of `job.dataloader`"
        ),
        "sync_gradients": "True if the optimizer's step acts in this execution of the loop body",
        "gather": (
            "in a loop over evaluation data: the values themselves, since each rank has all of them; elsewhere refused"
        ),
        "gather_for_metrics": "as `gather`",
        "reduce": "as `gather`",
        "is_main_process": "rank 0 of the present generation; loggers follow it",
        "on_main_process": "the function is called on rank 0 of the present generation",
        "on_last_process": "as `on_main_process`: once, as in one process",
        "on_process": "as `on_last_process`, for any index",
        "on_local_main_process": "the function is called by the first process of each worker",
        "on_local_process": "as `on_local_main_process`, for any index",
        "save": (
            "all ranks call it, behind the backward or between loops; a new rank 0 writes the file if the last "
            "one is lost before it has ended"
        ),
        "save_model": "as `save`",
        "init_trackers": (
            "all ranks call it. A new rank 0 goes on with the folder of TensorBoard (each row once) or with the "
            "run of W&B, also after a resume"
        ),
        "log": "all ranks call it; it acts in committed steps only, behind the backward",
        "get_tracker": "finds a tracker on rank 0 only, behind its first step",
        "register_for_checkpointing": "tracks the object",
    },
    "Lightning: Fabric": {
        "backward": "takes the options of `job.backward`",
        "setup": 'wraps and tracks; the loss scale of `precision="16-mixed"` is part of the job\'s state',
        "clip_gradients": "of that optimizer's parameters, as Fabric does",
        "log": (
            "all ranks call it; it acts in committed steps only, behind the backward. A new rank 0 goes on with "
            "the same run of `CSVLogger`, `TensorBoardLogger` or `WandbLogger`, also after a resume"
        ),
        "save": ("all ranks call it; a new rank 0 writes the file if the last one is lost before it has ended"),
    },
    "Lightning: options of the Trainer": {
        "max_steps": "of the whole job: a batch is one committed step",
        "logger": (
            "rank 0 of the first generation chooses the version. A new rank 0 goes on with the files of the "
            "last: it cuts off what belongs to no committed step, and writes what is missing, also after a "
            "resume. `CSVLogger` and `TensorBoardLogger` have each row once; `WandbLogger` resumes one run. "
            "Rows go by `log_metrics`; what a script adds by `logger.experiment` is not written again"
        ),
        "callbacks": (
            "their state moves with the job, also models and tensors in their attributes (one that a hook of a step "
            "makes is refused). Their hooks run once for each committed step, with the first "
            "micro-batch; in a joiner, `on_train_start` and `on_train_epoch_start` run once before it enters "
            "the job, and show step 0. A callback that sets `trainer.should_stop` on one rank alone fails the "
            "job: call `job.stop()`"
        ),
        "precision": "unchanged; the loss scale is part of the job's state",
    },
    "Lightning: LightningModule": {
        "training_step": (
            "also runs for the warm-up, for micro-batches and for discarded executions. Plain attributes of module "
            "and callbacks are put back; joiners receive those that the module has changed, and models that it holds"
        ),
        "log": (
            "in `training_step` the number of the global batch: means are weighted by samples, or by your "
            "`batch_size=`; sums are added; an epoch's mean has each committed sample once. `sync_dist=True` "
            'changes nothing. Refused: `reduce_fx="min"` and `"max"`, metrics of torchmetrics that '
            "`training_step` updates, and with `sync_dist=True` a name that the first batch does not log. In "
            "other hooks of training `sync_dist=True` and metrics are refused; in validation, which every rank "
            "does on all data, both are exact"
        ),
        "configure_optimizers": (
            "one optimizer, not LBFGS, and no `ReduceLROnPlateau`: others are refused: use Fabric"
        ),
    },
    "Lightning: LightningDataModule": {
        "train_dataloader": (
            "its `batch_size` is the most that a rank computes at a time; its sampler is taken over "
            "([samplers](../data.md))"
        ),
        "state_dict": ("moves with the job; what `on_save_checkpoint` hooks add belongs to files: track it, too"),
    },
    "Lightning: Trainer": {
        "fit": "`ckpt_path` is refused: the job resumes from `spec.checkpoint`",
    },
    "Lightning: callbacks": {
        "ModelCheckpoint": (
            "rank 0 writes; a new one, if it is lost before it has ended. All ranks know the same paths, and "
            "the files of the best and the last checkpoint exist when `fit` returns. Refused: by time, and "
            '`save_last="link"`'
        ),
        "EarlyStopping": "ends all ranks after the same step as in one process",
    },
}
"""By class: what a name means in a job, where that is not the framework's own meaning."""


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


def section(title: str, names: set[str], served: Iterable[str], refused: Mapping[str, str]) -> tuple[str, str]:
    """One class: its part of the page, "" if all names are its own, and of the ledger. ``served`` and ``refused`` may
    have more names, of its bases."""
    notes = NOTES.get(title, {})
    if unknown := notes.keys() - names:
        raise ValueError(f"NOTES[{title!r}]: {title} has no {', '.join(sorted(unknown))}")
    refused = {
        name: f"{why}. {notes[name]}" if name in notes else why for name, why in refused.items() if name in names
    }
    served = ({*served} & names | notes.keys()) - refused.keys()
    own = names - served - refused.keys()
    meanings = "".join(f"| `{name}` | {notes[name]} |\n" for name in sorted(served & notes.keys()))
    served -= notes.keys()
    rows = "".join(f"| `{name}` | {why} |\n" for name, why in sorted(refused.items()))
    counted = f"{len(names - own - refused.keys())} served, {len(refused)} refused, {len(own)} its own"
    text = f"\n## {title}\n\n{len(names)} names: {counted}.\n"
    if meanings:
        text += f"\n| served | in a job |\n| --- | --- |\n{meanings}"
    if served:
        text += f"\n{'Also served' if meanings else 'Served'}: {listed(served)}\n"
    if refused:
        text += f"\n| refused | way out |\n| --- | --- |\n{rows}"
    return text if served or refused or meanings else "", f"{title}\n{listed(own)}\n\n"


def listed(names: Iterable[str]) -> str:
    return "\n".join(textwrap.wrap(", ".join(f"`{name}`" for name in sorted(names)) + ".", 150, break_on_hyphens=False))


def texts() -> dict[Path, str]:
    """The page, and the ledger."""
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
        section("trl: DPOTrainer", defined(trl.DPOTrainer, beside=trainer), seams, {}),
        section("trl: DPOConfig", fields(trl.DPOConfig, arguments), (), {}),
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
    head = HEAD.format(versions=", ".join(f"{name} {version(name)}" for name in FRAMEWORKS))
    return {PAGE: head + "".join(part for part, _ in parts), LEDGER: "".join(own for _, own in parts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    for file, text in texts().items():
        written = file.read_text() if file.exists() else ""
        if write:
            file.write_text(text)
        elif written != text:
            lines = difflib.unified_diff(written.splitlines(), text.splitlines(), str(file), "now", lineterm="")
            sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
