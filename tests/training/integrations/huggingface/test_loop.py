"""transformers' own loop over a scripted job: whatever becomes of its bodies, it has done what it does alone."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from elastrain.elastic.comm.header import RanksDiverged
from scripted_loop import Killed, ScriptedJob

CLOCKS = ("runtime", "per_second", "flos")
STEPS = 10


@pytest.fixture
def train(require, tmp_path):
    """``train(job)``: two epochs of five steps, by the plain Trainer without a job; what it has seen and left."""
    require("transformers", "ELASTRAIN_REQUIRE_HUGGINGFACE")
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import ExportableState

    from elastrain_frameworks.huggingface import ElasticTrainer, ElasticTrainingArguments

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()

        def forward(self, x, labels):
            loss = nn.functional.mse_loss(self.layers(x), labels)
            return {"loss": loss, "logits": self.layers(x)}

    class Events(TrainerCallback, ExportableState):
        def __init__(self) -> None:
            self.seen: dict[str, int] = {}

        def state(self):
            return {"args": {}, "attributes": {"seen": self.seen}}

        def count(self, event):
            self.seen[event] = self.seen.get(event, 0) + 1

    for name in ("epoch_begin", "step_begin", "optimizer_step", "step_end", "epoch_end", "evaluate", "log", "save"):
        setattr(Events, f"on_{name}", lambda self, *_, _name=name, **__: self.count(_name))

    x = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    data = [{"x": row, "labels": row.sum().sin().reshape(1)} for row in x]

    def run(job=None, mixin=object, folder="out", **options):
        events = Events()
        base, arguments = (Trainer, TrainingArguments) if job is None else (ElasticTrainer, ElasticTrainingArguments)
        given = {
            "per_device_train_batch_size": 8, "num_train_epochs": 2, "train_sampling_strategy": "sequential",
            "learning_rate": 0.05, "lr_scheduler_type": "cosine", "logging_steps": 3, "eval_strategy": "steps",
            "eval_steps": 2, "save_strategy": "best", "metric_for_best_model": "loss", "load_best_model_at_end": True,
            "report_to": [], "use_cpu": True, "disable_tqdm": True, **options,
        }  # fmt: skip
        patience, ends, more = given.pop("patience", None), given.pop("ends", None), given.pop("more", [])

        class Ends(TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                if state.global_step == 4:
                    ends(control, args)

        trainer = type("Mine", (base,) if mixin is object else (mixin, base), {})(
            model=Net(), train_dataset=data, eval_dataset=data[:16],
            args=arguments(output_dir=str(tmp_path / folder), **given),
            callbacks=[events, *([EarlyStoppingCallback(patience, 0.05)] if patience else []),
                       *([Ends()] if ends else []), *more],
            **({} if job is None else {"job": job}),
        )  # fmt: skip
        trainer.train()
        state = trainer.state
        rows = [{k: v for k, v in row.items() if not any(c in k for c in CLOCKS)} for row in state.log_history]
        best = state.best_model_checkpoint and state.best_model_checkpoint.rpartition("/")[2]
        return {
            "steps": state.global_step, "epoch": state.epoch, "events": events.seen,
            "best": (state.best_metric, state.best_global_step, best),
            "files": sorted(p.name for p in (tmp_path / folder).glob("checkpoint-*/*") if p.suffix != ".bin"),
            "rows": rows, "parameters": [p.detach().clone() for p in trainer.model.parameters()],
        }  # fmt: skip

    return run


def assert_equal(one, other, *, files=True):
    for key in one.keys() - {"rows", "parameters"} - (set() if files else {"files"}):
        assert one[key] == other[key], key
    assert [row.keys() for row in one["rows"]] == [row.keys() for row in other["rows"]]
    for mine, its in zip(one["rows"], other["rows"], strict=True):
        assert mine == pytest.approx(its, rel=1e-6), "transformers adds losses in float32"
    for mine, its in zip(one["parameters"], other["parameters"], strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "outcomes",
    [
        (),
        ("partial", "committed", "discarded", "partial", "partial", "committed"),
        ("committed", "committed", "adopted"),
        ("committed", "discarded", "adopted", "adopted"),
        ("committed",) * 4 + ("adopted",),
        ("committed",) * 9 + ("adopted",),
    ],
)
def test_loop_is_that_of_the_trainer_alone_whatever_becomes_of_its_bodies(train, outcomes):
    peer = ScriptedJob()
    train(peer, folder="peer")
    assert_equal(train(), train(ScriptedJob(*outcomes, peer=peer), folder="own"))


@pytest.mark.parametrize("start", [1, 5, 7, 9])
def test_joiner_ends_as_if_it_had_been_there_from_the_beginning(train, start):
    peer = ScriptedJob()
    train(peer, folder="peer")
    alone = train()
    joined = train(ScriptedJob(start=start, peer=peer, rank=1), folder="peer")
    assert_equal(alone, joined)


def clips_more(control, args):
    args.max_grad_norm = 0.01


def test_joiner_has_the_arguments_that_a_callback_has_changed(train):
    options, peer = {"optim": "sgd", "ends": clips_more}, ScriptedJob()
    train(peer, folder="peer", **options)
    assert_equal(train(**options), train(ScriptedJob(start=6, peer=peer, rank=1), folder="peer", **options))


@pytest.mark.parametrize(
    ("outcomes", "start"), [(["discarded"], 3), (["discarded"], 6), (["committed"] * 3 + ["adopted"], 0)]
)
def test_what_a_callback_and_a_derived_trainer_hold_beside_the_model_is_that_of_the_trainer_alone(
    train, outcomes, start
):
    """As TRL's reference model, a teacher and an average; and events change the model and options of the optimizer."""
    from transformers import TrainerCallback

    class Follows(TrainerCallback):
        def __init__(self):
            self.reference, self.average = nn.Linear(4, 8).double(), {"bias": torch.zeros(8, dtype=torch.float64)}
            nn.init.constant_(self.reference.weight, 0.5)

        def on_step_end(self, args, state, control, model, optimizer, **_):
            self.reference.weight.data.lerp_(model.layers[0].weight.data, 0.1)
            self.average["bias"].mul_(0.9).add_(model.layers[0].bias.data)
            model.layers[2].bias.data.mul_(0.9)
            optimizer.param_groups[0]["weight_decay"] += 0.01

    class Distils:
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.teachers = [nn.Linear(8, 1).double().requires_grad_(False)]
            nn.init.constant_(self.teachers[0].weight, 0.5)

        def compute_loss(self, model, *args, **kwargs):
            loss = super().compute_loss(model, *args, **kwargs)
            if not model.training:
                return loss
            return loss + (model.layers[2].weight - self.teachers[0].weight).square().sum()

        def create_optimizer(self, *args):
            made = super().create_optimizer(*args)
            made.register_step_post_hook(lambda *_: self.follow())
            return made

        def follow(self):
            self.teachers[0].weight.data.lerp_(self.model.layers[2].weight.data, 0.1)

    alone, there, joins = Follows(), Follows(), Follows()
    options = {"mixin": Distils, "optim": "sgd"}
    expected = train(more=[alone], **options)
    peer = ScriptedJob()
    found = [
        train(peer, folder="peer", more=[there], **options),
        train(ScriptedJob(*outcomes, start=start, peer=peer, rank=1), folder="peer", more=[joins], **options),
    ]
    for result, callback in zip(found, (there, joins), strict=True):
        assert_equal(expected, result)
        torch.testing.assert_close(callback.reference.weight, alone.reference.weight, rtol=0, atol=1e-12)
        torch.testing.assert_close(callback.average, alone.average, rtol=0, atol=1e-12)


def test_a_model_that_a_callback_makes_when_training_has_begun_is_refused_by_name(train):
    from transformers import TrainerCallback

    class Begins(TrainerCallback):
        def on_train_begin(self, *_, **__):
            self.average = nn.Linear(1, 1)

    with pytest.raises(ValueError, match=r"Begins_average: made when training had begun.* in __init__\(\)"):
        train(ScriptedJob(), more=[Begins()])


def test_joiner_of_a_job_that_has_finished_ends_at_its_last_step(train):
    peer = ScriptedJob()
    train(peer, folder="peer")
    joined = train(ScriptedJob(start=STEPS, peer=peer, rank=1), folder="peer")
    assert (joined["steps"], joined["best"]) == (STEPS, train()["best"])


def test_early_stop_ends_after_the_same_step_as_alone(train):
    options = {"num_train_epochs": 40, "patience": 2, "learning_rate": 0.5}
    job = ScriptedJob("discarded", "partial")
    alone, elastic = train(**options), train(job, folder="own", **options)
    assert alone["steps"] < 200
    assert_equal(alone, elastic)
    assert job.met == 1, "ranks meet before they read the best checkpoint"


def ends_training(control, args):
    control.should_training_stop = True


def ends_epoch(control, args):
    control.should_epoch_stop = True


EVERY_2 = {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": False}


def test_callback_of_one_rank_that_ends_training_is_named_and_loses_no_checkpoint(train, tmp_path):
    job = ScriptedJob()
    job.apart = "rank 0 is after step 4 while rank 1 computes step 5"
    with capture_logs() as lines, pytest.raises(RanksDiverged, match="after step 4 while"):
        train(job, ends=ends_training, **EVERY_2)
    assert [line["event"] for line in lines if line.get("step") == 4] == [
        "ends_training() has ended training; if it does so on one rank only, call job.stop() there"
    ]
    assert job.step == 4
    assert (tmp_path / "out/checkpoint-4/trainer_state.json").exists()


def test_callback_that_ends_an_epoch_is_named_and_loses_no_checkpoint(train, tmp_path):
    with pytest.raises(ValueError, match=r"should_epoch_stop, set in ends_epoch\(\): not in an elastic job; .*order"):
        train(ScriptedJob(), ends=ends_epoch, **EVERY_2)
    assert (tmp_path / "out/checkpoint-2/trainer_state.json").exists()


def test_callbacks_of_all_ranks_that_end_training_end_it_as_alone(train):
    options = {"ends": ends_training, **EVERY_2}
    assert_equal(train(**options), train(ScriptedJob("discarded"), folder="own", **options))


def test_overridden_training_step_trains(train):
    class Penalised:
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            loss = loss + 0.1 * sum(p.square().sum() for p in self.model.parameters())
            self.accelerator.backward(loss)
            return loss.detach()

    assert_equal(train(mixin=Penalised), train(ScriptedJob("discarded"), mixin=Penalised, folder="own"))


def test_counter_of_a_derived_trainer_leaves_out_bodies_that_do_not_count(train):
    seen = []

    class Counts:
        bodies = 0

        def compute_loss(self, *args, **kwargs):
            if not self.control.should_evaluate:
                self.bodies += 1
                seen.append(self.bodies)
            return super().compute_loss(*args, **kwargs)

    train(ScriptedJob("committed", "discarded", "discarded"), mixin=Counts, eval_strategy="no", save_strategy="no",
          load_best_model_at_end=False)  # fmt: skip
    assert seen == [1, 1, 2, 2, *range(2, STEPS + 1)]


def test_numbers_that_a_derived_trainer_collects_are_those_of_the_global_batch(train):
    class Collects:  # as TRL's trainers do
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._metrics, self._total_train_tokens = {"train": defaultdict(list)}, 0

        def compute_loss(self, model, inputs, **kwargs):
            if model.training:
                self._metrics["train"]["score"].append(0.25)
                self._total_train_tokens += 10
                self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
            return super().compute_loss(model, inputs, **kwargs)

        def log(self, logs, *args):
            lists = self._metrics["train"] if "loss" in logs else {}
            super().log(logs | {name: sum(values) / len(values) for name, values in lists.items()}, *args)
            lists.clear()

    job = ScriptedJob("committed", "discarded", "partial", "committed")
    job.others = {"score": 24 * 0.75, "weight": 24, "num_tokens": 30}
    rows = [row for row in train(job, mixin=Collects)["rows"] if "loss" in row]
    of_two = (2 * 8 * 0.25 + 24 * 0.75) / 40
    of_one = (8 * 0.25 + 24 * 0.75) / 32
    assert [row["score"] for row in rows] == pytest.approx([(2 * of_one + of_two) / 3, of_one, of_one])
    assert [row["num_tokens"] for row in rows] == [3 * 40 + 10, 6 * 40 + 10, 9 * 40 + 10], "one has two micro-batches"


def test_overridden_dataloader_keeps_its_order(train):
    class Backwards:
        def get_train_dataloader(self):
            order = [*reversed(range(len(self.train_dataset)))]
            return torch.utils.data.DataLoader(self.train_dataset, 8, sampler=order, collate_fn=self.data_collator)

    job = ScriptedJob()
    train(job, mixin=Backwards)
    assert [*job.options["sampler"]] == [*reversed(range(40))]


def test_dataloader_whose_order_cannot_be_the_jobs_is_refused_by_name(train):
    class Cut:
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(self.train_dataset, batch_sampler=[[0, 1], [2]])

    with pytest.raises(ValueError, match=r"get_train_dataloader\(\): must be a torch DataLoader with a batch_size"):
        train(ScriptedJob(), mixin=Cut)


def test_accumulation_counts_as_the_whole_batch_does(train):
    """Not compared with the Trainer's own accumulation: that of transformers 5.3 scales gradients twice."""
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    assert_equal(train(), train(ScriptedJob("discarded"), folder="own", **options))


def test_plateau_follows_the_evaluations(train):
    options = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    assert_equal(train(**options), train(ScriptedJob("discarded"), folder="own", **options))


@pytest.mark.parametrize("at", [4, STEPS])
def test_writer_that_is_lost_before_its_files_are_complete_is_replaced(train, tmp_path, at):
    """Rank 1 becomes rank 0 with the next execution: the former one has not taken part in it."""
    options = {"save_strategy": "steps", "save_steps": at, "load_best_model_at_end": False}
    job = ScriptedJob(*["committed"] * at, "discarded", rank=1)
    if at < STEPS:
        job.ranks = {at + 2: 0}
    else:
        job.rank_at_end = 0
    train(job, **options)
    assert (tmp_path / f"out/checkpoint-{at}/model.safetensors").exists()
    assert (tmp_path / f"out/checkpoint-{at}/trainer_state.json").exists()


@pytest.mark.parametrize("at", [4, STEPS])
@pytest.mark.parametrize("rank", [0, 1])
def test_checkpoint_of_a_step_behind_which_the_ranks_switch_is_that_of_the_next_rank_0(train, tmp_path, at, rank):
    options = {"save_strategy": "steps", "save_steps": at, "load_best_model_at_end": False}
    job = ScriptedJob(rank=rank)
    job.switch_behind, job.ranks = {at}, {at + 1: 1 - rank}
    if at == STEPS:
        job.rank_at_end = 1 - rank
    train(job, **options)
    assert (tmp_path / f"out/checkpoint-{at}/model.safetensors").exists() == (rank == 1)


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = {path.parent for path in folder.rglob("*tfevents*")}
    events = EventAccumulator(str(run)).Reload()
    names = [name for name in events.Tags()["scalars"] if not any(clock in name for clock in CLOCKS)]
    return {name: [(e.step, pytest.approx(e.value)) for e in events.Scalars(name)] for name in names}


@pytest.mark.parametrize(("dies_at", "resumes_at"), [(1, 0), (3, 0), (4, 0), (8, 0), (3, 1), (4, 2), (8, 6)])
@pytest.mark.usefixtures("clocks_behind")
def test_events_of_tensorboard_are_those_of_the_trainer_alone_if_rank_0_is_lost(train, tmp_path, dies_at, resumes_at):
    """``resumes_at``: all ranks are lost, and the job goes on from its checkpoint of this step."""
    options = {"report_to": ["tensorboard"], "logging_steps": 1}
    train(folder="alone", **options)
    first = ScriptedJob()
    first.dies_at = dies_at
    with pytest.raises(Killed):
        train(first, **options)
    if resumes_at:
        second = ScriptedJob(start=resumes_at, peer=first)
    else:
        second = ScriptedJob(*["committed"] * first.step, "discarded", peer=first, rank=1)
        second.ranks = {first.step + 2: 0}
    train(second, **options)
    assert scalars(tmp_path / "out") == scalars(tmp_path / "alone")


def test_transformers_without_a_seam_is_refused_by_its_name(train, monkeypatch):
    from transformers import Trainer

    from elastrain_frameworks.huggingface import loop as trainer_loop

    overridden = {
        name for name, value in vars(trainer_loop.Seams).items() if callable(value) and hasattr(Trainer, name)
    }
    assert overridden == {*trainer_loop.SEAMS}
    monkeypatch.delattr(Trainer, "_init_training_state")
    with pytest.raises(RuntimeError, match=r"has no Trainer\._init_training_state, where"):
        train(ScriptedJob())
