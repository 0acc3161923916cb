"""With a framework, the reference of ``elastrain verify`` is the framework's own loop, without elastrain's adapter."""

from __future__ import annotations

import pytest

from corpus import Script

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain
from elastrain.integrations.accelerate import ElasticAccelerator

torch.manual_seed(0)
x = torch.randn(60, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())


class Mine(ElasticAccelerator):
    def backward(self, loss, **options):
        super().backward(loss * 3, **options)


with elastrain.join() as job:
    accelerator = Mine(job, gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 4))
    for _ in range(2):
        for a, b in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.mse_loss(model(a), b))
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
"""
ANOTHER = """
def unclipped(self, parameters, max_norm, norm_type=2):
    return None

ElasticAccelerator.clip_grad_norm_ = unclipped
"""


def script(text: str) -> Script:
    return Script("own", "", text)


@pytest.mark.timeout(200)
def test_script_is_safe_if_the_adapter_trains_as_the_frameworks_own_loop(judge) -> None:
    answer = judge(script(SCRIPT), only=("one", "workers-2"))
    assert (answer.exit_code, answer.notes) == (0, ()), answer


@pytest.mark.timeout(200)
def test_adapter_is_named_if_it_trains_another_model_than_the_frameworks_own_loop(judge) -> None:
    text = SCRIPT.replace("torch.manual_seed(0)", ANOTHER + "\ntorch.manual_seed(0)")
    answer = judge(script(text), only=("one",))
    assert (answer.exit_code, answer.fault and answer.fault.name) == (1, "adapter"), answer
    assert answer.parting is not None and answer.parting.step == 1


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_script_is_safe_with_a_note_if_only_a_text_of_the_framework_differs(judge) -> None:
    text = SCRIPT + '\nopen("log.txt", "w").write("own" if hasattr(accelerator, "_accumulated") else "of adapter")\n'
    answer = judge(script(text), only=("repeat", "one", "workers-2"))
    assert (answer.exit_code, [note.partition(":")[0] for note in answer.notes]) == (0, ["file log.txt"]), answer


EPOCH_ENDS = """
import torch
from torch import nn
from transformers import TrainerCallback

import elastrain
from elastrain.integrations.huggingface import ElasticTrainer, ElasticTrainingArguments

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}


class Halves(TrainerCallback):
    def on_epoch_end(self, args, state, control, optimizer=None, **_):
        for group in optimizer.param_groups:
            group["weight_decay"] *= 0.5


data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(40)]
with elastrain.join() as job:
    options = {"per_device_train_batch_size": 4, "global_batch_size": 4, "num_train_epochs": 4, "weight_decay": 0.1}
    arguments = ElasticTrainingArguments("out", save_strategy="no", report_to=[], use_cpu=True, **options)
    ElasticTrainer(job=job, model=Net(), args=arguments, train_dataset=data, callbacks=[Halves()]).train()
"""


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_script_is_safe_if_the_runs_end_within_an_epoch_at_whose_end_it_changes_the_optimizer(judge) -> None:
    answer = judge(script(EPOCH_ENDS), only=("one", "workers-2"))
    assert answer.exit_code == 0, answer
