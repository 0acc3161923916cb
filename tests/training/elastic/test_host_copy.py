"""The copy of a device's state that a save writes: made behind the step, read behind its event."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from elastrain.api.shape import ONE_RANK
from elastrain.elastic.checkpoint import CheckpointKeeper, Level, StaleLineage, Writers, levels_of, tier_at
from elastrain.elastic.comm import transport
from elastrain.elastic.state.host_copy import HostCopy, _is_queued, packed
from elastrain_resource.job import CheckpointSpec
from played_card import OnCard, PlayedCard

KINDS = {
    "weights": torch.arange(20.0).view(4, 5),
    "transposed": torch.arange(20.0).view(4, 5).T,
    "with gaps": torch.arange(40)[::2].view(4, 5),
    "a number": torch.tensor(7, dtype=torch.int32),
    "nothing": torch.zeros(0, 3),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
}


def on_card(tensor: torch.Tensor) -> torch.Tensor:
    home = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return home.copy_(tensor).as_subclass(OnCard)


def change(tensor: torch.Tensor) -> None:
    tensor.mul_(0).sub_(1)


def state() -> dict[str, torch.Tensor]:
    return {name: on_card(value) for name, value in KINDS.items()}


# -- the order ---------------------------------------------------------------------------------------------------------
def by_one_rank(keeper: CheckpointKeeper, tree: Callable[[], Any]) -> None:
    keeper.after_step(10, 1, tree)


def by_all_ranks(keeper: CheckpointKeeper, tree: Callable[[], Any]) -> None:
    keeper.after_vote(keeper.vote(10, leads=True), 10, 1, tree, Writers.of([0], 0, "1/10", ONE_RANK))


@pytest.mark.parametrize("save", [by_one_rank, by_all_ranks])
def test_a_checkpoint_holds_its_step_if_training_goes_on_before_the_device_has_copied(
    card: PlayedCard, tmp_path: Path, save: Any
) -> None:
    volume = tmp_path / "volume"
    spec = CheckpointSpec(path=str(volume), everySteps=10)
    keeper, live = CheckpointKeeper(levels_of(spec)), state()
    keeper.resume(lambda _: None, saved_step=0, reached=0, partial_state="")

    card.works.clear()
    save(keeper, lambda: {"card": live, "host": torch.ones(2), "step": 10})
    for value in live.values():
        card.queue(partial(change, value.as_subclass(torch.Tensor)))
    assert card.done == 0, "the host waits for the device"
    assert not list(tmp_path.glob("*/step-*")), "written before it was copied"

    card.works.set()
    keeper.finish()
    card.run()
    assert all(bool((value == -1).all()) for value in live.values())
    (checkpoint,) = tier_at(str(volume), 2).complete()
    saved = tier_at(str(volume), 2).load(checkpoint)
    assert saved["host"].tolist() == [1, 1]
    for name, value in KINDS.items():
        assert torch.equal(saved["card"][name], value), name


def test_a_save_that_is_refused_waits_for_its_copy_too(card: PlayedCard) -> None:
    """Its memory is released afterwards, and the device must not write to it any more."""

    class Refusing:
        name, where = "volume", "/checkpoints"

        def save(self, _tree: Any, **_: Any) -> None:
            raise StaleLineage("the job was restarted elsewhere")

    keeper = CheckpointKeeper([Level(Refusing(), CheckpointSpec(path="/checkpoints", everySteps=10))])  # type: ignore[arg-type]
    by_one_rank(keeper, state)
    keeper.finish()
    assert keeper.result is not None
    assert "restarted elsewhere" in keeper.result.error
    assert card.done == card.queued > 0


# -- the memory --------------------------------------------------------------------------------------------------------
def test_the_memory_is_used_again_where_it_fits(card: PlayedCard) -> None:
    copies = HostCopy()
    first = copies.take(state()).complete()
    assert card.page_locked == [1024], "one request for all"
    second = copies.take(state() | {"weights": on_card(torch.ones(3))}).complete()
    assert card.page_locked == [1024, 64]
    for name, value in KINDS.items():
        assert (second[name].data_ptr() == first[name].data_ptr()) == (name != "weights" or not value.numel())
        assert second[name].untyped_storage().nbytes() == second[name].nbytes, "torch.save writes all of a storage"
    copies.forget()
    assert copies.take(state()).complete()["weights"].tolist() == KINDS["weights"].tolist()
    assert card.page_locked == [1024, 64, 1024]


def test_ordinary_memory_serves_with_one_warning_if_none_can_be_page_locked(card: PlayedCard) -> None:
    transport._warn_of_ordinary_memory.cache_clear()
    card.refuses = True
    copies = HostCopy()
    with capture_logs() as lines:
        for number in range(2):
            copied = copies.take({number: state()}).complete()[number]
            assert all(torch.equal(copied[name], value) for name, value in KINDS.items())
    assert [line["error"] for line in lines] == ["CUDA error: out of memory"]


def test_a_model_on_the_host_is_copied_at_once_and_asks_no_device(card: PlayedCard) -> None:
    copies, live = HostCopy(), {name: value.clone() for name, value in KINDS.items()}
    copied = copies.take({"model": live, "step": 3})
    for value in live.values():
        value.mul_(0)
    assert copied.complete()["step"] == 3
    assert all(torch.equal(copied.complete()["model"][name], value) for name, value in KINDS.items())
    assert (card.asked, card.page_locked, card.queued) == ([], [], 0)


def test_a_tensor_that_keeps_its_values_otherwise_stays_one(card: PlayedCard) -> None:
    """An optimizer's 8-bit moments: a plain tensor in their place would hold them unpacked."""

    class Packed(OnCard):
        @classmethod
        def __torch_dispatch__(cls, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError

    assert _is_queued(torch.ones(3).as_subclass(OnCard))
    assert not _is_queued(torch.ones(3).as_subclass(Packed))


SIZES = st.lists(st.integers(0, 3000), max_size=40)


@given(SIZES, st.sampled_from([64, 1024, 4096]))
def test_tensors_lie_apart_in_blocks_that_torch_does_not_round_up(sizes: list[int], block_bytes: int) -> None:
    blocks, places = packed(sizes, block_bytes)
    lying = sorted((block, first, first + size) for size, (block, first) in zip(sizes, places, strict=True) if size)
    assert all(first % 64 == 0 and end <= blocks[block] for block, first, end in lying)
    assert all(a[2] <= b[1] for a, b in pairwise(lying) if a[0] == b[0])
    assert all(block.bit_count() == 1 for block in blocks)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=200))
def test_small_tensors_leave_little_of_their_blocks_unused(sizes: list[int]) -> None:
    blocks, _ = packed(sizes, 4096)
    used = sum(-(-size // 64) * 64 for size in sizes)
    assert sum(blocks) <= 2 * min(used, 4096) + used * 8 / 7
