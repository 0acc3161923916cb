"""Early stopping under the elastic Trainer: a callback's request and its counts apply to all ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.fixture
def trainer(require, tmp_path):
    """Makes a Trainer of a job that has committed some steps; ``stops``: the steps at which the job was stopped."""
    require("transformers", "ELASTRAIN_REQUIRE_HUGGINGFACE")
    import torch
    from transformers import EarlyStoppingCallback

    from elastrain.integrations.huggingface import ElasticTrainer, ElasticTrainingArguments

    class Judged(ElasticTrainer):
        losses: list[float]

        def evaluate(self, *args, **kwargs):
            metrics = {"eval_loss": self.losses.pop(0)}
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            return metrics

    def make(losses):
        job = SimpleNamespace(rank=0, step=0, loss=1.0, stops=[], chooses_batch=False)
        job.stop = lambda: job.stops.append(job.step)
        args = ElasticTrainingArguments(
            output_dir=str(tmp_path),
            global_batch_size=4,
            use_cpu=True,
            report_to=[],
            eval_strategy="steps",
            eval_steps=1,
            logging_strategy="no",
            metric_for_best_model="loss",
        )
        made = Judged(
            job=job,
            model=torch.nn.Linear(1, 1),
            args=args,
            eval_dataset=[1],
            callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
        )
        made.losses = [*losses]
        made._total, made._per_epoch = 100, 100
        made.optimizer = made.lr_scheduler = None
        made._begin(None)
        return made

    return make


def commit(trainer, steps: int) -> None:
    for _ in range(steps):
        trainer.job.step += 1
        trainer._committed()


def test_the_job_is_stopped_if_the_metric_has_not_improved_within_the_callbacks_patience(trainer):
    one = trainer([3.0, 2.0, 2.5, 2.2, 2.1])
    commit(one, 3)
    assert one.job.stops == []
    commit(one, 1)
    assert one.job.stops == [4]
    assert one.state.best_metric == 2.0


def test_a_joiner_continues_its_peers_count(trainer):
    peer, joiner = trainer([3.0, 3.5]), trainer([3.2])
    commit(peer, 2)
    joiner._history.load_state_dict(peer._history.state_dict())
    joiner.job.step = 2
    commit(joiner, 1)
    assert joiner.job.stops == [3]
