"""The transport of a generation's gradients: each rank takes the same decision from all offers."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.comm.backend import (
    Backend,
    Choice,
    Here,
    Offer,
    advice,
    agree,
    device_of_rank,
    look,
    propose,
    propose_within,
)

FIT = Here("cuda", card="GPU-1", nccl=(2, 27, 3))
TCP, NCCL = Backend.TCP, Backend.NCCL


def test_nccl_is_offered_if_the_model_is_on_a_cuda_device_and_torch_brings_it() -> None:
    assert propose(FIT, "auto") == Offer(NCCL, "GPU-1")


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (Here("cpu"), "the model is on the CPU"),
        (Here("xpu"), "the model is on a device of type 'xpu', and NCCL needs CUDA"),
        (Here("cuda", "GPU-1", None), "this build of torch has no NCCL"),
        (Here("cuda", "GPU-1", (2, 21, 5)), "NCCL 2.21.5 cannot be aborted safely, 2.25 can: install a newer torch"),
    ],
)
def test_tcp_is_offered_with_the_reason_if_nccl_is_unavailable_and_demanding_it_is_refused(here, why) -> None:
    assert propose(here, "auto") == Offer(TCP, here.card, why)
    with pytest.raises(ValueError, match=r"ELASTRAIN_BACKEND=nccl, but .*; change that, or set ELASTRAIN_BACKEND=tcp"):
        propose(here, "nccl")


def test_tcp_is_offered_if_the_user_demands_it() -> None:
    assert propose(FIT, "tcp") == Offer(TCP, "GPU-1", "ELASTRAIN_BACKEND=tcp")


def test_nccl_is_chosen_if_all_offer_it_from_devices_of_their_own() -> None:
    assert agree([Offer(NCCL, "GPU-1"), Offer(NCCL, "GPU-2")]).backend is NCCL


def test_tcp_is_chosen_and_the_rank_named_if_one_cannot() -> None:
    offers = [Offer(NCCL, "GPU-1"), Offer(TCP, why="the model is on the CPU")]
    assert agree(offers) == Choice(TCP, "rank 1: the model is on the CPU")


def test_tcp_is_chosen_if_ranks_share_a_card() -> None:
    offers = [Offer(NCCL, "GPU-1"), Offer(NCCL, "GPU-2"), Offer(NCCL, "GPU-1")]
    assert agree(offers) == Choice(TCP, "ranks 0, 2 share the device GPU-1, which NCCL refuses")


@given(st.lists(st.builds(Offer, st.sampled_from(Backend), st.sampled_from("abc"), st.text()), min_size=1, max_size=6))
def test_all_ranks_take_the_same_decision_for_any_offers(offers) -> None:
    told = [Offer.decode(offer.encode()) for offer in offers]
    assert told == offers
    safe = all(o.backend is NCCL for o in offers) and len({o.card for o in offers}) == len(offers)
    assert (agree(told).backend is NCCL) == safe


@pytest.mark.parametrize("proven", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("failed", [(0,), (1,), (0, 1)])
def test_all_fall_back_to_tcp_if_nccl_has_connected_none_and_keep_it_if_any_has_trained_with_it(failed, proven) -> None:
    why = "NCCL: unhandled system error"
    offers = [Offer(NCCL, f"GPU-{n}", failed=why if n in failed else "", proven=n in proven) for n in range(2)]
    choice = agree([Offer.decode(offer.encode()) for offer in offers])
    assert choice.backend is (NCCL if proven else TCP)
    assert proven or choice.why == f"rank {failed[0]} falls back to TCP: {why}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what holds without CUDA")
def test_rank_is_on_the_cpu_and_cuda_is_not_used_if_there_is_none() -> None:
    assert device_of_rank(3) == torch.device("cpu")
    assert look(torch.device("cpu")) == Here("cpu")
    assert not torch.cuda.is_initialized()


def test_rank_gets_the_device_of_its_local_rank_and_shares_if_there_are_too_few(monkeypatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert [device_of_rank(rank).index for rank in range(3)] == [0, 1, 0]
    assert [device.index for device in chosen] == [0, 1, 0]


@pytest.mark.parametrize(
    ("visible", "files", "build", "says"),
    [
        (0, [], None, None),
        (2, ["/dev/nvidia0"], "12.8", r"torch sees 2 CUDA device.*net\.to\(job\.device\), before job\.wrap"),
        (0, ["/dev/nvidia0"], None, r"1 NVIDIA device.*built for CPUs only: install a CUDA build of torch"),
        (0, ["/dev/nvidia0"], "12.8", r"built for CUDA 12\.8\) cannot use them: compare the driver's version"),
    ],
)
def test_the_user_is_advised_if_the_model_does_not_use_the_accelerator(visible, files, build, says) -> None:
    message = advice(visible, files, build)
    assert (message is None) if says is None else re.search(says, message)


def test_nccl_is_used_by_ranks_that_share_a_device_if_all_permit_it_and_nccl_can() -> None:
    def offer(version: tuple[int, int], *, shares: bool) -> Offer:
        return propose(Here("cuda", "GPU-0", version, shares=shares), "auto")

    assert agree([offer((2, 30), shares=True)] * 3).backend is Backend.NCCL
    assert agree([offer((2, 30), shares=True), offer((2, 30), shares=False)]).backend is Backend.TCP
    assert agree([offer((2, 29), shares=True)] * 2).backend is Backend.TCP
    assert Offer.decode(offer((2, 30), shares=True).encode()).shares


GLOO = Backend.GLOO


def test_groups_are_connected_by_what_serves_them_and_sums_over_groups_by_tcp() -> None:
    """On a CPU gloo only if it is demanded."""
    assert propose_within(FIT, "auto") == Offer(
        TCP, "GPU-1", "sums over groups go through the host's memory", inner=NCCL
    )
    assert propose_within(Here("cpu"), "auto") == Offer(TCP, why="the model is on the CPU")
    assert propose_within(Here("cpu"), "gloo").inner is GLOO
    assert propose_within(FIT, "tcp").inner is TCP


@pytest.mark.parametrize(
    ("propose", "here", "demanded", "why"),
    [
        (propose, Here("cpu"), "gloo", "connects the ranks of a group, and spec.parallelism.shards is 1"),
        (propose_within, FIT, "gloo", "the model is on a device of type 'cuda'"),
        (propose_within, Here("cpu"), "nccl", "the model is on the CPU"),
    ],
)
def test_a_transport_that_cannot_connect_groups_is_refused_with_the_way_out(propose, here, demanded, why) -> None:
    with pytest.raises(ValueError, match=rf"ELASTRAIN_BACKEND={demanded}.*{why}.*(leave it out|set ELASTRAIN_BACK)"):
        propose(here, demanded)


@given(
    st.lists(
        st.builds(Offer, st.just(TCP), st.sampled_from("abc"), st.text(), inner=st.sampled_from(Backend)),
        min_size=1,
        max_size=6,
    )
)
def test_groups_are_connected_alike_by_what_all_their_ranks_can_use(offers) -> None:
    choice = agree([Offer.decode(offer.encode()) for offer in offers])
    own_cards = len({offer.card for offer in offers}) == len(offers)
    alike = {offer.inner for offer in offers}
    assert choice.backend is TCP
    assert (choice.inner is GLOO) == (alike == {GLOO})
    assert (choice.inner is NCCL) == (alike == {NCCL} and own_cards)
