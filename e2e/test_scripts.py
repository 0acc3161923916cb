"""Scripts that were not written for elastrain, each by the manifest of its example: from one worker to two, then the
first one's pod is deleted, and the end is read.

All of them run at the same time, since what each takes is mostly waiting; a test reads how its own fared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.commands import eventually, kubectl, run
from harness.example import manifest_of
from harness.jobs import RESCALE, Audit, Job, make_folders

pytestmark = [pytest.mark.alone, pytest.mark.nightly]
IN_PROCESS = {
    "04-five-lines": {"EPOCHS": "65", "STEP_SECONDS": "0.08"},
    "05-huggingface": {"EPOCHS": "24", "STEP_SECONDS": "0.1"},  # sixteen steps each, of four or two times that
    "06-lightning": {"EPOCHS": "65", "STEP_SECONDS": "0.08"},
}
RESTARTED = {
    "03-torchrun": {"EPOCHS": "350", "STEP_SECONDS": "0.02"},
    "07-mpirun": {"STEPS": "2400", "STEP_SECONDS": "0.05"},
    "08-tensorflow": {"EPOCHS": "60", "EPOCH_SECONDS": "0.5"},
}
"""Values of each example's environment, by which it trains for two minutes."""
START_TOGETHER = 300.0
"""Seconds for a worker to start while those of all examples import their frameworks: on two cores it has taken 136."""
TOGETHER = {"03-torchrun": "by 2 ranks", "07-mpirun": "by 2 processes", "08-tensorflow": "by 2 workers"}
"""What a restarted script prints once both train."""


@dataclass
class Story:
    """One example on its way."""

    example: str
    job: Job
    printed: str = ""
    """By all pods so far, the deleted one included."""
    seen: dict[str, Any] = field(default_factory=dict)
    """What its test asks for."""
    failure: AssertionError | None = None

    @property
    def place(self) -> str:
        return f"{self.example}/"

    def read(self) -> str:
        return "\n".join(self.job.logs(p["metadata"]["name"]) for p in self.job.pods if _ran(p))


def _ran(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") != "Pending")


def submitted(story: Story) -> None:
    values = {**IN_PROCESS, **RESTARTED}[story.example]
    make_folders(story.job.namespace, story.place)
    story.job.apply(manifest_of(story.example, values=values, place=story.place, gpus=0, replicas=1))


def both_train(story: Story) -> None:
    story.job.wait_size(2, START_TOGETHER)
    if sign := TOGETHER.get(story.example):
        eventually(f"it says {sign!r}", lambda: sign in story.read(), RESCALE, story.job.summary)
    if story.example == "07-mpirun":
        story.seen.setdefault("hosts", []).extend(hosts_of(story.job))
    if story.example == "04-five-lines" and "status" not in story.seen:
        story.seen["status"] = run("elastrain", "status", story.job.name, "-n", story.job.namespace).stdout


def loses_its_first_pod(story: Story) -> None:
    story.seen["first"] = victim = sorted(story.job.workers)[0]
    story.printed += story.read()
    kubectl("delete", "pod", "-n", story.job.namespace, victim, "--wait=false")


def it_is_gone(story: Story) -> None:
    victim = story.seen["first"]
    gone = lambda: all(p["metadata"]["name"] != victim for p in story.job.pods)  # noqa: E731
    eventually("the pod is gone", gone, 60, story.job.summary)


def ended(story: Story) -> None:
    story.job.wait_success(stalled=180)
    story.printed += story.read()


def hosts_of(job: Job) -> list[tuple[str, str, str]]:
    """Of each worker: the hostfile, what the discovery script prints, and what both should say now."""
    expected = sorted(p["status"]["podIP"] for p in job.pods if p["metadata"]["name"] in job.workers)
    read = "cat /tmp/elastrain-mpi-*/hostfile; echo --; /tmp/elastrain-mpi-*/discover_hosts.sh"
    found = []
    for pod in job.workers:
        told = kubectl("exec", "-n", job.namespace, pod, "-c", "trainer", "--", "sh", "-c", read)
        hostfile, _, discovered = told.partition("--\n")
        found.append((hostfile, discovered, " ".join(expected)))
    return found


STEPS: list[Callable[[Story], object]] = [
    submitted,
    lambda story: story.job.wait_size(1, START_TOGETHER),
    lambda story: story.job.scale(2),
    both_train,
    loses_its_first_pod,
    it_is_gone,
    both_train,
    ended,
]


@pytest.fixture(scope="module")
def stories(common_namespace: str, request: pytest.FixtureRequest) -> dict[str, Story]:
    """Those of the examples whose tests were chosen, told to their ends; one that fails holds no other up."""
    items = request.session.items
    chosen = [i.callspec.params["example"] for i in items if hasattr(i, "callspec") and "example" in i.callspec.params]
    told = {e: Story(e, Job(common_namespace, e.partition("-")[2])) for e in [*IN_PROCESS, *RESTARTED] if e in chosen}
    for step in STEPS:
        for story in told.values():
            try:
                if story.failure is None:
                    step(story)
            except AssertionError as failure:
                story.failure = failure
    return told


@pytest.fixture
def story(stories: dict[str, Story], example: str) -> Story:
    return stories[example]


def reach_the_end(story: Story) -> None:
    if story.failure is not None:
        raise story.failure
    assert story.job.status["restarts"].get("user", 0) == 0, "a deleted pod is no failure of the script"


@pytest.mark.timeout(1200)  # the first test waits for all
@pytest.mark.parametrize("example", IN_PROCESS)
def test_a_script_goes_on_in_process_without_losing_or_repeating_a_sample(story: Story, example: str) -> None:
    reach_the_end(story)
    audit = Audit.of(story.job, story.place)
    epochs = int(IN_PROCESS[example]["EPOCHS"])
    assert (audit["epochs"], audit["lost"], audit["repeated"], audit["redone"]) == (epochs, 0, 0, 0)
    assert {len(pids) for pids in audit["pids"].values()} == {1}, "a worker's process was replaced"
    assert len(audit["pids"]) == 3, "the worker in the place of the lost one took part"
    if "status" in story.seen:
        assert re.search(r"epoch \d+, loss [0-9.]+", story.seen["status"]), story.seen["status"]
    if example == "05-huggingface":
        found = re.search(r"loss on 100 held-out windows: ([0-9.]+)", story.printed)
        assert found and float(found[1]) < 3.5, "it has learned nothing"
    else:
        assert re.search(r"accuracy on 360 held-out digits: 0\.9", story.printed)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("example", RESTARTED)
def test_a_script_that_restarts_goes_on_from_what_it_has_saved(story: Story, example: str) -> None:
    reach_the_end(story)
    match example:
        case "03-torchrun":
            assert "goes on after" in story.printed
            assert re.search(r"accuracy on 360 held-out digits: 0\.9", story.printed)
        case "07-mpirun":
            saved = json.loads((story.job.volume / story.place / "checkpoints/model.json").read_text())
            assert saved["step"] == int(RESTARTED[example]["STEPS"])
            assert [round(w, 3) for w in saved["weights"]] == [*map(float, range(8))]
            assert len(story.seen["hosts"]) == 4, "two workers, before and after the loss"
            for hostfile, discovered, expected in story.seen["hosts"]:
                assert sorted(hostfile.split()[::2]) == expected.split()
                assert sorted(line.removesuffix(":1") for line in discovered.split()) == expected.split()
        case "08-tensorflow":
            assert "epoch 59 by 2 workers" in story.printed
