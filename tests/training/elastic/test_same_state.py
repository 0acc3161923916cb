"""A copy of a state is the state: of every type and optimizer, on every way, it equals what was sent to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from elastrain.api.settings import CheckpointSpec
from elastrain.elastic.checkpoint import CheckpointKeeper, levels_of
from elastrain.elastic.encoding.leaves import is_dense
from elastrain.elastic.state import capture, digest, host_copy, transfer
from elastrain.elastic.state.capture import NotTheSame
from elastrain.elastic.state.portions import Transfer
from elastrain.elastic.state.receiver import StateReceiver
from elastrain.elastic.state.sender import StateSender
from elastrain.elastic.undo.leaves import Leaves
from fingerprints import fingerprints

Tracked = dict[str, Any]
BITS = torch.arange(1, 33, dtype=torch.uint8)


def is_copied(dtype: torch.dtype) -> bool:
    """Whether torch itself can copy tensors of this type."""
    try:
        value = BITS.view(dtype)
        torch.empty_like(value).copy_(value)
    except (NotImplementedError, RuntimeError):
        return False
    return True


DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype) and is_copied(d)}, key=str)


class Values:
    """Tracked by the script: returns and takes tensors."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = dict(state)


class Everything(nn.Module):
    """Buffers of all types, in its ``state_dict`` and not, and an extra state."""

    def __init__(self, fill: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 6), float(fill)))
        self.inner = nn.Module()
        for number, dtype in enumerate(DTYPES):
            for persistent in (True, False):
                bits = BITS % 2 * bool(fill) if dtype == torch.bool else BITS * fill
                value = bits.view(dtype)
                self.inner.register_buffer(f"{'in' if persistent else 'out'}{number}", value, persistent=persistent)
        self.register_buffer("lines", torch.full((2, 3, 4, 5), float(fill)).to(memory_format=torch.channels_last))
        self.extra = (torch.tensor([fill], dtype=torch.bfloat16), f"{fill}")

    def get_extra_state(self) -> Any:
        return {"extra": self.extra}

    def set_extra_state(self, state: Any) -> None:
        self.extra = state["extra"]


def everything(fill: int) -> Tracked:
    dense = torch.eye(5)[:, :4] * fill
    values = Values(
        coo=dense.to_sparse(),
        csr=dense.to_sparse_csr(),
        csc=dense.double().to_sparse_csc(),
        conj=torch.complex(torch.ones(3) * fill, torch.ones(3)).conj(),
        scalar=torch.tensor(fill),
        empty=torch.empty(0, 3, dtype=torch.float8_e5m2),
        permuted=(torch.arange(2400.0) * fill).reshape(40, 60).T,
        with_gaps=(torch.arange(30) * fill)[::3],
        nan=torch.tensor([float("nan"), -0.0]),
        number=0.1 * fill,
    )
    return {"model": Everything(fill), "values": values}


# -- the ways ----------------------------------------------------------------------------------------------------------
@pytest.fixture(params=["by_transfer", "by_checkpoint", "by_snapshot", "by_snapshot_on_the_host"])
def moved(request, connect, each, tmp_path, monkeypatch) -> Callable[[Tracked, Tracked], None]:
    """``moved(there, here)``: objects ``here`` get the state of those ``there``."""
    monkeypatch.setattr(transfer, "SMALL_BYTES", 200)

    def by_transfer(there: Tracked, here: Tracked) -> None:
        def one(c: Any) -> None:
            try:
                if c.rank == 0:
                    StateSender(capture.capture(there), c, Transfer([0], [1])).pause()
                    assert c.broken is None
                else:
                    capture.restore(here, StateReceiver(capture.capture(here), c, Transfer([0], [1])).complete())
            except BaseException as e:
                c.abort(str(e))
                raise

        each(one, connect(2))

    def by_checkpoint(there: Tracked, here: Tracked) -> None:
        spec = CheckpointSpec(path=str(tmp_path / "checkpoints"))
        keeper = CheckpointKeeper(levels_of(spec))
        keeper.resume(lambda _: None, saved_step=0, reached=0, partial_state="")
        assert keeper.save_now(5, 1, lambda: capture.capture(there))
        keeper.finish()
        assert keeper.result is not None and keeper.result.step == 5, keeper.result
        resumed = CheckpointKeeper(levels_of(spec))
        resumed.resume(lambda tree: capture.restore(here, tree), saved_step=5, reached=5, partial_state="")

    def by_snapshot(there: Tracked, here: Tracked) -> None:
        capture.restore(here, capture.copied(capture.capture(there)))
        snapshot = Leaves(here)
        snapshot.begin(whole=True)
        with torch.no_grad():
            for leaf in torch.utils._pytree.tree_leaves(capture.capture(here)):
                if torch.is_tensor(leaf) and leaf.layout is torch.strided:
                    leaf.zero_()
        assert not snapshot.restore()

    def by_snapshot_on_the_host(there: Tracked, here: Tracked) -> None:
        monkeypatch.setattr(host_copy, "_memory_of", lambda _device: 1)
        by_snapshot(there, here)

    ways = (by_transfer, by_checkpoint, by_snapshot, by_snapshot_on_the_host)
    return {way.__name__: way for way in ways}[request.param]


def assert_same(there: Tracked, here: Tracked) -> None:
    one, other = fingerprints(capture.capture(there)), fingerprints(capture.capture(here))
    assert one == other
    tensors = [
        [x for x in torch.utils._pytree.tree_leaves(capture.capture(t)) if torch.is_tensor(x)] for t in (there, here)
    ]
    for sent, arrived in zip(*tensors, strict=True):
        if is_dense(sent):
            assert sent.stride() == arrived.stride()
        assert sent.device.type == arrived.device.type


def test_every_entry_is_as_it_was_sent_for_all_types_of_torch(moved) -> None:
    there, here = everything(3), everything(0)
    sent = fingerprints(capture.capture(there))
    assert len(sent) > 2 * len(DTYPES)
    moved(there, here)
    assert_same(there, here)
    assert fingerprints(capture.capture(there)) == sent, "sending has changed the sender"
    assert here["model"].inner.out0.dtype == DTYPES[0]
    assert (here["values"].values["coo"].to_dense() == torch.eye(5)[:, :4] * 3).all()


def test_buffers_outside_of_the_state_dict_arrive_if_their_shape_differs_or_one_is_new(moved) -> None:
    def model(length: int, *, more: bool) -> Tracked:
        net = nn.Linear(2, 2)
        net.register_buffer("cache", torch.arange(float(length)), persistent=False)
        if more:
            net.register_buffer("mask", torch.ones(2, dtype=torch.bool), persistent=False)
        return {"model": net}

    there, here = model(9, more=True), model(4, more=False)
    moved(there, here)
    assert_same(there, here)


# -- optimizers --------------------------------------------------------------------------------------------------------
class MasterWeights(torch.optim.Optimizer):
    """A user's: float32 weights and moments beside parameters of another type, a counter and a list."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["master"], state["moment"] = p.detach().float().clone(), torch.zeros(p.shape, dtype=torch.float64)
                state["seen"], state["count"] = torch.zeros(p.shape, dtype=torch.bool), 0
                state["history"] = []
            state["moment"].mul_(0.9).add_(p.grad.double())
            state["history"] = [*state["history"], p.grad.float().norm()][-2:]
            state["seen"] |= p.grad != 0
            state["count"] += 1
            state["master"].sub_(0.01 * state["moment"].float())
            p.copy_(state["master"])


def of_hugging_face(parameters: Any) -> torch.optim.Optimizer:
    adafactor = pytest.importorskip("transformers.optimization").Adafactor
    return adafactor(parameters, lr=1e-2, relative_step=False, scale_parameter=False)


OF_TORCH = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    **{name: lambda parameters, kind=kind: kind(parameters, lr=1e-2) for name, kind in OF_TORCH.items()},
    "AMSGrad": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(1e-2), amsgrad=True, foreach=False),
    "Momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "MasterWeights": MasterWeights,
    "transformers.Adafactor": of_hugging_face,
}


class Training:
    """A model with an optimizer; each step has another gradient."""

    def __init__(self, kind: str, dtype: torch.dtype, *, seed: int) -> None:
        torch.manual_seed(seed)
        self.sparse = kind == "SparseAdam"
        shapes = [(40, 6)] if kind == "Muon" else [(40, 6), (40,)]
        self.net = nn.ParameterList([nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes])
        self.optimizer = OPTIMIZERS[kind](self.net.parameters())
        self.tracked = {"model": self.net, "optimizer": self.optimizer}

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)

        def closure() -> torch.Tensor:
            for p in self.net.parameters():
                gradient = torch.randn(p.shape, generator=generator).to(p.dtype)
                p.grad = gradient.to_sparse() if self.sparse else gradient
            return torch.tensor(1.0)

        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(closure)
        else:
            closure()
            self.optimizer.step()


REAL_ONLY = ("Adafactor", "MasterWeights", "Muon", "SparseAdam", "transformers.Adafactor")
CASES = [
    (kind, dtype)
    for kind in OPTIMIZERS
    for dtype in (torch.float32, torch.bfloat16, torch.complex64)
    if dtype != torch.complex64 or kind not in REAL_ONLY
]


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_a_joiner_trains_the_same_model_for_every_optimizer(kind, dtype, moved) -> None:
    there, here = Training(kind, dtype, seed=0), Training(kind, dtype, seed=1)
    for number in range(3):
        there.step(number)
    moved(there.tracked, here.tracked)
    assert_same(there.tracked, here.tracked)
    for number in range(3, 6):
        there.step(number)
        here.step(number)
    assert_same(there.tracked, here.tracked)


@pytest.mark.parametrize(
    ("given", "missing", "reads"),
    [
        (lambda there, here: there, lambda _: False, 2),
        (lambda there, here: here, lambda _: False, 0),
        (lambda there, here: there, lambda leaf: torch.is_tensor(leaf), 0),
    ],
    ids=["elsewhere", "in place", "without content yet"],
)
def test_a_load_reads_each_tensor_at_most_once_and_none_that_has_arrived_in_place(
    given, missing, reads, monkeypatch
) -> None:
    monkeypatch.setattr(capture, "_COPIED_BYTES", 0)
    there, here = (Training("AdamW", torch.float32, seed=seed) for seed in range(2))
    for training in (there, here):
        training.step(0)
    read: list[int] = []
    flat = digest._flat
    monkeypatch.setattr(digest, "_flat", lambda tensor: read.append(tensor.data_ptr()) or flat(tensor))
    tensors = transfer.tensors_of(state := capture.capture(given(there, here).tracked))
    capture.restore(here.tracked, state, missing=missing)
    # Of an optimizer's state torch keeps the tensor itself, so that only parameters and step counts are elsewhere.
    assert sum(read.count(t.data_ptr()) for t in tensors if t.dim()) == reads


# -- what cannot be loaded ---------------------------------------------------------------------------------------------
def test_the_entry_is_named_if_an_object_does_not_load_what_was_sent() -> None:
    class Rounds(Values):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict({**state, "average": state["average"].bfloat16().float()})

    there = {"ema": Rounds(average=torch.tensor([1.2345678]), count=3)}
    with pytest.raises(
        NotTheSame, match=r"job\.track\(ema=…\).*Rounds\.load_state_dict.*\['average'\] is .* instead of"
    ):
        capture.restore({"ema": Rounds(average=torch.zeros(1), count=0)}, capture.capture(there))


def test_the_entry_is_named_if_an_object_drops_it() -> None:
    class Drops(Values):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.values = {key: value for key, value in state.items() if key != "count"}

    with pytest.raises(NotTheSame, match=r"\['count'\] is missing instead of 3"):
        capture.restore({"x": Drops(count=0)}, {"x": {"count": 3}})


def test_a_clock_in_the_state_is_no_difference() -> None:
    class Clock(Values):
        def state_dict(self) -> dict[str, Any]:
            self.values["looks"] = self.values.get("looks", 0) + 1
            return dict(self.values)

    here = {"clock": Clock()}
    capture.restore(here, {"clock": {"looks": 3, "steps": 7}})
    assert here["clock"].values["steps"] == 7
