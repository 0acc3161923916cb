"""What a script asks of all ranks between two loops, in real processes: all receive the same, whoever is lost."""

from functools import partial
from pathlib import Path

import pytest
import torch

from conditions import eventually
from elastrain.api import messages as m
from elastrain.api.loops import LoopId
from elastrain.api.settings import CheckpointSpec
from elastrain.elastic.checkpoint import tier_at

SCRIPT = Path(__file__).with_name("train_calls.py")
EPOCHS = 3
STEPS = 4
"""In an epoch."""
POINTS = ("evaluate", *(f"batch{number}" for number in range(11)), "reduce", "gather", "after")
"""Where the script stops, in this order."""


KNOWN: dict[tuple[str, ...], dict] = {}
"""Results of ranks that nothing happens to."""


@pytest.fixture
def undisturbed(world, tmp_path_factory):
    """``undisturbed("a", "b")``: the results of two ranks that nothing happens to."""

    def run(*ranks: str) -> dict[str, dict]:
        if ranks not in KNOWN:
            fixed = type(world)(tmp_path_factory.mktemp("undisturbed"), world.warm)
            start(fixed, *ranks)
            fixed.propose(*ranks)
            KNOWN[ranks] = fixed.finished(*ranks)
        return KNOWN[ranks]

    return run


@pytest.fixture
def expected(undisturbed):
    return undisturbed("f")["f"]


def start(world, *ranks: str, delay: float = 0.02, **env) -> None:
    world.start(*ranks, epochs=EPOCHS, delay=delay, script=SCRIPT, **env)
    world.ready(*ranks)


def at(world, point: str, *ranks: str) -> None:
    world.wait(f"{ranks} at {point}", lambda: all((world.folder / f"at-{point}-{r}").exists() for r in ranks))


def let_pass(world, *points: str) -> None:
    for point in points:
        (world.folder / f"pass-{point}").touch()


def before(point: str) -> tuple[str, ...]:
    return POINTS[: POINTS.index(point)]


def broken(world, *ranks: str) -> None:
    number = world.number
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken", generation=number) for r in ranks))


def assert_same(final: dict, expected: dict, since: int = 0) -> None:
    """The run has ended as the ``expected`` one; ``since``: pauses of the job that it did not see."""
    assert (final["step"], final["lr"]) == (expected["step"], expected["lr"])
    for name, value in expected["model"].items():
        assert torch.allclose(final["model"][name], value, rtol=0, atol=1e-10), name
    assert [r["step"] for r in final["results"]] == [r["step"] for r in expected["results"][since:]]
    for one, other in zip(final["results"], expected["results"][since:], strict=True):
        assert one["sums"]["seen"] == 107
        assert one["sums"]["noise"] == other["sums"]["noise"], "it depends on what the rank has drawn before"
        assert one["sums"]["x"] == other["sums"]["x"], "batches were added in another order"
        assert one["sums"]["loss"] == pytest.approx(other["sums"]["loss"], rel=1e-10)


def test_all_ranks_receive_the_same_sums_at_any_size(undisturbed, expected):
    final = undisturbed("a", "b", "c")
    for rank in "abc":
        assert_same(final[rank], expected)
        assert final[rank]["results"][1]["reduced"] == [[3, 3], 2 * STEPS]
        assert final[rank]["results"][1]["gathered"] == [{"worker": name} for name in "abc"]
        assert [r["sums"] for r in final[rank]["results"]] == [r["sums"] for r in final["a"]["results"]]
    assert [sum(final[rank]["results"][i]["batches"] for rank in "abc") for i in range(EPOCHS)] == [11] * EPOCHS
    assert expected["lr"] < 0.01, "the schedule that hangs on the evaluation never acted"


@pytest.mark.parametrize(
    ("point", "every"),
    [
        *((point, "") for point in ("evaluate", "batch0", "reduce", "after")),
        *((point, "4") for point in ("batch3", "gather")),
    ],
)
def test_the_others_repeat_the_call_and_not_the_training_if_a_rank_is_killed(world, expected, point, every):
    start(world, "a", "b", EVERY=every or "0")
    world.propose("a", "b")
    let_pass(world, *before(point))
    at(world, point, "a", "b")
    world.ranks["b"].kill()
    let_pass(world, *POINTS)
    broken(world, "a")
    world.propose("a")
    final = world.finished("a")["a"]
    assert_same(final, expected)
    assert final["results"][0]["reduced"][0] == ([2, 2] if point in ("gather", "after") else [1, 1])
    pauses = [r.progress.rescales[-1].pause_seconds for r in world.ranks["a"].of_type("report") if r.progress.rescales]
    assert pauses


@pytest.mark.parametrize("lost", [1, 4, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 3))])
def test_a_rank_that_misses_a_result_receives_it_from_the_others(world, expected, lost):
    """1: the end of the loop; 2 and more: rounds of the evaluation."""
    start(world, "a")
    start(world, "b", LOST=str(lost))
    world.propose("a", "b")
    let_pass(world, *POINTS)
    broken(world, "b")
    world.propose("a", "b")
    final = world.finished("a", "b")
    for rank in "ab":
        assert_same(final[rank], expected)
    assert [r["sums"] for r in final["a"]["results"]] == [r["sums"] for r in final["b"]["results"]]


@pytest.mark.parametrize("every", ["", "4"], ids=["after a loop", "in a pause of it"])
def test_a_rank_that_stood_by_in_an_evaluation_follows_the_others_if_they_have_gone_on(world, expected, every):
    start(world, "a", EVERY=every or "0", HOLD=str(STEPS + 1))
    start(world, "b", EVERY=every or "0")
    world.propose("a", "b")
    let_pass(world, "evaluate")
    at(world, "batch0", "a", "b")
    world.ranks["b"].renew()  # a mate of it was killed
    world.wait("b to know it", world.ranks["b"].has_read_all)  # within the evaluation
    let_pass(world, *POINTS)
    broken(world, "a")
    world.propose("a")
    at(world, "body", "a")
    world.ready("b")
    world.propose("a", "b")
    let_pass(world, "body")
    world.adopted("a", "b")
    final = world.finished("a", "b")
    assert_same(final["a"], expected)
    last = [final[rank]["results"][-1] for rank in "ab"]
    assert [r["sums"] for r in last] == [last[0]["sums"]] * 2
    assert last[1]["reduced"][0] == [2, 2], "the rank did not take part again"


def test_a_rank_that_has_to_leave_leaves_between_two_batches(world, expected):
    start(world, "a", "b")
    world.propose("a", "b")
    let_pass(world, "evaluate")
    at(world, "batch0", "a", "b")
    number = world.propose("a")
    adopted = partial(world.ranks["b"].has, "adopted", generation=number)
    for batch in range(5):  # a busy machine may know the generation only some batches later
        let_pass(world, f"batch{batch}")
        reached = world.folder / f"at-batch{batch + 1}-b"
        world.wait("b adopts, or goes on", lambda reached=reached: adopted() or reached.exists())
    world.adopted("a", "b")
    world.ranks["b"].send(m.Exit(reason="drained"))
    world.wait("b leaves", lambda: world.ranks["b"].process.poll() == 0)
    assert world.ranks["b"].of_type("left")
    assert not (world.folder / "at-batch5-b").exists(), "it stayed until the end of the evaluation"
    assert_same(world.finished("a")["a"], expected)


def test_a_joiner_is_not_waited_for_and_joins_in_the_next_loop(world, expected):
    start(world, "a", "b", HOLD=str(STEPS + 1), delay=0.2)  # of which seven steps let c connect
    world.propose("a", "b")
    let_pass(world, "evaluate")
    at(world, "batch0", "a", "b")
    start(world, "c")
    world.ranks["b"].kill()
    let_pass(world, "batch0")
    broken(world, "a")
    world.propose("a", "c")
    world.wait("c withdraws", lambda: world.ranks["c"].has("misplaced", ahead=False))
    broken(world, "a")
    world.propose("a")
    let_pass(world, *POINTS[:-1])
    at(world, "after", "a")
    assert world.ranks["a"].step() == STEPS
    assert not world.ranks["c"].is_ready(), "the others are between two loops"
    let_pass(world, *POINTS)
    world.ready("c")
    assert world.ranks["a"].step() > STEPS or world.located().loop.end > STEPS
    world.propose("a", "c")
    let_pass(world, "body")
    world.adopted("a", "c")
    final = world.finished("a", "c")
    assert_same(final["a"], expected)
    assert [r["sums"] for r in final["c"]["results"][-1:]] == [r["sums"] for r in final["a"]["results"][-1:]]


def test_a_joiner_enters_behind_a_pause_of_the_loop(world, expected):
    last = STEPS * EPOCHS - 1
    start(world, "a", "b", EVERY="4", HOLD=str(last), delay=0.2)  # of which seven steps let c connect
    world.propose("a", "b")
    let_pass(world, "evaluate")
    at(world, "batch0", "a", "b")
    start(world, "c", EVERY="4")
    world.propose("a", "b", "c")
    let_pass(world, *POINTS)
    at(world, "body", "a", "b")
    let_pass(world, "body")
    final = world.finished("a", "b", "c")
    assert world.ranks["c"].has("adopted", generation=2)
    for rank, since in {"a": 0, "b": 0, "c": 1}.items():
        assert_same(final[rank], expected, since)


def test_code_after_loops_that_are_over_runs_alone_in_a_joiner(world, expected):
    """With ``range(epochs)`` instead of ``job.epochs``."""
    start(world, "a", RANGE="1", HOLD=str(STEPS + 1), delay=1.0)  # of which three steps let b connect
    world.propose("a")
    let_pass(world, *POINTS)
    at(world, "body", "a")
    world.located = lambda: m.Located(step=STEPS + 1, training=True)  # progress is reported once a second
    start(world, "b", RANGE="1")
    world.propose("a", "b")
    let_pass(world, "body")
    world.adopted("a", "b")
    final = world.finished("a", "b")
    assert_same(final["a"], expected)
    passed = [r for r in final["b"]["results"] if r["rank"] == -1]
    assert passed, "it has joined in the first loop"
    for r in passed:
        assert (r["batches"], r["sums"]["seen"], r["reduced"]) == (1, 10, [[1, 1], 0.0])
        assert r["gathered"] == [{"worker": "b"}]
    joined = final["b"]["results"][len(passed) :]
    assert [r["sums"] for r in joined] == [r["sums"] for r in final["a"]["results"][EPOCHS - len(joined) :]]


def test_a_rank_starts_anew_if_the_checkpoint_is_of_a_later_loop_than_the_one_that_it_waits_in(world, expected):
    """It has begun as a joiner of a job whose last report is a second old, and whose ranks were all lost then. Code
    between the loops would run once more, on the state behind it."""
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=1)
    start(world, "a", HOLD=str(STEPS + 2), checkpoint=spec)
    world.propose("a")
    let_pass(world, *POINTS)
    at(world, "body", "a")
    volume = tier_at(str(world.folder / "checkpoints"), keep=2)
    world.wait("a checkpoint of the second loop", lambda: any(c.step > STEPS for c in volume.complete()))
    world.located = lambda: m.Located(step=1, training=True, loop=LoopId(STEPS))
    start(world, "b", checkpoint=spec)
    world.ranks["a"].kill()
    world.ranks["a"].process.wait(10)
    world.propose("b")
    world.wait("b asks to be started anew", lambda: world.ranks["b"].has("misplaced", ahead=True))
    world.ranks["b"].kill()
    world.ranks["b"].process.wait(10)
    world.located = lambda: m.Located(step=1, training=False, loop=LoopId(STEPS))
    let_pass(world, "body")
    start(world, "c", checkpoint=spec)
    world.propose("c")
    assert_same(world.finished("c")["c"], expected, 1)


def test_a_state_that_code_between_loops_may_have_changed_is_not_saved(world, expected):
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=1000)
    start(world, "a", "b", checkpoint=spec)
    world.propose("a", "b")
    let_pass(world, "evaluate")
    at(world, "batch0", "a", "b")
    world.ranks["b"].kill()
    let_pass(world, "batch0")
    broken(world, "a")
    world.propose()  # the job is suspended
    world.adopted("a")
    assert not tier_at(str(world.folder / "checkpoints"), keep=2).complete()
    world.propose("a")
    assert_same(world.finished("a")["a"], expected)


def test_the_job_fails_and_names_the_ranks_if_one_makes_a_call_more(world):
    start(world, "a")
    start(world, "b", EXTRA="1")
    world.propose("a", "b")
    (world.folder / "run-free").touch()
    # The rank that sees it first ends; the other one sees that or the end of the connection.
    ranks = [world.ranks["a"], world.ranks["b"]]
    eventually(lambda: any(rank.process.poll() == 1 for rank in ranks), 60, "a rank fails")
    text = "".join(rank.log.read_text() for rank in ranks)
    assert "rank 1 calls job.all_reduce() after step 4 while rank 0 computes step 5" in text, text[-2000:]
    assert "all ranks must make the same calls in the same order" in text
