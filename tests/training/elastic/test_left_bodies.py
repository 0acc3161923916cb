"""Committed means applied: a loop body that is left counts if its update was made, on every way out and at every place.

The ranks are threads. A step is repeated, or its state taken from a peer, so that the job ends with the model of a run
in which nothing was left; what cannot be so ends with an error that says why.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from conditions import eventually
from elastrain.api.settings import CheckpointSpec, RankSettings
from elastrain.elastic.commit.updates import Applied, Update, applied, left_by_break
from elastrain.elastic.job import Job
from threaded_world import ThreadWorld

STEPS, AT = 6, 3
"""Of the job; the step in whose body, by committed steps before it, the script does something."""
PLACES = ("before", "between", "optimizer", "end", "on_commit", "every")
"""Before the backward, between it and the optimizer's update, between this and the scheduler's, after both."""
OWN = "the script's own error"


def train(job: Job, place: str = "", how: str = "", ranks: tuple[int, ...] = (0, 1), *, again: bool = True) -> dict:
    """A script that leaves its loop once, at ``place``; ``again``: and goes on with the next ``job.steps()``."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(48, 4, generator=generator, dtype=torch.float64))
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    for parameter in net.parameters():  # torch's own generator belongs to all threads
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    model = job.wrap(net, optimizer=optimizer)
    job.track(scheduler=scheduler)
    commits: list[int] = []
    armed = [how]

    def reached(here: str, *, step: int = AT) -> str:
        if here != place or not armed[0] or job.step != step or job.rank not in ranks:
            return ""
        if here in ("between", "optimizer", "end") and not job.committed:
            return ""
        doing, armed[0] = armed[0], ""
        if doing == "exception":
            raise ValueError(OWN)
        return doing

    def on_commit() -> None:
        commits.append(job.step)
        reached("on_commit", step=AT + 1)

    job.on_commit(on_commit)
    job.every(2, lambda: reached("every", step=AT + 1) and None)
    loader = job.dataloader(data, global_batch_size=8, seed=3)

    def loop() -> None:
        for (x,) in job.steps(loader, steps=STEPS):
            if (doing := reached("before")) == "break":
                break
            if doing == "return":
                return
            loss = model(x).square().mean()
            job.backward(loss)
            if (doing := reached("between")) == "break":
                break
            if doing == "return":
                return
            optimizer.step()
            optimizer.zero_grad()
            if (doing := reached("optimizer")) == "break":
                break
            if doing == "return":
                return
            scheduler.step()
            if (doing := reached("end")) == "break":
                break
            if doing == "return":
                return
            if doing == "continue":
                continue

    if again:
        while job.step < STEPS:
            try:
                loop()
            except ValueError as e:
                assert str(e) == OWN
    else:
        loop()
    state = [*net.state_dict().values(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    return {"state": state, "lr": optimizer.param_groups[0]["lr"], "step": job.step, "commits": commits}


@pytest.fixture
def job(tmp_path) -> Iterator[Callable[..., ThreadWorld]]:
    """``job(size, place, how, ranks)``: the ended job."""
    worlds: list[ThreadWorld] = []

    def run(size: int, *arguments: Any, checkpoint: CheckpointSpec | None = None, **options: Any) -> ThreadWorld:
        settings = RankSettings(checkpoint=checkpoint)
        world = ThreadWorld(tmp_path / f"{len(worlds)}", lambda job, _: train(job, *arguments, **options), settings)
        worlds.append(world)
        ranks = [f"r{number}" for number in range(size)]
        world.train(*ranks)
        seen = Counter[int]()

        def over() -> bool:
            broken = any(world.ranks[r].has("broken", generation=world.number) for r in ranks)
            alive = [r for r in ranks if world.ranks[r].process.poll() is None]
            if broken and alive and not seen[world.number]:
                seen[world.number] += 1
                world.propose(*alive, reason="Broken")
            return not alive

        eventually(over, 20, f"{ranks} end:\n" + "".join(world.ranks[r].log.read_text() for r in ranks))
        return world

    yield run
    for world in worlds:
        world.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[int, dict]:
    """By number of ranks, the result of a run in which nothing is left."""
    results = {}
    for size in (1, 2):
        world = ThreadWorld(tmp_path_factory.mktemp("undisturbed"), lambda job, _: train(job))
        ranks = [f"r{number}" for number in range(size)]
        world.train(*ranks)
        world.serve(*ranks)
        results[size] = world.result("r0")
        world.close()
    return results


def assert_as_if_nothing_was_left(world: ThreadWorld, expected: dict) -> None:
    for name in world.ranks:
        assert world.error(name) is None, world.ranks[name].log.read_text()
        result = world.result(name)
        assert (result["step"], result["lr"]) == (STEPS, expected["lr"]), name
        assert result["commits"] == expected["commits"] == [*range(1, STEPS + 1)], f"{name}: callbacks"
        assert all(torch.equal(a, b) for a, b in zip(result["state"], expected["state"], strict=True)), name


def in_ci(size: int, place: str, how: str) -> bool:
    """Of the matrix, which takes 15 s: all ways out of one worker's body, and those on which two workers differ."""
    return size == 1 or how == "exception" or (place, how) == ("between", "break")


RESUMED = [
    pytest.param(size, place, how, ranks, marks=() if in_ci(size, place, how) else pytest.mark.nightly)
    for size, ranks in ((1, (0,)), (2, (1,)), (2, (0,)), (2, (0, 1)))
    for place in PLACES
    for how in ("exception", "break", "return", "continue")
    # A script that leaves its scheduler's step out means it; updates that an exception has cut off are the next test's.
    if not (place == "optimizer" and (how != "exception" or len(ranks) == size))
    if not (place == "on_commit" and (how != "exception" or len(ranks) == size))
    if not (place == "every" and how != "exception")
    if not (how == "continue" and place != "end")
    # One rank alone that breaks out of its loop, or raises in a pause, leaves the others.
    if not (len(ranks) < size and place == "every")
]


@pytest.mark.parametrize(("size", "place", "how", "ranks"), RESUMED)
def test_the_model_is_that_of_an_undisturbed_run_if_a_script_leaves_its_loop_and_goes_on(
    size, place, how, ranks, job, expected
) -> None:
    assert_as_if_nothing_was_left(job(size, place, how, ranks), expected[size])


@pytest.mark.parametrize("place", ["between", "optimizer", "end", "on_commit"])
def test_the_error_is_the_scripts_own_and_the_step_is_not_saved_if_an_exception_ends_it(place, job, tmp_path) -> None:
    folder = tmp_path / "checkpoints"
    spec = CheckpointSpec(path=str(folder), every_steps=1)
    world = job(1, place, "exception", (0,), again=False, checkpoint=spec)
    error = world.error("r0")
    assert isinstance(error, ValueError)
    assert str(error) == OWN
    assert "closed file" not in world.ranks["r0"].log.read_text()
    saved = sorted(path.name for path in folder.glob("step-*"))
    assert saved and saved[-1] <= f"step-{AT:09d}", "a step is saved whose update was lost"
    assert not world.ranks["r0"].of_type("finished")


@pytest.mark.parametrize(("place", "says"), [("optimizer", "body of step 4 was left"), ("on_commit", "job.on_commit")])
def test_a_job_without_another_holder_names_the_reason_if_an_exception_cuts_an_update_off(place, says, job) -> None:
    world = job(1, place, "exception", (0,))
    error = world.error("r0")
    assert isinstance(error, RuntimeError)
    assert "no worker holds the training state any more" in str(error)
    assert says in str(error)
    assert "set spec.checkpoint" in str(error)


def test_the_job_goes_back_to_its_checkpoint_if_an_exception_cuts_an_update_off_on_all_ranks(job, tmp_path) -> None:
    spec = CheckpointSpec(path=str(tmp_path / "checkpoints"), every_steps=1)
    world = job(2, "optimizer", "exception", (0, 1), checkpoint=spec)
    assert [world.error(r) for r in ("r0", "r1")] == [None, None]
    commits = world.result("r0")["commits"]
    assert commits[:AT] == [1, 2, 3] and commits[-1] == STEPS


def test_a_script_that_ends_with_a_cut_off_update_does_not_finish_the_job(tmp_path) -> None:
    def swallows(job: Job, _: object) -> None:
        try:
            train(job, "optimizer", "exception", again=False)
        except ValueError:
            return

    world = ThreadWorld(tmp_path / "world", swallows)
    world.train("r0")
    eventually(lambda: world.ranks["r0"].process.poll() is not None, 20, "it ends")
    error = world.error("r0")
    assert isinstance(error, RuntimeError) and "the script has ended" in str(error)
    assert not world.ranks["r0"].of_type("finished")
    world.close()


# -- pure --------------------------------------------------------------------------------------------------------------
STEP, OTHER, AFTER = Update(1, "step", True), Update(2, "step", True), Update(3, "step", False)


@pytest.mark.parametrize(
    ("done", "usual", "finished", "expected"),
    [
        ([], [STEP, AFTER], True, Applied.NOTHING),
        ([], [STEP, AFTER], False, Applied.NOTHING),
        ([STEP], [STEP, AFTER], True, Applied.WHOLLY),
        ([STEP], [STEP, AFTER], False, Applied.PARTLY),
        ([STEP, AFTER], [STEP, AFTER], False, Applied.WHOLLY),
        ([AFTER], [STEP, AFTER], True, Applied.PARTLY),
        ([STEP], [STEP, OTHER], False, Applied.PARTLY),
        ([STEP, STEP], [STEP], False, Applied.WHOLLY),
        ([], [], True, Applied.WHOLLY),
        ([], [], False, Applied.PARTLY),
    ],
)
def test_a_left_body_is_applied_as_far_as_its_updates(done, usual, finished, expected) -> None:
    assert applied(Counter(done), Counter(done), Counter(usual), finished=finished) is expected


def test_a_body_is_applied_in_part_if_an_update_itself_has_failed() -> None:
    assert applied(Counter([STEP]), Counter(), Counter([STEP]), finished=False) is Applied.PARTLY


def through(iterator: Any) -> Iterator[Any]:
    yield from iterator


def bar(iterator: Any) -> Iterator[Any]:
    try:
        for each in iterator:  # noqa: UP028 - as tqdm does
            yield each
    finally:
        len("")


def breaks(make: Callable[[], Any]) -> None:
    for _ in make():
        break


def returns(make: Callable[[], Any]) -> int:
    for _ in make():
        try:
            return 1
        finally:
            len("")
    return 0


def breaks_in_a_handler(make: Callable[[], Any]) -> None:
    for _ in make():
        try:
            raise KeyError
        except KeyError:
            break


def fails(make: Callable[[], Any]) -> None:
    for _ in make():
        {}["key"]


AROUND = {
    "nothing": lambda i: i,
    "yield from": through,
    "tqdm": bar,
    "enumerate": enumerate,
    "zip": lambda i: zip(i, range(9), strict=False),
    "two": lambda i: through(bar(i)),
    "two others": lambda i: bar(through(i)),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("leave", [breaks, returns, breaks_in_a_handler, fails])
def test_the_way_out_of_a_loop_is_known_through_the_iterators_around_it(leave, around) -> None:
    seen: list[bool] = []

    def batches() -> Iterator[int]:
        try:
            yield from range(3)
        except GeneratorExit:
            seen.append(left_by_break(sys._getframe(1)))
            raise

    try:
        leave(lambda: AROUND[around](batches()))
    except KeyError:
        assert leave is fails
    assert seen == [leave is not fails]


@pytest.mark.parametrize(("at", "steps"), [("end", AT + 1), ("optimizer", AT + 1), ("between", AT)])
def test_a_step_counts_if_it_was_applied_and_a_variable_holds_the_iterator_that_was_left(at, steps, tmp_path) -> None:
    committed: list[int] = []

    def holds(job: Job, _: object) -> Any:
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        model = job.wrap(net, optimizer=optimizer)
        job.track(scheduler=scheduler)
        job.on_commit(lambda: committed.append(job.step))
        held = job.steps(job.dataloader(TensorDataset(torch.ones(32, 2)), global_batch_size=4), steps=STEPS)
        for (x,) in held:
            job.backward(model(x).mean())
            if job.step == AT and job.committed and at == "between":
                break
            optimizer.step()
            if job.step == AT and job.committed and at == "optimizer":
                break
            scheduler.step()
            if job.step == AT and job.committed:
                break
        return held

    world = ThreadWorld(tmp_path / "world", holds)
    world.train("r0")
    world.serve("r0")
    assert committed == [*range(1, steps + 1)]
    assert [m.step for m in world.ranks["r0"].of_type("finished")] == [steps]
    world.close()
