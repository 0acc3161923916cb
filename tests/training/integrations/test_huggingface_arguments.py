"""The arguments of an elastic Trainer, and those that it refuses, with the reason."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest


@pytest.fixture
def arguments(require, monkeypatch):
    """Makes arguments in a rank's environment."""
    require("transformers", "ELASTRAIN_REQUIRE_HUGGINGFACE")
    from elastrain.integrations.huggingface import ElasticTrainingArguments

    monkeypatch.setenv("LOCAL_RANK", "1")

    def make(**options):
        return ElasticTrainingArguments(
            output_dir="out", use_cpu=True, report_to=[], **{"global_batch_size": 4, **options}
        )

    return make


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size: 0: must be at least 1: the samples of one optimizer step"),
        (
            {"gradient_accumulation_steps": 2},
            "gradient_accumulation_steps: 2: .* per_device_train_batch_size determine how",
        ),
        (
            {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
            "gradient_checkpointing_kwargs: .* use_reentrant=False",
        ),
        ({"fsdp": "full_shard"}, "fsdp: true: .* replicas"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor: 0.1: .* compute_loss_func"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy: group_by_length: .* permutation"),
        ({"optim": "lomo"}, "optim: lomo: .* inside of backward"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}, "plateau: .* its own evaluation"),
        ({"save_total_limit": 2}, "save_total_limit: 2: .* spec.checkpoint.keep"),
    ],
)
def test_an_option_without_a_meaning_is_refused_by_its_name(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        arguments(**options)


def test_accelerate_sees_a_single_process(arguments):
    import torch.distributed as dist

    args = arguments()
    assert args.world_size == 1
    assert not dist.is_initialized()
    assert os.environ["LOCAL_RANK"] == "1", "it is only hidden for a moment"
    assert args.save_strategy == "no"


def test_the_remedy_is_named_if_the_arguments_are_the_trainers_own(arguments, monkeypatch, tmp_path):
    import torch
    from transformers import TrainingArguments

    from elastrain.integrations.huggingface import ElasticTrainer

    monkeypatch.delenv("LOCAL_RANK")  # with it accelerate would look for a process group
    own = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(TypeError, match="must be ElasticTrainingArguments"):
        ElasticTrainer(job=SimpleNamespace(rank=0), model=torch.nn.Linear(1, 1), args=own)
