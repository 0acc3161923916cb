"""The arguments of an elastic Trainer, and those that it refuses, with the reason."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest


@pytest.fixture
def arguments(require, monkeypatch):
    """Makes arguments in a rank's environment."""
    require("transformers", "ELASTRAIN_REQUIRE_HUGGINGFACE")
    from elastrain_frameworks.huggingface import ElasticTrainingArguments

    monkeypatch.setenv("LOCAL_RANK", "1")

    def make(**options):
        return ElasticTrainingArguments(
            output_dir="out", report_to=[], **{"global_batch_size": 4, "use_cpu": True, **options}
        )

    return make


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch_size": -1}, "global_batch_size: -1: must be at least 1"),
        (
            {"gradient_accumulation_steps": 2},
            "gradient_accumulation_steps: 2: with global_batch_size=4 must be 1, .* is 16",
        ),
        (
            {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
            "gradient_checkpointing_kwargs: .* use_reentrant=False",
        ),
        ({"fsdp": "full_shard"}, "fsdp: .* replicas"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor: 0.1: .* compute_loss_func"),
        (
            {"train_sampling_strategy": "batch_rebalance"},
            "batch_rebalance: .* 'group_by_length'",
        ),
        ({"optim": "lomo"}, "optim: lomo: .* inside of backward"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen: all: .* its own part"),
        ({"save_on_each_node": True}, "save_on_each_node: true: .* rank 0 writes"),
    ],
)
def test_an_option_without_a_meaning_is_refused_by_its_name(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        arguments(**options)


def test_a_step_takes_what_one_process_does_if_the_global_batch_is_not_given(arguments):
    args = arguments(global_batch_size=0, per_device_train_batch_size=3, gradient_accumulation_steps=4)
    assert args.global_batch_size == 12


def test_accelerate_sees_a_single_process(arguments):
    import torch.distributed as dist

    args = arguments()
    assert args.world_size == 1
    assert not dist.is_initialized()
    assert os.environ["LOCAL_RANK"] == "1", "it is only hidden for a moment"
    assert args.save_strategy == "no"


def test_the_trainer_takes_the_device_of_the_rank_if_two_ranks_share_the_only_one(arguments, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    args = arguments(use_cpu=False)  # LOCAL_RANK is 1
    assert (args.device, args.n_gpu) == (torch.device("cuda", 0), 1)


def test_the_remedy_is_named_if_the_arguments_are_the_trainers_own(arguments, monkeypatch, tmp_path):
    import torch
    from transformers import TrainingArguments

    from elastrain_frameworks.huggingface import ElasticTrainer

    monkeypatch.delenv("LOCAL_RANK")  # with it accelerate would look for a process group
    own = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(TypeError, match="must be ElasticTrainingArguments"):
        ElasticTrainer(job=SimpleNamespace(rank=0, chooses_batch=False), model=torch.nn.Linear(1, 1), args=own)


def test_samples_of_similar_length_share_a_global_batch_if_they_are_grouped_by_length(arguments, monkeypatch, tmp_path):
    import torch

    from elastrain.data.options import order_of
    from elastrain_frameworks.huggingface import ElasticTrainer
    from elastrain_frameworks.huggingface.loop import loader_of

    monkeypatch.delenv("LOCAL_RANK")
    lengths = [1 + (7 * i) % 40 for i in range(800)]
    dataset = [{"input_ids": [0] * length} for length in lengths]
    args = arguments(train_sampling_strategy="group_by_length", global_batch_size=10, per_device_train_batch_size=2)
    trainer = ElasticTrainer(
        job=SimpleNamespace(rank=0, chooses_batch=False), model=torch.nn.Linear(1, 1), args=args, train_dataset=dataset,
        data_collator=lambda samples: samples,
    )  # fmt: skip
    trainer.job.dataloader = lambda data, **options: {**options, "data": data}
    made = loader_of(trainer, trainer.get_train_dataloader())
    order = order_of(
        dataset, global_batch_size=10, seed=made["seed"], shuffle=None, sampler=made["sampler"], batch_sampler=None,
        drop_last=False, micro_batch_size=2, micro_batches=None,
    )  # fmt: skip
    batches = [order.batch(step) for step in range(order.steps_per_epoch)]
    assert sorted(i for batch in batches for i in batch) == list(range(800))
    spreads = sorted(max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches)
    assert spreads[len(spreads) // 2] <= 5, "of lengths from 1 to 40; the Trainer moves the longest to the front"
