"""Lightning's Trainer over a scripted job: what its loop counts, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from elastrain.elastic.contract import RULES, Effect, Phase

OUTCOMES = {
    "warm-up": Phase.WARM_UP,
    "partial": Phase.PARTIAL,
    "discarded": Phase.DISCARDED,
    "adopted": Phase.DISCARDED,
    "committed": Phase.COMMITTED,
}


class ScriptedJob:
    """A job of one rank whose executions of the loop body end as ``outcomes`` say, and then in commits."""

    rank, device, chooses_batch = 0, torch.device("cpu"), False

    def __init__(self, *outcomes: str, start: int = 0) -> None:
        self.outcomes, self.start = [*outcomes], start
        self.step, self.phase, self.stopped, self.tracked = 0, Phase.SETUP, False, {}

    def wrap(self, module):
        self.model = module
        return module

    def track(self, **objects):
        self.tracked.update(objects)

    def dataloader(self, dataset, *, global_batch_size, **options):
        self.options = options
        self.data = torch.utils.data.DataLoader(dataset, batch_size=global_batch_size)
        return SimpleNamespace(order=SimpleNamespace(steps_per_epoch=len(self.data)))

    def steps(self, loader, steps):
        batches = [*self.data]
        for outcome in ("warm-up", *self.outcomes, *["committed"] * 10_000):
            if self.step >= steps or self.stopped:
                return
            self.outcome, self.phase = outcome, Phase.FRESH
            yield batches[self.step % len(batches)]
            if outcome == "warm-up":
                self.step = self.start
            self.step += outcome in ("committed", "adopted")

    def backward(self, loss):
        loss.backward()
        self.phase = OUTCOMES[self.outcome]

    @property
    def committed(self):
        return self.phase is Phase.COMMITTED

    def acts(self, call, name):
        effect = RULES[call][self.phase].effect
        assert effect is not Effect.RAISES, f"{name} {self.phase}"
        return effect is Effect.ACTS

    def stop(self):
        self.stopped = True


@pytest.fixture
def fit(require, tmp_path):
    """Fits a small module over a scripted job of 5 steps an epoch; returns what Lightning and the module have seen."""
    require("lightning", "ELASTRAIN_REQUIRE_LIGHTNING")
    from lightning.pytorch import LightningModule, Trainer

    from elastrain.integrations.lightning_trainer import ElasticTrainerStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.executions, self.ends, self.validated = torch.nn.Linear(2, 1), 0, [], []

        def training_step(self, batch, batch_idx):
            self.executions += 1
            return self.net(batch[0]).square().mean()

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.ends.append((self.trainer.current_epoch, self.trainer.fit_loop.batch_idx, self.trainer.global_step))

        def validation_step(self, batch, batch_idx):
            self.log("val", self.net(batch[0]).square().mean(), sync_dist=True)

        def on_validation_end(self):
            self.validated.append(self.trainer.global_step)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1e-3)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def run(job, module=None, **options):
        data = torch.utils.data.TensorDataset(torch.ones(20, 2))
        trainer = Trainer(
            **{
                "accelerator": "cpu",
                "devices": 1,
                "strategy": ElasticTrainerStrategy(job, global_batch_size=4),
                "max_epochs": 2,
                "num_sanity_val_steps": 0,
                "logger": False,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "default_root_dir": tmp_path,
                **options,
            }
        )
        module = module or Module()
        loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
        trainer.fit(module, loader, torch.utils.data.DataLoader(data, batch_size=10))
        return trainer, module

    run.module = Module
    return run


def test_lightning_counts_committed_steps_only(fit):
    trainer, module = fit(ScriptedJob("partial", "committed", "discarded", "partial", "partial", "committed"))
    assert trainer.global_step == 10
    assert module.executions == 1 + 10 + 4, "the warm-up, ten steps, four executions more"
    assert module.ends == [(step // 5, step % 5, step + 1) for step in range(10)]
    assert module.validated == [5, 10]


def test_a_joiner_continues_at_the_step_of_the_job(fit):
    trainer, module = fit(ScriptedJob(start=7))
    assert module.ends == [(1, 2, 8), (1, 3, 9), (1, 4, 10)]
    assert (trainer.global_step, trainer.current_epoch, module.validated) == (10, 2, [10])


def test_a_joiner_of_a_job_that_has_finished_ends_at_its_last_step(fit):
    trainer, module = fit(ScriptedJob(start=10))
    assert (trainer.global_step, module.ends, module.validated) == (10, [], [])


def test_a_step_received_from_a_peer_is_one_step_for_lightning_and_none_for_its_schedules(fit):
    job = ScriptedJob("committed", "committed", "adopted")
    trainer, module = fit(job)
    assert module.ends == [(step // 5, step % 5, step + 1) for step in range(10)]
    assert job.tracked["scheduler"].last_epoch == 9, "the peer's state, which this job does not send, has the tenth"
    assert trainer.global_step == 10


@pytest.mark.parametrize("adopted", [4, 9])
def test_validation_runs_if_the_last_step_of_an_epoch_is_received_from_a_peer(fit, adopted):
    _, module = fit(ScriptedJob(*["committed"] * adopted, "adopted"))
    assert module.validated == [5, 10]


def test_all_ranks_are_asked_to_end_if_a_callback_stops_early(fit):
    from lightning.pytorch.callbacks import EarlyStopping

    job = ScriptedJob()
    trainer, module = fit(job, max_epochs=50, callbacks=[EarlyStopping("val", patience=1, min_delta=1e9)])
    assert job.stopped
    assert module.validated[:2] == [5, 10], "the first sets the mark, the second has not improved on it"
    assert trainer.global_step == 10


def test_the_loss_scale_is_tracked_and_the_optimizer_steps_by_it(fit):
    from lightning.pytorch.plugins import MixedPrecision

    from elastrain.integrations.lightning_trainer import ElasticTrainerStrategy

    job, module = ScriptedJob("discarded"), fit.module()
    before = module.net.weight.detach().clone()
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=8.0))
    strategy = ElasticTrainerStrategy(job, global_batch_size=4, precision_plugin=precision)
    fit(job, module, strategy=strategy, gradient_clip_val=0.5)
    assert job.tracked["scaler"] is precision.scaler
    assert not torch.equal(before, module.net.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches: .* global_batch_size"),
        ({"max_time": "00:01:00:00"}, "max_time: .* job.stop"),
        ({"overfit_batches": 1}, "overfit_batches: .* smaller data set"),
    ],
)
def test_an_option_without_a_meaning_is_refused_by_its_name(fit, options, message):
    with pytest.raises(ValueError, match=message):
        fit(ScriptedJob(), **options)


def test_a_module_with_its_own_optimization_is_refused(fit):
    module = fit.module()
    module.automatic_optimization = False
    with pytest.raises(ValueError, match=r"automatic_optimization: false: .* Fabric"):
        fit(ScriptedJob(), module)


@pytest.mark.parametrize("on_epoch", [False, True])
@pytest.mark.parametrize("metric", [False, True])
def test_a_number_of_all_ranks_that_training_logs_is_refused_by_its_name(fit, metric, on_epoch):
    from torchmetrics import MeanMetric

    class Logs(fit.module):
        def __init__(self):
            super().__init__()
            self.mean = MeanMetric()

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.mean.update(loss)
            logged = {"value": self.mean} if metric else {"value": loss, "sync_dist": True}
            self.log("load", on_step=not on_epoch, on_epoch=on_epoch, **logged)
            return loss

    module = Logs()
    with pytest.raises((ValueError, RuntimeError), match=r"(Metric|sync_dist=True)\)? in training: .*job\.loss"):
        fit(ScriptedJob(), module)
    assert module.executions == 1, "in the warm-up"


def test_a_number_of_this_rank_that_training_logs_is_not_refused(fit):
    class Logs(fit.module):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("load", loss, on_step=True, on_epoch=True)
            return loss

    trainer, _ = fit(ScriptedJob(), Logs())
    assert trainer.global_step == 10


def test_a_reduction_in_training_names_the_way_out(fit):
    class Reduces(fit.module):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.all_gather(torch.ones(1))

    with pytest.raises(RuntimeError, match=r"job\.loss"):
        fit(ScriptedJob(), Reduces())
