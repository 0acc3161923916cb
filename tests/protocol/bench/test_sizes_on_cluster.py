"""The benchmark of sizes on a control plane, with a small kit of made jobs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench_operator.cluster import missing

BENCH = Path(__file__).parents[3] / "bench/sizes_on_cluster.py"
MODEL = """
class App:
    init, epochs, goals, min_local = 32, 1, [0.0, 240.0], 8
    def __init__(self, name, fixed):
        self.name, self.fixed = name, fixed
    def split(self, batch, gpus):
        return batch // gpus, 0
    def step_time(self, placement, micro):
        return 0.1 * (self.fixed + (1 - self.fixed) / sum(placement)), 0.0
    def noise_at(self, batch, epoch):
        return 1.0, 0.0

def load():
    return {name: App(name, fixed) for name, fixed in (("well", 0.0), ("badly", 0.8))}

def table(_):
    for i in range(8):
        name = ("well", "badly")[i % 2]
        yield dict(load="1.0", workload="3", name=f"{name}-{i}", time=str(2 * i), application=name, batch="64")
"""

pytestmark = pytest.mark.nightly


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_all_jobs_of_a_small_workload_end_as_the_simulator_says(tmp_path):
    kit, found = tmp_path / "kit", tmp_path / "figures.json"
    (kit / "data").mkdir(parents=True)
    (kit / "model.py").write_text(MODEL)
    (kit / "data/workloads.csv.gz").touch()
    argv = [sys.executable, str(BENCH), f"--kit={kit}", "--jobs=6", "--nodes=2", "--faster=1", "--pause=0.3"]
    argv += ["--limit=240", f"--json={found}", f"--logs={tmp_path / 'logs'}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(found.read_text())
    by_name = {job["name"]: job for job in report["jobs"]}
    assert len(by_name) == 6
    assert all(0 < job["waited"] < job["jct"] for job in report["jobs"])
    assert report["cluster"]["rescales"] > 0, "sizes have changed"
    ratio = report["cluster"]["mean"] / report["simulations"][0]["mean"]
    assert 0.6 < ratio < 1.7, "a loaded machine adds seconds, and small changes of times change sizes"
