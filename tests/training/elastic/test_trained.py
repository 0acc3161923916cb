"""Parameters that begin to train later: the same ones on all ranks in every step, whatever joins or is lost."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from budgets import at_night
from conditions import eventually
from elastrain.api.settings import CheckpointSpec
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.state.trained import TrainedSet
from elastrain_audit.judge import verify

SCRIPT = Path(__file__).with_name("train_unfreeze.py")
STEPS = 12
"""Of an epoch."""
NUMERICS: dict[str, dict[str, str]] = {
    "exact": {},
    "micro-batches": {"LOADER": json.dumps({"micro_batch_size": 5})},
    "bitwise": {"NUMERICS": "bitwise", "LOADER": json.dumps({"micro_batches": 4})},
}


def start(world, *ranks: str, epochs: int = 4, delay: float = 0.1, **env) -> None:
    world.start(*ranks, epochs=epochs, delay=delay, script=SCRIPT, **env)
    world.ready(*ranks)


@pytest.fixture
def undisturbed(world, tmp_path_factory):
    """What a job of one rank ends with."""

    def run(**env: str) -> dict:
        fixed = type(world)(tmp_path_factory.mktemp("fixed"), world.warm)
        (fixed.folder / "run-free").touch()
        start(fixed, "f", **env)
        fixed.propose("f")
        return fixed.finished("f")["f"]

    return run


@contextmanager
def held(world) -> Iterator[None]:
    """No step is computed meanwhile: a joiner does not miss the loop."""
    (world.folder / "hold").touch()
    yield
    (world.folder / "hold").unlink()


def assert_same(final: dict, expected: dict, atol: float) -> None:
    assert final["step"] == expected["step"]
    assert [len(g["params"]) for g in final["optimizer"]["param_groups"]] == [2, 2]
    for name, value in expected["model"].items():
        torch.testing.assert_close(final["model"][name], value, rtol=0, atol=atol, msg=name)
    for index, kept in expected["optimizer"]["state"].items():
        for name, value in kept.items():
            torch.testing.assert_close(final["optimizer"]["state"][index][name], value, rtol=0, atol=atol)


ALL = [(when, numerics) for when in ("between", "body", "callback") for numerics in NUMERICS]


@pytest.mark.parametrize(
    ("when", "numerics"), [("callback", "bitwise"), *at_night(*(c for c in ALL if c != ("callback", "bitwise")))]
)
def test_model_is_that_of_the_fixed_size_run_if_ranks_join_and_die_before_and_after_it_unfreezes(
    world, undisturbed, when, numerics
) -> None:
    env = {"WHEN": when, "AT": "2" if when == "between" else "24", **NUMERICS[numerics]}
    expected = undisturbed(**env)

    start(world, "a", "b", **env)
    world.together("a", "b")
    world.progressed("a", 1)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
    start(world, "c", **env)
    world.together("a", "c")
    world.wait("it has unfrozen", lambda: world.ranks["a"].step() > 2 * STEPS + 1)
    with held(world):
        start(world, "e", **env)
        world.propose("a", "c", "e")
    world.adopted("a", "c", "e")
    world.progressed("a", 2)
    world.ranks["a"].kill()
    world.wait("the loss is reported", lambda: world.ranks["c"].has("broken", generation=world.number))
    world.propose("c", "e")
    final = world.finished("c", "e")
    for rank in "ce":
        assert_same(final[rank], expected, 0.0 if numerics == "bitwise" else 1e-10)
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems
    assert verdict.redone == 0


def test_the_generation_forms_anew_if_the_set_changes_while_a_joiner_receives_its_state(world, undisturbed) -> None:
    env = {"WHEN": "body", "PORTIONS": "1"}
    start(world, "a", "b", AT="1000", **env)
    world.together("a", "b")
    with held(world):
        start(world, "c", AT="1000", **env)
        lines = [json.loads(line) for f in world.audit.glob("*.jsonl") for line in f.read_text().splitlines()]
        step = max((line["step"] for line in lines if line["kind"] == "commit"), default=0)
        (world.folder / "at").write_text(str(step + 4))  # its state arrives in the steps around it
        world.propose("a", "b", "c")
    world.wait("it has broken", lambda: all(world.ranks[r].has("broken", generation=world.number) for r in "abc"))
    assert any("while a rank receives its state" in world.ranks[r].log.read_text() for r in "ab")
    world.propose("a", "b", "c")
    final, expected = world.finished(*"abc"), undisturbed(AT=str(step + 4), **env)
    for rank in "abc":
        assert_same(final[rank], expected, 1e-10)
    assert verify(world.audit).ok


@pytest.mark.parametrize("numerics", ["exact", "bitwise"])
def test_the_job_fails_and_names_ranks_and_parameters_if_one_rank_alone_unfreezes(world, numerics) -> None:
    start(world, "a", "b", WHEN="body", AT="3", ONLY="b", **NUMERICS[numerics])
    (world.folder / "run-free").touch()
    world.propose("a", "b")
    ranks = [world.ranks[r] for r in "ab"]
    eventually(lambda: any(r.process.poll() is not None for r in ranks), 30, "one of them is told")
    for rank in (r for r in ranks if r.process.poll() is not None):
        text = rank.log.read_text().splitlines()[-1]
        assert (
            "RanksDiverged: rank 1 changes its data, the parameters that train, or their groups, before step 4 while"
            in text
        )
        assert "rank 0 computes step 4" in text
        assert "or in the loop body by job.step" in text
        change = "model.2.weight, model.2.bias train only now; 'optimizer' has 1 groups before, 2 now"
        assert (change in text) == (rank.name == "b")


def test_a_job_that_begins_from_a_checkpoint_trains_the_parameters_of_that_state(world, undisturbed) -> None:
    env = {"WHEN": "between", "AT": "1"}
    expected = undisturbed(**env)
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=5)
    start(world, "a", checkpoint=spec, **env)
    world.propose("a")
    world.wait("a checkpoint of the third epoch", lambda: world.ranks["a"].saved_step() > 2 * STEPS)
    world.ranks["a"].kill()
    start(world, "b", checkpoint=spec, **env)  # its first epoch is the third: it unfreezes nothing itself
    world.propose("b")
    assert_same(world.finished("b")["b"], expected, 1e-10)


def network() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    net[0].requires_grad_(False)
    return net


class Rank:
    """A model with an optimizer, and the set of what trains."""

    def __init__(self, communicator: Communicator | None = None, *, agreed: bool = True) -> None:
        self.communicator = communicator
        self.net = network()
        self.optimizer = torch.optim.SGD(self.net[1].parameters(), lr=0.1)
        self.set = TrainedSet({"model": self.net, "optimizer": self.optimizer})
        self.set.enter(agreed=agreed)

    def backward(self, *, first: bool = True, learners: bool = False) -> str | None:
        assert self.communicator is not None
        self.set.before_backward(self.communicator, first=first, learners=learners)
        return self.communicator.diverged


def test_ranks_send_nothing_if_the_set_is_unchanged(pair) -> None:
    assert Rank(pair[0]).backward() is None  # the other rank takes no part


def test_ranks_agree_once_if_all_change_the_set_in_the_same_step(pair, each) -> None:
    def steps(communicator: Communicator) -> list[str | None]:
        rank = Rank(communicator, agreed=False)
        found = [rank.backward()]
        rank.net[0].requires_grad_(True)
        found.append(rank.backward())
        rank.optimizer.add_param_group({"params": rank.net[0].parameters()})
        found.append(rank.backward())
        if communicator.rank == 0:
            found.append(rank.backward())  # nothing has changed since
        return found

    assert each(steps, pair) == [[None] * 4, [None] * 3]
    assert not any(c.broken for c in pair)


@pytest.mark.parametrize("change", ["parameters", "groups", "members", "options"])
def test_all_ranks_know_the_difference_if_their_sets_differ(pair, each, change) -> None:
    def rank(communicator: Communicator) -> str | None:
        rank = Rank(communicator, agreed=False)
        if communicator.rank == 1:
            if change == "parameters":
                rank.net[0].requires_grad_(True)
            elif change == "groups":
                rank.optimizer.add_param_group({"params": rank.net[0].parameters()})
            elif change == "members":
                rank.optimizer.param_groups[0]["params"].pop()
            else:
                rank.optimizer.param_groups[0]["initial_lr"] = 0.1
        return rank.backward()

    expected = {
        "parameters": "model.0.weight, model.0.bias train only on rank 1",
        "groups": "'optimizer' has 1 groups on rank 0, 2 on rank 1",
        "members": "group 0 of 'optimizer' has the parameters model.1.weight, model.1.bias on rank 0, model.1.weight "
        "on rank 1",
        "options": "group 0 of 'optimizer' has the options",
    }[change]
    one, other = each(rank, pair)
    assert one == other
    assert one is not None and one.startswith(f"rank 0 and rank 1 train different parameters in step 1: {expected}")


def test_buckets_are_looked_at_again_whenever_the_set_may_have_changed(pair, each) -> None:
    def steps(communicator: Communicator) -> list[bool]:
        rank = Rank(communicator, agreed=False)

        def may_train_others() -> bool:
            return rank.set.before_backward(communicator, first=True, learners=False)

        found = [may_train_others(), may_train_others()]
        rank.net[0].requires_grad_(True)
        found += [may_train_others(), may_train_others()]
        rank.net[0].requires_grad_(False)
        found += [may_train_others(), may_train_others()]
        communicator.abort("a worker is lost")
        return [*found, may_train_others()]

    assert each(steps, pair)[0] == [True, False, True, False, True, False, True]


def test_error_names_the_remedy_if_the_set_changes_within_a_step(pair) -> None:
    rank = Rank(pair[0])
    rank.backward()
    rank.net[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"between the backwards of a step.*before the first one"):
        rank.backward(first=False)


def test_a_model_that_is_switched_off_for_a_moment_trains_the_same_parameters(pair) -> None:
    rank = Rank(pair[0])
    rank.net.requires_grad_(False)
    assert rank.backward() is None
    rank.net[1].requires_grad_(True)
    assert rank.backward() is None


def test_a_rank_trains_the_parameters_of_the_state_in_their_groups() -> None:
    ahead, behind = Rank(), Rank()
    ahead.net[0].weight.requires_grad_(True)
    ahead.net[1].bias.requires_grad_(False)
    ahead.optimizer.add_param_group({"params": [ahead.net[0].weight], "lr": 0.01})
    behind.set.adopt(ahead.set.describe())
    behind.optimizer.load_state_dict(ahead.optimizer.state_dict())
    assert behind.set.digest == ahead.set.digest
    assert [p.requires_grad for p in behind.net.parameters()] == [True, False, True, False]
    assert behind.optimizer.param_groups[1]["lr"] == 0.01
    assert behind.optimizer.param_groups[1]["params"] == [behind.net[0].weight]


def test_a_rank_whose_loop_body_has_added_a_group_before_the_state_arrived_adds_it_again() -> None:
    ahead, behind = Rank(), Rank()
    behind.net[0].requires_grad_(True)
    behind.optimizer.add_param_group({"params": behind.net[0].parameters()})
    behind.set.adopt(ahead.set.describe())
    assert behind.set.digest == ahead.set.digest
    behind.optimizer.add_param_group({"params": behind.net[0].parameters()})


def test_error_names_both_if_the_groups_of_the_script_do_not_fit_those_of_the_state() -> None:
    ahead, behind = Rank(), Rank()
    behind.optimizer.param_groups[0]["params"].pop()
    with pytest.raises(
        ValueError, match=r"job\.track\(optimizer=….*model\.1\.bias in the state, model\.1\.weight in this"
    ):
        behind.set.adopt(ahead.set.describe())
