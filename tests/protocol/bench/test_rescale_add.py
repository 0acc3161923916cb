"""Runs that are added to an earlier report: of the same conditions, or not at all."""

from __future__ import annotations

import pytest

from rescale import Benchmark, same_conditions
from rescale_harness import summary
from rescale_harness.events import SCENARIOS
from rescale_harness.machine import machine
from rescale_harness.results import Machine, Report, RunResult
from rescale_harness.systems import Settings

SETTINGS = Settings(checkpoint_every=20, lease_ttl=2)


@pytest.fixture(scope="module")
def here() -> Machine:
    return machine()


def report(of: Machine, **fields: object) -> Report:
    run = RunResult(start=1.0, step=0.1, longest_step=0.2, events=(), samples=None, rolled_back=0.0)
    facts: dict[str, object] = {
        "machine": of, "began": "2026-01-01 00:00 UTC", "seconds": 60.0, "events": ("grow",), "checkpoint_every": 20,
        "limit": 180.0, "systems": {"torchrun-tuned": summary.system_result("", [run])}, "scenarios": ("default",),
    }  # fmt: skip
    return Report.model_validate(facts | fields)


def test_earlier_runs_and_scenarios_are_kept(here: Machine) -> None:
    earlier = report(here.model_copy(update={"revision": "abc", "load": 0.25}))
    both = Benchmark(["elastrain"], {"silent": SCENARIOS["silent"]}, SETTINGS, 180.0, earlier).report()
    assert len(both.systems["torchrun-tuned"].runs) == 1
    assert (both.began, both.scenarios, both.lease_ttl) == (earlier.began, ("default", "silent"), 2)
    assert both.seconds >= 60
    assert both.machine.load == 0.25
    assert both.machine.revision == f"abc, {here.revision}", "who reads the figures sees that there were two"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"checkpoint_every": 5}, "--checkpoint-every 5 --limit 180 --lease-ttl 2"),
        ({"limit": 30.0}, "--checkpoint-every 20 --limit 30 --lease-ttl 2"),
        ({"lease_ttl": 10.0}, "--checkpoint-every 20 --limit 180 --lease-ttl 10"),
    ],
)
def test_runs_are_refused_if_the_settings_differ(here: Machine, fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        same_conditions(report(here, **fields), here, SETTINGS, 180.0)


def test_runs_are_refused_if_the_machine_differs(here: Machine) -> None:
    other = here.model_copy(update={"torch": "1.0"})
    with pytest.raises(ValueError, match=r"another machine or with other versions.*torch='1\.0'"):
        same_conditions(report(other), here, SETTINGS, 180.0)
