"""The benchmark's harness: events, step logs, the page with the figures, options, and the end of all processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import checkpoint
import rescale
from bench_harness.processes import Load
from bench_rescale.events import DEFAULT, EVENTS, SCENARIOS, Event, kind, labels, sizes
from bench_rescale.steplog import ENV_LOGS, ENV_NODE, ENV_SHARDING, StepLog, StepLogs
from bench_rescale.systems import SYSTEMS, Settings
from elastrain.api import names
from elastrain.api.settings import RankSettings

BENCH = Path(__file__).parents[3] / "bench"


def test_sizes_follow_from_the_events() -> None:
    assert sizes(SCENARIOS[DEFAULT].events) == [2, 3, 3, 2, 3, 2]
    assert sizes(SCENARIOS["silent"].events, SCENARIOS["silent"].nodes) == [3, 2, 3]
    assert sizes([Event.GROW_MANY]) == [2, 8]


def test_every_scenario_can_happen_and_together_they_have_every_event() -> None:
    for scenario in SCENARIOS.values():
        sizes(scenario.events, scenario.nodes)
    assert {e for s in SCENARIOS.values() for e in s.events} == set(EVENTS) == set(Event)


def test_events_of_different_scenarios_have_different_names() -> None:
    every = [label for s in SCENARIOS.values() for label in labels(s.events)]
    assert len(every) == len(set(every)), "their figures would be mixed"


def test_events_are_refused_if_they_leave_no_node() -> None:
    with pytest.raises(ValueError, match="term after 1 events: 0 nodes, must be 1 to 16"):
        sizes([Event.TERM, Event.TERM])


def test_a_node_cannot_be_woken_if_none_is_silent() -> None:
    with pytest.raises(ValueError, match="wake after 0 events: no node is silent, silent must come first"):
        sizes([Event.WAKE])


def test_a_repeated_event_has_its_own_name() -> None:
    assert labels([Event.GROW, Event.TERM, Event.GROW]) == ["grow", "term", "grow #2"]
    assert kind("grow #2") is Event.GROW


def test_an_incomplete_line_is_left_for_the_next_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_LOGS, str(tmp_path))
    monkeypatch.setenv(ENV_NODE, "3")
    log = StepLog()
    log.begin(0)
    logs = StepLogs(tmp_path)
    assert [x.kind for x in logs.poll()] == ["start", "begin"]
    log.commit(1, world=2, rank=1)
    path = next(tmp_path.iterdir())
    whole = path.read_text()
    path.write_text(whole[:-5])
    assert len(logs.poll()) == 2
    path.write_text(whole)
    last = logs.poll()[-1]
    assert (last.kind, last.node, last.pid, last.step, last.world, last.rank) == ("commit", 3, os.getpid(), 1, 2, 1)


def test_a_load_takes_every_core_and_ends_with_its_context() -> None:
    with Load() as load:
        pids = load.pids
        assert len(pids) == len(os.sched_getaffinity(0))
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_no_process_is_left_if_an_agent_was_killed_and_its_children_live_on(tmp_path: Path) -> None:
    # In a separate process, since it ends all of its children.
    script = """
import os, sys, time
from pathlib import Path
from bench_harness.processes import Processes

processes = Processes(Path(sys.argv[1]), dict(os.environ))
child = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
processes.start("agent", [sys.executable, "-c", parent], {})
log = Path(sys.argv[1]) / "agent.log"
end = time.monotonic() + 30
while not log.read_text().endswith("\\n") and time.monotonic() < end:
    time.sleep(0.01)
agent = processes.tree("agent")[0]
processes.kill([agent])
processes.end()
print(agent, log.read_text())
"""
    answer = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCH), *sys.path])},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    agent, child = answer.stdout.split()
    assert not Path(f"/proc/{agent}").exists()
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize(
    ("nproc", "system"), [(2, "elastrain-hsdp"), (2, "torchrun-hsdp"), (1, "elastrain-one-copy"), (1, "torchrun-fsdp")]
)
def test_a_node_of_a_sharded_system_has_the_ranks_of_one_group(tmp_path: Path, nproc: int, system: str) -> None:
    with SYSTEMS[system](tmp_path, Settings()) as running:
        command, environment = running.node(0)
    if system.startswith("torchrun"):
        assert f"--nproc-per-node={nproc}" in command
        assert environment[ENV_SHARDING] == ("node" if nproc > 1 else "all")
    else:
        assert environment[names.ENV_NPROC] == str(nproc)
        assert RankSettings.model_validate_json(environment[names.ENV_RANK_SETTINGS]).shards in {2, "all"}


@pytest.mark.parametrize(
    ("main", "options", "words"),
    [
        (checkpoint.main, {"systems": "dcp,torch"}, "--systems: 'torch' must be one of elastrain, dcp"),
    ],
)
def test_another_benchmark_refuses_a_wrong_option_alike(main, options: dict[str, str], words: str, capsys) -> None:
    with pytest.raises(typer.Exit) as ended:
        main(**options)
    assert ended.value.exit_code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"systems": "torchrun"}, "--systems: 'torchrun' must be one of elastrain, elastrain-hsdp"),
        ({"events": "grow,boom"}, "--events: 'boom' must be one of grow, grow-many"),
        ({"events": "grow-many" + 9 * ",grow"}, "grow after 9 events: 17 nodes, must be 1 to 16"),
        ({"scenarios": "calm"}, "--scenarios: 'calm' must be one of default, kill-first"),
        ({"systems": "torchft-tuned"}, "torchft: --torchft-python must be the Python of a virtual environment"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name_and_value(options: dict[str, str], words: str, capsys) -> None:
    with pytest.raises(typer.Exit) as ended:
        rescale.main(**options)
    assert ended.value.exit_code == 2
    assert words in capsys.readouterr().err
