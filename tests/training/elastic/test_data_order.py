"""Ranks whose data differs are refused with both values; those that train go on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conditions import eventually
from elastrain.api.settings import CheckpointSpec
from elastrain_audit.judge import verify

SCRIPT = Path(__file__).with_name("train_data_order.py")
PATIENCE = 60.0


def failed(world, rank: str) -> str:
    """The log of a rank that has failed; it is no part of the world any more."""
    ended = world.ranks.pop(rank)
    eventually(lambda: ended.process.poll() is not None, PATIENCE, f"{rank} fails")
    assert ended.process.poll() == 1, ended.log.read_text()[-2000:]
    return ended.log.read_text()


def start(world, *ranks: str, **options: Any) -> None:
    world.start(*ranks, epochs=3, script=SCRIPT, **options)
    world.ready(*ranks)


def goes_on(world, *ranks: str) -> None:
    """The ranks that are left are formed anew, and end."""
    world.wait(
        "the generation breaks", lambda: all(world.ranks[r].has("broken", generation=world.number) for r in ranks)
    )
    world.together(*ranks)
    assert {end["step"] for end in world.finished(*ranks).values()} == {48}
    verdict = verify(world.audit)
    assert verdict.ok and verdict.redone == 0


def test_a_joiner_fails_with_both_values_and_the_others_go_on_if_its_data_differs(world) -> None:
    start(world, "a", "b")
    world.propose("a", "b")
    world.progressed("a", 2)
    start(world, "c", FIRST="97")
    world.propose("a", "b", "c")
    text = failed(world, "c")
    assert (
        "OtherData: job.dataloader(): rank 2 has samples=97, steps_per_epoch=9; "
        "rank 0 has samples=96, steps_per_epoch=8: all workers must"
    ) in text
    goes_on(world, "a", "b")


def test_the_rank_that_differs_from_most_fails_if_the_job_begins(world) -> None:
    start(world, "a", LOADER=json.dumps({"seed": 4}))
    start(world, "b", "c")
    world.propose("a", "b", "c")
    assert "rank 0 has seed=4; rank 1 has seed=3: all workers must give" in failed(world, "a")
    goes_on(world, "b", "c")


def test_the_rank_that_differs_fails_if_a_loop_begins(world) -> None:
    start(world, "a", "b")
    start(world, "c", SECOND="98")
    world.propose("a", "b", "c")
    (world.folder / "run-free").touch()
    text = failed(world, "c")
    assert re.search(r'train_data_order.py", line \d+, in <module>\n +job\.backward', text), "it names another line"
    assert "rank 2 has samples=98" in text
    world.wait("the loss is noticed", lambda: all(world.ranks[r].has("broken", generation=world.number) for r in "ab"))
    world.propose("a", "b")
    assert {end["step"] for end in world.finished("a", "b").values()} == {48}


@pytest.mark.parametrize("accepts", [False, True])
def test_a_job_that_resumes_with_other_data_fails_unless_the_script_accepts_it(world, accepts) -> None:
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=5)
    start(world, "a", checkpoint=spec, delay=0.3)
    world.propose("a")
    world.wait("a checkpoint", lambda: world.ranks["a"].saved_step() > 0)
    world.ranks["a"].kill()
    start(world, "b", checkpoint=spec, LOADER=json.dumps({"global_batch_size": 24, "accept_change": accepts}))
    world.propose("b")
    if accepts:
        assert world.finished("b")["b"]["step"] == 48
    else:
        assert re.search(
            r"OtherData: .*this script has global_batch_size=24, steps_per_epoch=4; the job's state of step \d+ was "
            r"computed with global_batch_size=12, steps_per_epoch=8: .* accept_change=True",
            failed(world, "b"),
        )


def test_a_change_of_the_data_set_acts_in_the_next_epoch_or_at_its_step_on_all_ranks(world) -> None:
    """A worker process loads it. A rank joins before the change at step 20, another behind it."""

    def train(*ranks: str) -> None:
        world.start(*ranks, epochs=16, delay=0.08, script=SCRIPT.with_name("train_changing_data.py"))
        world.ready(*ranks)
        world.together(*world.ranks)

    train("a", "b")
    train("c")
    world.wait("the change", lambda: world.ranks["a"].step() > 20)
    train("d")
    final = world.finished(*"abcd")
    version = {step: 1.0 + step // 4 + 100 * (step >= 20) for step in range(64)}
    for rank in "abcd":
        assert final[rank]["step"] == 64
        assert {step: set(values) for step, values in final[rank]["seen"].items()} == {
            step: {version[step]} for step in final[rank]["seen"]
        }
        assert final[rank]["weight"] == pytest.approx(-sum(version.values()))
    assert final["d"]["seen"]
