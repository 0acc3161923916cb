"""Scrapes of an operator process, while a job trains, is rescaled, has a straggler, and is deleted."""

from __future__ import annotations

import dataclasses

import pytest
from operator_metrics import OF_THE_PROCESS, metrics
from prometheus_client.parser import text_string_to_metric_families

from elastrain.api.batch import BatchFigures, LargerBatch
from elastrain.api.records import Health, Member, Progress, Rescale

pytestmark = pytest.mark.apiserver

GROWN = Rescale(
    generation=2, from_size=1, to_size=2, reason="Grow", step=50, pause_seconds=0.25, lost_steps=3,
    phases={"connect": 0.01, "transfer": 0.05, "first_step": 0.19},
)  # fmt: skip
BATCH = {"min": 32, "max": 128, "learningRate": "Linear"}
CHOSEN = BatchFigures(
    samples=64, base=32, noise_scale=900, effective_samples=3500,
    larger=LargerBatch(samples=128, gain=0.1),
)  # fmt: skip
SLOW = "local rank 0 computes 10.2 times as long per step as the others do on average"


@dataclasses.dataclass
class Scrape:
    """The result of a scrape by Prometheus."""

    text: str

    def names(self) -> set[str]:
        return {s.name for f in text_string_to_metric_families(self.text) for s in f.samples}

    def of(self, name: str, **labels: str) -> list[float]:
        return [
            s.value
            for f in text_string_to_metric_families(self.text)
            for s in f.samples
            if s.name == name and labels.items() <= s.labels.items()
        ]


def test_a_scrape_has_every_metric_and_a_deleted_job_none(cluster, play, client, operator_process, eventually):
    operator = operator_process()
    keys = cluster.create_job(
        "seen", maxReplicas=2, warmSpares=1, batch={"min": 32, "max": 128, "learningRate": "Linear"}
    )
    job = {"namespace": cluster.namespace, "job": "seen"}
    player = play(keys)
    eventually(
        lambda: cluster.status("seen").get("spares", {}).get("ready") == 1, 60, "two workers train, one is spare"
    )
    with player.paused():
        report = Progress(
            generation=player.number, world_size=2, members=2, step=60, total_steps=600, samples=3840,
            step_seconds=0.5, batch=CHOSEN,
        )  # fmt: skip
        client.put(keys.progress, report.encode())
        eventually(lambda: cluster.status("seen").get("progress"), 30, "progress is in the status")
        newest = GROWN.model_copy(update={"generation": player.number + 1})
        client.put(
            keys.progress,
            report.model_copy(update={"generation": player.number + 1, "step": 70, "rescales": (newest,)}).encode(),
        )
        slow = Member(id="seen-1", worker="seen-1", node="n1", address="x", generation=player.number)
        told = slow.model_copy(update={"health": Health.SLOW, "health_message": SLOW})
        client.put(keys.member("seen-1"), told.encode())
        eventually(lambda: cluster.status("seen").get("unhealthyWorkers"), 30, "the straggler is named")

        status = cluster.status("seen")
        assert status["progress"]["of"] == 600
        assert status["progress"]["samplesPerSecond"] == pytest.approx(109.7, abs=20)
        assert status["progress"]["eta"]
        condition = cluster.condition("seen", "WorkersHealthy")
        assert (condition["status"], condition["reason"]) == ("False", "Straggler")
        assert condition["message"].startswith(f"rank 1 (worker seen-1 on node n1): {SLOW}; since ")
        eventually(lambda: "Straggler" in dict(cluster.events("seen")), 30, "the event")
        assert [r for r, _ in cluster.events("seen")].count("Straggler") == 1

        found = Scrape(operator.metrics())
        wanted = {series for m in metrics() for series in m.series} | set(OF_THE_PROCESS)
        # Of jobs with spec.shares: Measured: test_metrics_jobs.py has it.
        assert wanted - {"elastrain_job_slowest_rank_share"} <= found.names()
        assert found.of("elastrain_job_step", **job) == [70]
        assert found.of("elastrain_job_steps_total", **job) == [73], "three steps were repeated"
        assert found.of("elastrain_job_rescales_total", reason="Grow", **job) == [1]
        assert found.of("elastrain_job_unhealthy_workers", health="slow", **job) == [1]
        assert found.of("elastrain_job_accelerator_seconds_total", use="training", **job)[0] > 0
        assert found.of("elastrain_operator_etcd_connected") == [1]
        assert found.of("elastrain_operator_api_requests_total", verb="create", resource="pods", code="201")[0] >= 2

    cluster.call("DELETE", cluster.job_path("seen"))
    eventually(lambda: not Scrape(operator.metrics()).of("elastrain_job_step", **job), 30, "its series are gone")
