"""What a script does in its steps acts, or is an error that names it: no step is committed without its update."""

import re
from pathlib import Path

import pytest

from conditions import eventually

SCRIPT = Path(__file__).with_name("train_mistakes_in_steps.py")
IN_HOOK = r"step\(\) within job\.backward\(\): a hook sees the gradients of this rank's samples only: remove it"
HOOK = r"parameter 0\.weight of 'model' has a hook .*call the optimizer, behind job\.backward\(\)"
YOUNGER = r"parameters model\.2\.weight, model\.2\.bias were not in the model when .*requires_grad_\(True\)"
REMOVED = r"parameters model\.2\.bias were in the model .* removed since.*requires_grad_\(False\)"


def error_of(world, mode: str, **env: str) -> str:
    """With which a rank that trains alone fails."""
    (world.folder / "run-free").touch()
    world.start("a", script=SCRIPT, MODE=mode, **env)
    rank = world.ranks["a"]
    eventually(lambda: rank.is_ready() or rank.process.poll() is not None, 60, "it is ready, or fails")
    if rank.process.poll() is None:
        world.propose("a")
    eventually(lambda: rank.process.poll() is not None, 60, "it fails")
    return rank.log.read_text()


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("post-accumulate hooks", HOOK),
        ("optimizer in backward", HOOK),
        ("tensor hook", rf"SGD\.{IN_HOOK}"),
        ("before backward", r"SGD\.step\(\) before a step's first backward: .* behind job\.backward"),
        ("partial", r"SGD\.step\(\) in step \d: called for a micro-batch before the last one, .* not for the last one"),
    ],
)
def test_error_names_the_optimizer_if_it_is_called_where_it_cannot_act(world, mode, error) -> None:
    assert re.search(error, error_of(world, mode))


@pytest.mark.parametrize(
    ("mode", "error", "several"),
    [
        ("replaced", YOUNGER, {}),
        ("in the body", YOUNGER, {"SEVERAL": "1"}),
        ("added", r"parameters model\.3\.weight, model\.3\.bias were not in the model", {}),
        ("removed", REMOVED, {}),
        ("deleted", REMOVED, {"SEVERAL": "1"}),
    ],
)
def test_error_names_parameters_that_are_younger_than_the_first_loop_or_were_removed(
    world, mode, error, several
) -> None:
    assert re.search(error, error_of(world, mode, **several))


@pytest.mark.parametrize("mode", ["loss", "loss of micro-batches", "before the loop", "unused layers"])
def test_the_loss_after_backward_is_that_of_the_step(world, mode) -> None:
    world.start("a", "b", script=SCRIPT, MODE=mode)
    world.ready("a", "b")
    (world.folder / "run-free").touch()
    world.propose("a", "b")
    final = world.finished("a", "b")
    assert len(final["a"]["seen"]) == 8
    assert final["a"]["seen"] == final["b"]["seen"], "not the mean over the global batch"
    for name, value in final["a"]["net"].items():
        assert value.equal(final["b"]["net"][name])
