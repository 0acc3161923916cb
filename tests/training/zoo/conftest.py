"""Jobs that run a script of the zoo, one of them disturbed at moments that a seed chooses."""

from __future__ import annotations

import os
import random
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from differences import differences
from elastrain.api.keys import JobKeys
from elastrain.api.records import Outcome, Phase
from elastrain_cli.etcd_server import EtcdServer
from real_job import Job
from warm import Warm

ZOO = Path(__file__).parents[3] / "examples" / "zoo"
RUNNER = Path(__file__).with_name("runner.py")
FREE = 10**9
NUDGE = 0.1
"""Seconds after which ranks that wait for the test may compute one more step: a change happens between two steps."""


class ZooJob(Job):
    """A job whose ranks run a script of the zoo by ``runner.py``: no further than :meth:`allow` says."""

    def __init__(self, *place: Any, path: Path, arguments: Sequence[str], variables: dict[str, str]) -> None:
        super().__init__(*place)
        self.out = self.folder / "out.pt"
        self.rank = [sys.executable, str(RUNNER), str(self.folder), str(path), "--out", str(self.out), *arguments]
        self.variables = variables
        self.started = 0
        self.allow(0)

    def add(self, count: int = 1, **variables: str) -> None:
        """Start workers, named by ordinals, as the operator does. ``variables``: of these, beside those of all."""
        for _ in range(count):
            self.start(f"w{self.started}", command=self.rank, **self.variables, **variables)
            self.started += 1

    def allow(self, step: int) -> None:
        """No rank computes a step after this one."""
        self.allowed = step
        new = self.folder / "allowed.new"
        new.write_text(str(step))
        new.replace(self.folder / "allowed")

    def reach(self, step: int) -> None:
        """Ranks have committed ``step`` and are in the loop body of the next."""
        self.allow(step)
        self.wait(f"step {step}", lambda: self.last_step() >= step)

    def changes(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for ``condition``; ranks take single steps meanwhile."""

        def nudged() -> bool:
            if condition():
                return True
            if self.last_step() >= self.allowed:
                self.allow(self.allowed + 1)
            return False

        self.wait(what, nudged, NUDGE)

    def ready(self, worker: str, restarts: int = 0) -> None:
        """Wait until this worker waits for a generation, having started so often again."""

        def condition() -> bool:
            member = self.members().get(worker)
            return member is not None and member.phase == Phase.READY and member.restarts == restarts

        self.wait(f"{worker} to be ready", condition)

    def whole(self, *workers: str) -> bool:
        """Whether they train in the newest generation, and each has received its whole state.

        Until then the others hold the only state, and a loss of them ends the job.
        """
        return self.entered(*workers) and not any(self.members()[worker].learning for worker in workers)

    def finished(self) -> dict[str, Any]:
        """Let it run to its end; what rank 0 saved."""
        self.allow(FREE)
        for worker in self.workers.values():
            outcome = worker.ends().outcome
            assert outcome in (Outcome.FINISHED, Outcome.DRAINED), f"{worker.name}: {outcome}\n{self.story()}"
        self.verdict()
        return torch.load(self.out, weights_only=False)


class Disturber:
    """Does to a job, at moments of ``seed``, what a cluster does; each once: grow, kill, drain, shrink."""

    def __init__(self, job: ZooJob, seed: int) -> None:
        self.job, self.random = job, random.Random(seed)
        self.alive = ["w0", "w1"]
        self.done: list[str] = []
        self.restarts: dict[str, int] = {}

    def run(self) -> None:
        self.job.want(2)
        self.job.add(2)
        self.job.wait("both to train", lambda: self.job.entered("w0", "w1"))
        step = 0
        for disturbance in self.order():
            step = max(self.job.allowed, step) + self.random.randint(1, 6)
            self.job.reach(step)
            if self.random.random() < 0.5:  # not in the loop body, but anywhere
                self.job.allow(step + 2)
            generation = self.job.generation().number
            self.done.append(f"{disturbance.__name__} after step {step}")
            disturbance()
            self.job.changes(
                f"{self.alive} to train, {self.done}",
                lambda before=generation: self.job.generation().number > before and self.job.whole(*self.alive),
            )

    def order(self) -> list[Callable[[], None]]:
        """One in which there are always survivors."""
        kill = self.random.choice([self.kill_rank, self.kill_agent])
        while True:
            order = self.random.sample([self.grow, kill, self.drain, self.shrink], 4)
            sizes, size = [], 2
            for disturbance in order:
                sizes.append(size - (disturbance != self.grow))
                size += {self.grow: 1, kill: 0}.get(disturbance, -1)
            if min(sizes) > 0:
                return order

    def victim(self) -> str:
        return self.random.choice(self.alive)

    def join(self) -> None:
        self.job.add()
        new = f"w{self.job.started - 1}"
        self.job.ready(new)
        self.alive.append(new)

    def grow(self) -> None:
        self.job.want(len(self.alive) + 1)
        self.join()

    def kill_rank(self) -> None:
        """Its agent starts it again."""
        victim, before = self.victim(), self.job.generation().number
        self.job[victim].kill_rank()
        self.job.changes("the others to go on", lambda: self.job.generation().number > before)
        self.job.ready(victim, restarts=1)

    def kill_agent(self) -> None:
        """A new worker takes its place."""
        victim = self.victim()
        self.job[victim].process.send_signal(signal.SIGKILL)
        self.job[victim].process.wait(10)
        self.alive.remove(victim)
        del self.job.workers[victim]
        self.join()

    def drain(self) -> None:
        """SIGTERM, as from a kubelet."""
        victim = self.victim()
        self.job.want(len(self.alive) - 1)
        self.job[victim].process.send_signal(signal.SIGTERM)
        self.alive.remove(victim)

    def shrink(self) -> None:
        victim = self.victim()
        self.job.want(len(self.alive) - 1, leaving=(victim,))
        self.alive.remove(victim)


@pytest.fixture
def zoo_job(warm: Warm, etcd: EtcdServer, tmp_path: Path) -> Iterator[Callable[..., ZooJob]]:
    """``zoo_job("mnist", "--epochs", "3", PORTIONS="1")``: a job that runs ``examples/zoo/mnist/elastic.py``.

    ``path``: another form of the script.
    """
    jobs: list[ZooJob] = []

    def make(script: str, *arguments: str, path: Path | None = None, **variables: str) -> ZooJob:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        path = path or ZOO / script / "elastic.py"
        if "from sklearn" in path.read_text():
            warm.imports("sklearn.datasets")
        keys = JobKeys("zoo", script.replace("_", "-"), uuid.uuid4().hex)
        jobs.append(ZooJob(warm, folder, etcd, keys, path=path, arguments=arguments, variables=variables))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture
def survives(zoo_job: Callable[..., ZooJob]) -> Callable[..., None]:
    """``survives("mnist", seed=1)``: the disturbed job must end with what an undisturbed one saves."""

    def check(
        script: str,
        *arguments: str,
        seed: int,
        bitwise: bool = False,
        path: Path | None = None,
        atol: float = 1e-10,
    ) -> None:
        """``path``: another form of the script. The seed chooses whether a state that can travels in portions."""
        chosen = random.Random(seed)
        variables = {"PORTIONS": "1"} if chosen.random() < 0.3 else {}
        undisturbed = zoo_job(script, *arguments, path=path)
        size = chosen.choice([1, 2])
        undisturbed.want(size)
        undisturbed.add(size)
        undisturbed.allow(FREE)
        disturbed = zoo_job(script, *arguments, path=path, **variables)
        disturber = Disturber(disturbed, seed)
        try:
            disturber.run()
            one, other = undisturbed.finished(), disturbed.finished()
            assert undisturbed.last_step() == disturbed.last_step()
            apart = list(differences(one, other, atol=0.0 if bitwise else atol))
            assert not apart, "it ends with another result:\n" + "\n".join(apart[:20])
        except BaseException as e:
            e.add_note(f"seed {seed} (ELASTRAIN_ZOO_SEED={seed}), {variables or 'state at once'}: {disturber.done}")
            raise

    return check


@pytest.fixture
def seed() -> int:
    """A new one for each test, or that of a failure: from ELASTRAIN_ZOO_SEED."""
    return int(os.environ.get("ELASTRAIN_ZOO_SEED") or random.SystemRandom().randrange(1_000_000))
