"""Hugging Face's Trainer with a schedule and a callback that only reads."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, TrainerCallback

import elastrain
from elastrain.integrations.huggingface import ElasticTrainer, ElasticTrainingArguments

torch.manual_seed(0)
data = [{"x": v, "labels": v.sum().sin().reshape(1)} for v in torch.randn(64, 4)]


class Net(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 1))
        self.post_init()

    def forward(self, x, labels=None):
        return {"loss": F.mse_loss(self.layers(x), labels)}


class Show(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        print(state.global_step)


with elastrain.join() as job:
    args = ElasticTrainingArguments(
        output_dir="out",
        global_batch_size=8,
        num_train_epochs=2,
        learning_rate=0.01,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    net = Net(PretrainedConfig())
    ElasticTrainer(job=job, model=net, args=args, train_dataset=data, callbacks=[Show()]).train()
