"""Lightning's Trainer over a scripted job: what its loop counts, and what is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from structlog.testing import capture_logs

from elastrain.elastic.comm.header import RanksDiverged
from scripted_loop import ScriptedJob


def test_lightning_counts_committed_steps_only(fit):
    trainer, module = fit(ScriptedJob("partial", "committed", "discarded", "partial", "partial", "committed"))
    assert trainer.global_step == 10
    assert module.executions == 10 + 3, (
        "ten steps, three micro-batches more; its counts of other executions are put back"
    )
    assert module.ends == [(step // 5, step % 5, step + 1) for step in range(10)]
    assert module.validated == [5, 10]


@pytest.mark.parametrize(("outcomes", "start"), [(["discarded"], 7), (["committed"] * 3 + ["adopted"], 0)])
def test_what_callbacks_and_the_module_hold_beside_the_model_is_that_of_lightning_alone(fit, outcomes, start):
    from lightning.pytorch.callbacks import Callback

    class Follows(Callback):
        def __init__(self):
            self.shadow, self.backwards = {"weight": torch.zeros(1, 2)}, 0

        def on_train_start(self, trainer, module):
            self.teacher = torch.nn.Linear(2, 1)
            torch.nn.init.constant_(self.teacher.weight, 0.5)

        def on_after_backward(self, *_):
            self.backwards += 1

        def on_train_batch_end(self, trainer, module, *_):
            self.teacher.weight.data.lerp_(module.net.weight.data, 0.1)
            self.shadow["weight"].mul_(0.9).add_(module.net.weight.data)
            module.net.bias.data.mul_(0.9)

    class Counts(fit.module):
        def __init__(self):
            super().__init__()
            torch.nn.init.constant_(self.net.weight, 0.3)
            torch.nn.init.constant_(self.net.bias, 0.2)
            self.losses = []

        def training_step(self, *args):
            loss = super().training_step(*args) * (1 + self.executions)
            self.losses.append(loss)
            return loss

    found = []
    for job in (None, peer := ScriptedJob(), ScriptedJob(*outcomes, start=start, peer=peer, rank=1)):
        _, module = fit(job, Counts(), callbacks=[callback := Follows()])
        found.append((module.state_dict(), callback.teacher.weight, callback.shadow, module.losses, module.ends))
    assert callback.backwards == 10 - start - outcomes.count("adopted")
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=0, atol=1e-6)


def test_what_a_warm_up_cannot_give_back_is_named_once(fit):
    module = fit.module()
    module.others, module.noise = iter([1, 2]), torch.Generator()
    with capture_logs() as lines:
        fit(ScriptedJob(), module)
    (attributes,) = (line["attributes"] for line in lines if "cannot give back" in line["event"])
    assert attributes == ["Module.others", "Module.noise"]


def test_a_model_that_a_hook_makes_when_training_has_begun_is_refused_by_name(fit):
    class Late(fit.module):
        def on_train_batch_end(self, *args):
            super().on_train_batch_end(*args)
            self.averages = [torch.nn.Linear(1, 1)]

    with pytest.raises(ValueError, match=r"Late_averages_0: made when training had begun"):
        fit(ScriptedJob(), Late())


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


def test_early_stopping_ends_with_its_step_and_ranks_meet_then(fit):
    from lightning.pytorch.callbacks import EarlyStopping

    job = ScriptedJob()
    trainer, module = fit(job, max_epochs=50, callbacks=[EarlyStopping("val", patience=1, min_delta=1e9)])
    assert module.validated == [5, 10], "the first sets the mark, the second has not improved on it"
    assert (trainer.global_step, job.step, job.met) == (10, 10, 1)


def test_callback_of_one_rank_that_ends_training_is_named(fit):
    from lightning.pytorch.callbacks import Callback

    class Ends(Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop |= trainer.global_step == 4

    job = ScriptedJob()
    job.apart = "rank 0 is after step 4 while rank 1 computes step 5"
    with capture_logs() as lines, pytest.raises(RanksDiverged, match="after step 4 while"):
        fit(job, callbacks=[Ends()])
    assert [line["event"] for line in lines if line.get("step") == 4] == [
        "Ends.on_train_batch_end() has ended training; if it does so on one rank only, call job.stop() there"
    ]
    assert job.step == 4


def test_the_loss_scale_is_tracked_and_the_optimizer_steps_by_it(fit):
    from lightning.pytorch.plugins import MixedPrecision

    from elastrain_frameworks.lightning_trainer import ElasticTrainerStrategy

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
        ({"limit_train_batches": 1}, "limit_train_batches: 1: .* smaller data set"),
        ({"limit_train_batches": 0.5}, "limit_train_batches: 0.5: .* smaller data set"),
        ({"sync_batchnorm": True}, "sync_batchnorm: true: .*convert_sync_batchnorm"),
    ],
)
def test_an_option_without_a_meaning_is_refused_by_its_name(fit, options, message):
    with pytest.raises(ValueError, match=message):
        fit(ScriptedJob(), **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ModelCheckpoint", {"save_last": "link"}, r"ModelCheckpoint\(save_last\): link: .* save_last=True"),
        ("ModelCheckpoint", {"train_time_interval": timedelta(1)}, r"train_time_interval\): .* every_n_train_steps"),
        ("EMAWeightAveraging", {}, "WeightAveraging: a callback: .* job.track"),
        ("GradientAccumulationScheduler", {"scheduling": {1: 2}}, "Scheduler: a callback: .* global_batch_size"),
        ("LearningRateFinder", {}, "LearningRateFinder: a callback: .* choose the rate"),
    ],
)
def test_a_callback_without_a_meaning_is_refused_by_its_name(fit, name, options, message):
    from lightning.pytorch import callbacks

    if not hasattr(callbacks, name):
        pytest.skip(f"this Lightning has no {name}")
    with pytest.raises(ValueError, match=message):
        fit(ScriptedJob(), callbacks=[getattr(callbacks, name)(**options)], enable_checkpointing=True)


def test_a_logger_whose_run_a_new_rank_0_could_not_go_on_with_is_refused(fit):
    logger = fit.recorded()
    type(logger).version = None
    with pytest.raises(ValueError, match=r"logger: recorded: .* the id of a run"):
        fit(ScriptedJob(), logger=logger)


def test_everything_that_is_refused_is_named_at_once(fit):
    with pytest.raises(ValueError, match=r"(?s)accumulate_grad_batches.*limit_train_batches"):
        fit(ScriptedJob(), accumulate_grad_batches=2, limit_train_batches=2)


def test_a_module_with_its_own_optimization_is_refused(fit):
    module = fit.module()
    module.automatic_optimization = False
    with pytest.raises(ValueError, match=r"automatic_optimization: false: .* Fabric"):
        fit(ScriptedJob(), module)


def logs(module, hook="training_step", **options):
    """A module that logs 4 in ``hook``."""

    class Logs(module):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if hook == "training_step":
                self.log("load", torch.tensor(4.0), **options)
            return loss

        def on_train_batch_end(self, *args):
            super().on_train_batch_end(*args)
            if hook == "on_train_batch_end":
                self.log("load", torch.tensor(4.0), **options)

    return Logs()


@pytest.mark.parametrize("options", [{}, {"sync_dist": True}, {"reduce_fx": "sum"}])
@pytest.mark.parametrize("on_epoch", [False, True])
def test_what_training_step_logs_is_the_number_of_the_global_batch(fit, options, on_epoch):
    job, logger = ScriptedJob("committed", "discarded", "partial", "committed"), fit.recorded()
    job.others = {"training_step.load": 12.0, "training_step.load/weight": 6.0}
    if "reduce_fx" in options:
        job.others["training_step.load/weight"] = 1.0
    module = logs(fit.module, on_step=True, on_epoch=on_epoch, **options)
    fit(job, module, logger=logger, log_every_n_steps=1)
    name = "load_step" if on_epoch else "load"
    steps = [metrics[name] for _, metrics in logger.kept if name in metrics]
    if "reduce_fx" in options:
        assert steps == pytest.approx([16, 20, *[16] * 8]), "the second has two micro-batches"
        whole = [sum(steps[:5]), sum(steps[5:])]
    else:
        of_one, of_two = (4 * 4 + 12) / 10, (8 * 4 + 12) / 14
        assert steps == pytest.approx([of_one, of_two, *[of_one] * 8])
        whole = [(40 * of_one + 14 * of_two) / 54, of_one]
    if on_epoch:
        assert [m["load_epoch"] for _, m in logger.kept if "load_epoch" in m] == pytest.approx(whole)


@pytest.mark.parametrize("script", [{"start": 7}, {"outcomes": ["committed"] * 7 + ["adopted"]}])
def test_sums_of_an_epoch_that_come_from_a_peer_are_continued(fit, script):
    def rows(job):
        class Logs(fit.module):
            def training_step(self, batch, batch_idx):
                self.log("load", float(job.step), on_step=False, on_epoch=True)
                return super().training_step(batch, batch_idx)

        logger = fit.recorded()
        fit(job, Logs(), logger=logger)
        return [metrics["load"] for _, metrics in logger.kept if "load" in metrics]

    peer = ScriptedJob()
    assert rows(peer) == [2.0, 7.0]
    job = ScriptedJob(*script.pop("outcomes", ()), peer=peer, **script)
    assert rows(job)[-1] == 7.0


@pytest.mark.parametrize(
    ("hook", "options", "message"),
    [
        ("training_step", {"reduce_fx": "max"}, r"self.log\('load', reduce_fx='max'\): only sums and means"),
        ("on_train_batch_end", {"sync_dist": True}, r"'load', sync_dist=True\) in on_train_batch_end\(\): .*its own"),
    ],
)
def test_a_number_that_cannot_be_that_of_the_global_batch_is_refused_by_its_name(fit, hook, options, message):
    with pytest.raises(ValueError, match=message):
        fit(ScriptedJob(), logs(fit.module, hook, **options))


def test_a_metric_that_training_updates_is_refused_before_the_first_step(fit):
    from torchmetrics import MeanMetric

    class Updates(fit.module):
        def __init__(self):
            super().__init__()
            self.mean = MeanMetric()

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.mean.update(loss)
            return loss

    module = Updates()
    with pytest.raises(ValueError, match="MeanMetric of torchmetrics: log the mean of each batch"):
        fit(ScriptedJob(), module)
    assert module.executions == 1, "in the warm-up"


@pytest.mark.parametrize("late", [{}, {"sync_dist": True}])
def test_name_that_the_first_batch_does_not_log_is_rank_0s_part_or_refused(fit, late):
    class Late(fit.module):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if self.global_step:
                self.log("late", loss, **late)
            return loss

    if late:
        with pytest.raises(ValueError, match=r"'late', sync_dist=True\): the first batch has not logged it"):
            fit(ScriptedJob(), Late())
    else:
        trainer, _ = fit(ScriptedJob(), Late())
        assert trainer.global_step == 10


def test_a_reduction_in_training_names_the_way_out(fit):
    class Reduces(fit.module):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.all_gather(torch.ones(1))

    with pytest.raises(RuntimeError, match=r"job\.loss"):
        fit(ScriptedJob(), Reduces())
