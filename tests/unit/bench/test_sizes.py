"""The simulator beside which the operator sizes jobs on a control plane, and its figures."""

from __future__ import annotations

import pytest

from bench_sizes import report
from bench_sizes.simulated import Cluster, Delays, Outcome, play
from bench_sizes.task import Task, Training, of_kit, placed
from elastrain_operator.allocation.snapshot import Policy, Sharing

EFFICIENT = Policy(sharing=Sharing.EFFICIENT)
NODE = Cluster(1, 4)


def task(name: str, *, fixed: float = 0.0, steps: float = 1000, arrives: float = 0.0, most: int = 4) -> Task:
    """A step takes 0.1 s with one worker; ``fixed``: the part that more do not shorten."""
    return Task(name, "made", arrives, most, steps, lambda p: 0.1 * (fixed + (1 - fixed) / sum(p)))


def test_steps_made_before_a_rescale_are_kept_and_its_pause_makes_none():
    training = Training(task("a"))
    training.enter(0.0, (1,), pause=2.0)
    assert training.steps(12.0) == pytest.approx(100)
    training.enter(12.0, (4,), pause=2.0)
    assert training.steps(13.0) == pytest.approx(100)
    assert training.ends == pytest.approx(12 + 2 + 900 * 0.025)
    assert (training.rescales, training.pause) == (1, pytest.approx(2.025))


def test_a_job_alone_takes_its_work_on_all_accelerators_and_the_cost_of_its_start():
    made = play([task("a", arrives=5.0)], NODE, EFFICIENT, pause=1.0)
    assert made["a"].ended == pytest.approx(5 + 1 + 1000 * 0.025)
    assert made["a"].rescales == 0
    assert made["a"].gpu_seconds == pytest.approx(4 * 26)


def test_workers_train_only_after_the_delays_of_the_cluster():
    made = play([task("a", arrives=5.0)], NODE, EFFICIENT, 1.0, Delays(admission=2.0, start=3.0))
    assert made["a"].began == pytest.approx(5 + 2 + 3)
    assert made["a"].ended == pytest.approx(5 + 2 + 3 + 1 + 1000 * 0.025)


def test_accelerators_go_to_the_job_that_gets_faster():
    jobs = [task("badly", fixed=0.8, steps=4000, most=8), task("well", steps=8000, arrives=60.0, most=8)]
    equal, efficient = (play(jobs, Cluster(1, 8), Policy(sharing=s), 1.0) for s in (Sharing.EQUAL, Sharing.EFFICIENT))
    assert efficient["well"].ended < equal["well"].ended - 10
    assert efficient["badly"].rescales > 0


def test_more_jobs_than_accelerators_all_end_and_no_accelerator_is_used_twice():
    jobs = [task(f"job-{i}", steps=300, arrives=float(i)) for i in range(8)]
    made = play(jobs, NODE, EFFICIENT, 1.0, Delays(0.5, 0.3, 1.0))
    assert made.keys() == {job.name for job in jobs}
    assert sum(o.gpu_seconds for o in made.values()) <= 4 * max(o.ended for o in made.values())


def test_workers_are_counted_by_node():
    assert placed(["b", "a", "b", "b"]) == (1, 3)


def test_jobs_of_the_kit_take_the_steps_that_their_progress_needs(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(
        "class App:\n"
        "    name, init, epochs, goals, min_local = 'a', 32, 2, [0.0, 100.0, 300.0], 8\n"
        "    def split(self, batch, gpus): return batch // gpus, 1\n"
        "    def step_time(self, placement, micro): return 3.0, 1.0\n"
        "    def noise_at(self, batch, epoch): return (1.0, 0.0) if epoch == 0 else (0.0, 1.0)\n"
        "def load(): return {'a': App()}\n"
        "def table(_): return [dict(load='1.0', workload='3', name='a-0', time='80', application='a', batch='64')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "model", raising=False)
    [found] = of_kit(tmp_path, "1.0", "3", 5, gpus=16, faster=40)
    monkeypatch.delitem(__import__("sys").modules, "model", raising=False)
    assert found.arrives == 2
    assert found.most == 8  # 8 samples are the least of a worker
    assert found.steps == pytest.approx(100 / 1 + 200 / 2)  # noise makes a batch of twice the size worth twice a step
    assert found.seconds((2, 2)) == pytest.approx((3 + 1 * 2) / 40)


def test_the_ratio_compares_with_the_simulator_that_has_the_delays_of_the_cluster():
    jobs = [task("a"), task("b", arrives=10.0)]
    ran = {"a": Outcome(1.0, 30.0, 0, 100.0), "b": Outcome(11.0, 60.0, 1, 100.0)}
    simulated = [{"a": Outcome(1.0, 30.0, 0, 90.0), "b": Outcome(11.0, 50.0, 0, 90.0)}] * 2
    measured = report.measured(jobs, ran, Delays(1.0, 0.5, 1.5), 60.0, {"operator": 6.0}, 100)
    shown = report.simulation("simulator", jobs, simulated)
    assert (measured.mean, shown.mean) == (40.0, 35.0)
    [a, b] = report.by_job(jobs, ran, simulated, simulated)
    assert (a.jct, a.simulated, b.jct, b.simulated) == (30.0, 30.0, 50.0, 40.0)
