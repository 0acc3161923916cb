"""The scripts that ``corpus.py`` patches: right ones, each with places (``$name``) for the lines of a fault."""

from __future__ import annotations

import re
from collections.abc import Mapping

HEAD = """
import copy, itertools, math, os, random, time, uuid
from collections import deque
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import elastrain
$imports

torch.manual_seed(0)
x = torch.randn($size, 4)
$data
$before

with elastrain.join() as job:
    $job
"""
PLAIN = {
    "imports": "from torch.distributed.fsdp import fully_shard",
    "size": "64",
    "data": "data = TensorDataset(x, x.sum(1, keepdim=True).sin())",
    "net": "nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))",
    "optimizer": "torch.optim.SGD(net.parameters(), lr=0.1)",
    "loader": "job.dataloader(data, global_batch_size=8)",
    "loss": "F.mse_loss(model(x), y)",
    "backward": "job.backward(loss)",
    "job": """
net = $net
$shard
optimizer = $optimizer
model = job.wrap(net, optimizer=optimizer)
$setup
loader = $loader
$loop
""",
    "loop": """
for x, y in job.steps(loader, steps=16):
    $body
""",
    "body": """
$start
loss = $loss
$backward
optimizer.step()
optimizer.zero_grad()
$end
""",
}
EPOCHS = PLAIN | {
    "size": "16",
    "loop": """
for epoch in job.epochs(loader, 8):
    for x, y in job.steps(loader, epochs=epoch + 1):
        $body
    $after
""",
}
ACCELERATE = PLAIN | {
    "imports": "from elastrain.integrations.accelerate import ElasticAccelerator",
    "epochs": "4",
    "backward": "accelerator.backward(loss)",
    "job": """
accelerator = ElasticAccelerator(job)
net = $net
optimizer = $optimizer
loader = DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
$setup
for epoch in range($epochs):
    for x, y in loader:
        $body
    $after
""",
}
FABRIC = PLAIN | {
    "imports": """
from lightning.fabric import Fabric
from elastrain.integrations.lightning import ElasticStrategy
""",
    "backward": "fabric.backward(loss)",
    "job": """
fabric = Fabric(accelerator="cpu", devices=1, strategy=ElasticStrategy(job))
net = $net
model, optimizer = fabric.setup(net, $optimizer)
loader = $loader
$loop
""",
}
TRANSFORMERS = {
    "imports": """
from transformers import PretrainedConfig, PreTrainedModel, TrainerCallback
from elastrain.integrations.huggingface import ElasticTrainer, ElasticTrainingArguments
""",
    "size": "64",
    "data": 'data = [{"x": v, "labels": v.sum().sin().reshape(1)} for v in x]',
    "loss": "F.mse_loss(self.layers(x), labels)",
    "callbacks": "",
    "before": """
class Net(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 1))
        self.post_init()

    def forward(self, x, labels=None):
        $forward
        return {"loss": $loss}

$callback
""",
    "job": """
args = ElasticTrainingArguments(
    output_dir="out", global_batch_size=8, num_train_epochs=2, learning_rate=0.01, save_strategy="no", report_to=[],
    use_cpu=True,
)
net = Net(PretrainedConfig())
ElasticTrainer(job=job, model=net, args=args, train_dataset=data, callbacks=[$callbacks]).train()
""",
}
LIGHTNING = {
    "imports": """
from lightning.pytorch import Callback, LightningModule, Trainer
from elastrain.integrations.lightning_trainer import ElasticTrainerStrategy
""",
    "size": "64",
    "data": PLAIN["data"],
    "loss": "F.mse_loss(self.net(x), y)",
    "callbacks": "",
    "before": """
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        $init

    def training_step(self, batch, number):
        x, y = batch
        $step
        return $loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

$callback
""",
    "job": """
trainer = Trainer(
    accelerator="cpu", strategy=ElasticTrainerStrategy(job, global_batch_size=8), devices=1, max_epochs=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[$callbacks],
)
trainer.fit(Net(), DataLoader(data, batch_size=8, shuffle=True))
""",
}
_PLACE = re.compile(r"^( *)(.*?)(?<!\w)\$([a-z]+)(.*)$", re.MULTILINE)


def filled(text: str, places: Mapping[str, str]) -> str:
    """``text`` with all its places filled, by lines of the same indentation; one that ``places`` lacks is empty."""
    while (found := _PLACE.search(text)) is not None:
        indent, before, name, after = found.groups()
        lines = (before + places.get(name, "").strip("\n") + after).splitlines()
        text = text[: found.start()] + "\n".join(indent + line for line in lines if line) + text[found.end() :]
    return text
