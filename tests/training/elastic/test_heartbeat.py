"""A rank's page: its content over time, and its reading by an agent."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from dataclasses import astuple
from pathlib import Path

import torch
from torch import nn

from elastrain.agent.process import pages as pulse
from elastrain.api import names
from elastrain.api.pages import heartbeat
from elastrain.api.pages.heartbeat import Beat, Where
from elastrain.elastic.group.heartbeat import Heartbeat, stacks_on_demand


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def page(tmp_path: Path) -> tuple[Heartbeat, Path, Clock]:
    clock, path = Clock(), tmp_path / "page"
    return Heartbeat(str(path), clock), path, clock


def one_step(beat: Heartbeat, clock: Clock, own: float, waited: float) -> None:
    beat.body(7, 3)
    clock.now += own
    beat._gradients_done()
    clock.now += waited
    beat.resumed(1.5)
    beat.runtime()
    beat.committed()


def test_compute_is_the_loop_body_without_the_wait_for_others(tmp_path) -> None:
    beat, path, clock = page(tmp_path)
    for _ in range(3):
        one_step(beat, clock, own=0.25, waited=4.0)
    assert beat.share() == 0.25
    beat.body(7, 3)
    said = pulse.read(path)
    assert said == Beat(Where.BODY, clock.now, 7, 3, commits=3, compute=0.25, total=1.5)


def test_compute_lacks_the_sums_in_the_middle_of_a_backward_and_behind_it(tmp_path) -> None:
    beat, path, clock = page(tmp_path)
    beat.body(7, 3)
    clock.now += 0.25
    with beat.in_sum():
        clock.now += 2.0
        assert pulse.read(path).where is Where.COLLECTIVE
    assert pulse.read(path).where is Where.BODY
    clock.now += 0.5
    beat._gradients_done()
    with beat.in_sum():
        clock.now += 1.0
    assert pulse.read(path).where is Where.COLLECTIVE
    assert beat.spent == 0.75


def test_a_step_that_was_discarded_does_not_count(tmp_path) -> None:
    beat, _, clock = page(tmp_path)
    one_step(beat, clock, own=0.25, waited=1.0)
    beat.body(7, 3)
    clock.now += 50
    beat.runtime()  # its collective failed
    one_step(beat, clock, own=0.25, waited=1.0)
    assert beat.share() == 0.25


def test_a_rank_waits_from_the_moment_its_own_gradients_are_done(tmp_path) -> None:
    beat, path, _ = page(tmp_path)
    seen = []
    model = nn.Linear(2, 1)
    model.weight.register_hook(lambda _g: seen.append(pulse.read(path).where))
    loss = model(torch.ones(1, 2)).sum()
    loss.register_hook(lambda _g: torch.autograd.Variable._execution_engine.queue_callback(ends))  # as DDP's

    def ends() -> None:
        seen.append(pulse.read(path).where)

    beat.body(1, 2)
    # Registered first, so queued first: DDP queues its own when the last gradient is there.
    loss = loss * 1.0
    beat.backward(loss)
    loss.backward()
    assert seen == [Where.BODY, Where.COLLECTIVE]


def test_an_agent_reads_nothing_if_there_is_no_page_or_it_is_being_written(tmp_path) -> None:
    assert pulse.read(tmp_path / "missing") is None
    assert heartbeat.parse(bytes(heartbeat.SIZE)) is None
    torn = bytearray(heartbeat.SIZE)
    heartbeat.write(memoryview(torn), 1, *astuple(Beat()))
    assert heartbeat.parse(bytes(torn)) == Beat()
    torn[0] += 1
    assert heartbeat.parse(bytes(torn)) is None
    assert heartbeat.parse(b"") is None


def test_a_reader_never_sees_a_torn_page(tmp_path) -> None:
    beat, path, _ = page(tmp_path)
    done = threading.Event()

    def write() -> None:
        generation = 0
        while not done.is_set():
            generation += 1
            beat.body(generation, generation)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        said = [b for b in (pulse.read(path) for _ in range(2000)) if b is not None]
    finally:
        done.set()
        writer.join()
    assert said
    assert all(b.generation == b.world_size for b in said if b.where is Where.BODY)


def test_pages_are_read_at_the_interval_only(tmp_path) -> None:
    pages = pulse.Pages(interval=1.0)
    assert pages.due(0.0) is None, "no ranks have been started"
    pages.of(tmp_path / "agent.sock", 2)
    Heartbeat(heartbeat.path_of(str(tmp_path / "agent.sock"), 1))
    assert list(pages.due(10.0) or {}) == [1]
    assert pages.due(10.5) is None
    assert pages.due(11.0) is not None


def test_stacks_are_printed_at_the_signal_and_the_process_continues(capfd) -> None:
    stacks_on_demand()
    try:
        pulse.print_stacks(os.getpid())
    finally:
        faulthandler.unregister(names.STACKS_SIGNAL)
        signal.signal(names.STACKS_SIGNAL, signal.SIG_DFL)
    assert "test_stacks_are_printed_at_the_signal" in capfd.readouterr().err
