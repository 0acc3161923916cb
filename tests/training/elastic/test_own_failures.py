"""Whose failure it is: a rank that fails itself ends with its own error, and the others commit a step within 5 s.

Each exception class in each section with peers, on a joiner, a source, a survivor, and at the first start. The test is
agent and leader; what the leader decides is in tests/unit/rendezvous/test_decide_failures.py.
"""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

import elastrain.elastic
from conditions import eventually
from elastrain.elastic.comm.communicator import GenerationBroken
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.reshard.restore import ShardRef
from elastrain.elastic.reshard.snapshots import Snapshots
from elastrain.elastic.state import transfer

FAILING = Path(__file__).with_name("train_failing.py")
SECONDS = 5.0
CLASSES = ("OSError", "RuntimeError", "OutOfMemoryError", "CUDA", "NCCL", "KeyError", "PicklingError", "SystemExit")
SECTIONS = {
    "joiner": ("connect", "entry", "receive", "load", "sums", "vote", "barrier"),
    "survivor": ("entry", "sums", "vote", "switch", "barrier"),
    "first start": ("connect", "entry", "sums"),
}
CHECKED = {
    ("joiner", "connect", "OSError"),
    ("joiner", "receive", "OutOfMemoryError"),
    ("joiner", "load", "CUDA"),
    ("joiner", "sums", "SystemExit"),
    ("survivor", "vote", "NCCL"),
    ("survivor", "switch", "KeyError"),
    ("survivor", "barrier", "RuntimeError"),
    ("first start", "entry", "PicklingError"),
}
THREADS = {
    "elastrain-connect-": "connect",
    "elastrain-send-state": "send",
    "elastrain-lane": "send",
    "elastrain-receive-state": "receive",
    "elastrain-allreduce": "sums",
    "elastrain-snapshot": "snapshot",
}
"""The section that fails on a thread beside the training thread."""
OTHERS = {"elastrain-accept", "elastrain-watchdog", "elastrain-nccl", "elastrain-abort",
          "elastrain-revoke", "elastrain-finish", "elastrain-close", "elastrain-close-group", "elastrain-"}  # fmt: skip
"""No part of a step or of a state comes from these: connections, ends, and saves (``elastrain-`` and the tier)."""
MATRIX = [
    pytest.param(*case, marks=[] if case in CHECKED else [pytest.mark.nightly], id="-".join(case))
    for role, sections in SECTIONS.items()
    for section in sections
    for by in CLASSES
    for case in [(role, section, by)]
]


def ends(world, name: str, by: str) -> str:
    """The rank's process ends by its own failure; its output."""
    rank = world.ranks.pop(name)
    try:
        eventually(
            lambda: rank.process.poll() is not None, 30, lambda: f"{name} to end\n{rank.log.read_text()[-3000:]}"
        )
        text = rank.log.read_text()
        assert rank.process.poll() not in (0, None, -9), text[-3000:]
        told = [x for x in rank.of_type("broken") if x.mine and x.leaves]
        assert told or "SystemExit" in by, f"its agent is not told: {rank.received}\n{text[-3000:]}"
        return text
    finally:
        rank.stop()


def goes_on(world, *ranks: str, at_its_end: bool = False) -> None:
    """The others commit a step soon (or end), as the generation that the leader forms without the failed rank."""
    began = time.monotonic()
    world.together(*ranks)
    if at_its_end:
        world.wait("the others to end", lambda: world.ranks[ranks[0]].process.poll() == 0)
    else:
        world.progressed(ranks[0], 1)
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize(("role", "section", "by"), MATRIX)
def test_a_rank_that_fails_itself_ends_with_its_error_and_the_others_go_on(world, role, section, by) -> None:
    pace = {"epochs": 1, "delay": 0.12} if section == "barrier" else {"epochs": 20, "delay": 0.02}
    options = {"FAIL_IN": section, "FAIL_BY": by, **pace}
    world.start("a", **pace)
    if role == "first start":
        world.start("f", script=FAILING, **options)
        world.ready("a", "f")
        world.propose("a", "f")
    elif role == "joiner":
        world.ready("a")
        world.together("a")
        world.start("f", script=FAILING, **options)
        world.ready("f")
        world.propose("a", "f")
    else:
        world.start("f", script=FAILING, FAIL_LATER="1", **options)
        world.ready("a", "f")
        world.together("a", "f")
        world.progressed("a", 2)
        (world.folder / "fail").touch()
        if section in ("entry", "switch"):
            world.propose("a", "f")
    if section == "connect":  # it may fail once
        failed = world.ranks["f"]
        eventually(lambda: failed.has("broken", mine=True, leaves=False), 30, "the first attempt to fail")
        world.propose("a", "f")
    text = ends(world, "f", by)
    assert {"CUDA": "uncorrectable", "NCCL": "unhandled cuda", "SystemExit": ""}.get(by, by) in text
    goes_on(world, "a", at_its_end=section == "barrier")


@pytest.mark.parametrize("by", [pytest.param(b, marks=[] if b == "PicklingError" else [pytest.mark.nightly])
                                for b in CLASSES if b != "SystemExit"])  # fmt: skip
def test_a_rank_that_cannot_send_its_state_keeps_it_and_trains_on(world, by) -> None:
    world.start("a", script=FAILING, FAIL_IN="send", FAIL_BY=by, delay=0.02)
    world.ready("a")
    world.together("a")
    world.progressed("a", 1)
    world.start("j", delay=0.02)
    world.ready("j")
    number = world.propose("a", "j")
    world.wait("a to say so", lambda: world.ranks["a"].has("broken", generation=number, mine=True, unsent=True))
    world.wait("j to be free", lambda: world.ranks["j"].has("broken", generation=number, mine=False))
    goes_on(world, "a")
    assert world.ranks["j"].process.poll() is None, "the joiner is not at fault"


# -- threads in this process ---------------------------------------------------------------------------------------
ERRORS = [OSError("disk"), RuntimeError("x"), torch.OutOfMemoryError("full"), KeyError("k"), SystemExit(3)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_only_a_lost_peer_breaks_a_generation_and_any_other_error_leaves_as_it_is(pair, error) -> None:
    one, other = pair
    told: list[BaseException] = []
    one._on_failure = lambda _number, e: told.append(e)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(other.all_gather_ints, [0])
        with pytest.raises(type(error)) as raised, one.guard():
            raise error
        with pytest.raises(GenerationBroken):
            waits.result(SECONDS)
    assert raised.value is error is one.failure and told == [error]
    assert other.failure is None


def test_a_lost_peer_is_no_failure_of_this_rank(pair) -> None:
    one, other = pair
    other.abort("gone")
    with pytest.raises(GenerationBroken):
        one.all_gather_ints([0])
    with pytest.raises(GenerationBroken), one.guard():
        raise PeerLost("gone")
    assert one.failure is None is other.failure


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: x"), torch.OutOfMemoryError("full")], ids=["CUDA", "OOM"])
def test_a_sum_that_fails_here_is_this_ranks_failure(pair, error, monkeypatch) -> None:
    one, other = pair

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(one._tcp, "_sum", fail)
    waits = threading.Thread(target=lambda: other.sum_bucket(torch.ones(4)).wait())
    waits.start()
    one.sum_bucket(torch.ones(4)).wait()
    waits.join(SECONDS)
    assert not waits.is_alive() and one.failure is error and other.failure is None and other.broken


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("end", ["outgoing", "incoming"])
def test_a_copy_of_a_shard_that_fails_here_is_this_ranks_failure(pair, each, end, error, monkeypatch) -> None:
    one, other = pair
    both = [Snapshots(most=2) for _ in pair]
    each(lambda c: both[c.rank].enter(c, places=[0, 1], partners=[1, 0], step=0, counts=None), pair)

    def failing(whole: Callable, *args: object) -> object:
        if getattr(both[0]._ring, end) in args:
            raise error
        return whole(*args)

    for name in ("send_tensors", "receive_tensors"):
        monkeypatch.setattr(transfer, name, partial(failing, getattr(transfer, name)))
    for c, snapshots in zip(pair, both, strict=True):
        snapshots.take(ShardRef(1, 2, c.rank), [], rest={}, step_seconds=None)
    for snapshots in both:
        snapshots.wait()
    with pytest.raises(GenerationBroken):
        other.all_gather_ints([0])
    assert one.failure is error and other.failure is None


def test_every_thread_of_a_rank_has_its_section_in_the_matrix() -> None:
    sources = [ast.parse(f.read_text()) for f in Path(elastrain.elastic.__file__).parent.rglob("*.py")]
    calls = [node for source in sources for node in ast.walk(source) if isinstance(node, ast.Call)]
    named = [
        key.value for c in calls if ast.unparse(c.func) == "threads.start" for key in c.keywords if key.arg == "name"
    ]
    found = {node.value for name in named for node in ast.walk(name) if isinstance(node, ast.Constant)}
    assert found == THREADS.keys() | OTHERS
    assert set(THREADS.values()) - {"send", "snapshot"} <= {s for of in SECTIONS.values() for s in of}


def test_a_state_that_cannot_be_sent_breaks_the_generation_and_not_the_rank(pair) -> None:
    one, _ = pair
    with (
        pytest.raises(GenerationBroken, match="rank 0 cannot send its state: TypeError: a lock"),
        one.guard(sends=True),
    ):
        raise TypeError("a lock")
    assert one.failure is None and isinstance(one.unsent, TypeError)
