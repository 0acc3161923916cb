"""The benchmark of the operator: parsing of the audit log, verdicts, and tables."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import typer

import operator_scale
from bench_harness.machine import machine
from bench_harness.program import Failed
from bench_harness.tables import markdown
from bench_operator.audit import Audit
from bench_operator.net import Api
from bench_operator.report import goals, notes, tables
from bench_operator.results import Cost, Idle, Report, Rescale, Restart, Run
from bench_operator.scenario import Settings
from bench_operator.systems import Slim

SETTINGS = Settings(nodes=600, workers=4, idle=60, limit=60, secret=False, profile=False)
PATCH = "patch elastictrainingjobs/status"


def cost(seconds: float = 40.0, cpu: float = 8.0, rss: float = 120.0, a_job: float = 7.0, jobs: int = 1000) -> Cost:
    requests = {"create pods": 4 * jobs, PATCH: round((a_job - 4) * jobs), "list pods": 1}
    return Cost(seconds=seconds, cpu=cpu, rss_mb=rss, requests=requests, all_requests=20_000, by_process={})


def elastrain(jobs: int = 1000, system: str = "elastrain", p99: float = 0.9, **create: float) -> Run:
    made = cost(jobs=jobs, **create)
    return Run(
        system=system, jobs=jobs, workers=4, create=made, delete=cost(), player_cpu=1.5,
        rescale=Rescale(cost=cost(rss=180), patching_seconds=9, p50=0.2, p99=p99),
        idle=Idle(seconds=60, cpu=0.3, etcd_cpu=0.5, requests={"watch pods": 1}),
        restart=Restart(changed=30, caught_up=6, cpu=5, rss_mb=170, requests={"list pods": 24}),
    )  # fmt: skip


def batch(jobs: int = 1000, seconds: float = 38.0) -> Run:
    return Run(system="batch", jobs=jobs, workers=4, create=cost(seconds=seconds), delete=cost())


@pytest.fixture
def report() -> Callable[..., Report]:
    def build(*runs: Run) -> Report:
        return Report(machine=machine(), kubernetes="v1.35.4", kwok="v0.8.0", nodes=600, runs=runs)

    return build


def entry(user: str, verb: str, resource: str, **fields) -> str:
    what = {"resource": resource, "name": fields.pop("name", "x"), **fields.pop("ref", {})}
    return json.dumps(
        {
            "user": {"username": user}, "verb": verb, "objectRef": what, "responseStatus": {"code": 201},
            "stageTimestamp": "2030-01-01T00:00:02.500000Z", **fields,
        }
    )  # fmt: skip


def test_requests_of_one_user_are_counted_from_a_mark_on(tmp_path):
    log = tmp_path / "audit.log"
    audit = Audit(log, "me")
    assert audit.mark() == 0
    assert audit.requests(0) == {}
    log.write_text(entry("me", "create", "pods") + "\n")
    mark = audit.mark()
    status = entry("me", "patch", "elastictrainingjobs", ref={"subresource": "status"})
    lines = [entry("me", "create", "pods", name="job-0-4"), entry("other", "create", "pods"), status, status]
    with log.open("a") as file:
        file.write("\n".join(lines) + "\n" + status[:20])
    assert audit.requests(mark) == {PATCH: 2, "create pods": 1}
    assert audit.created_pods(mark) == {"job-0-4": pytest.approx(1893456002.5)}


def test_a_refused_pod_does_not_count_as_created(tmp_path):
    log = tmp_path / "audit.log"
    log.write_text(entry("me", "create", "pods", responseStatus={"code": 403}) + "\n")
    assert Audit(log, "me").created_pods(0) == {}


def test_all_goals_are_met_if_every_figure_is_within_its_bound(report):
    found = goals(report(batch(), elastrain(), elastrain(3000)))
    assert len(found) == 5
    assert all(g.met for g in found)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ((batch(seconds=30), elastrain(seconds=61)), "against batch Jobs"),
        ((batch(), elastrain(p99=1.6)), "spec change → pod created"),
        ((batch(), elastrain(a_job=10.2)), "API requests a job"),
        ((elastrain(3000, rss=330.0),), "peak RSS"),
    ],
)
def test_goal_is_missed_by_the_figure_that_is_beyond_its_bound(report, runs, words):
    [missed] = [g for g in goals(report(*runs)) if not g.met]
    assert words in missed.words


def test_the_worst_run_counts_and_each_is_compared_with_its_own_turn(report):
    runs = (batch(seconds=100), elastrain(seconds=105), batch(seconds=30), elastrain(seconds=66))
    missed = goals(report(*runs))[0]
    assert (missed.worst, missed.met) == (pytest.approx(2.2), False)


def test_the_goals_judge_the_shipped_operator_and_not_the_slim_one(report):
    assert not goals(report(elastrain(system="elastrain-slim", a_job=12.0)))


def test_goals_that_were_not_measured_are_not_judged(report):
    assert [g.words for g in goals(report(elastrain(100)))] == ["its API requests a job until Running, at every size"]


def test_tables_have_every_system_and_survive_json(report):
    made = report(batch(), elastrain(), batch(), elastrain(seconds=44.0))
    read = Report.model_validate_json(made.model_dump_json())
    text = markdown(tables(read), notes(read))
    assert "| batch | 1,000 × 4 | 38.0 |" in text
    assert "| elastrain | 1,000 × 4 | 40.0 / 42.0 / 44.0 |" in text
    assert "4.0 create pods, 3.0 patch elastictrainingjobs/status |" in text
    assert "| ... p99, s | 0.90 |" in text
    assert "| idle: operator, % of a core | 0.50 |" in text


@pytest.mark.parametrize("given", ["many", "", "0", "4000"])
def test_sizes_that_cannot_be_run_are_refused(given, capsys):
    with pytest.raises(typer.Exit) as left:
        operator_scale.choose_sizes(given, SETTINGS)
    assert left.value.exit_code == 2
    assert f"--jobs {given!r}" in capsys.readouterr().err


def test_a_phase_ends_at_once_with_the_log_if_the_operator_has_ended(tmp_path):
    (tmp_path / "operator-1.log").write_text("the lease could not be renewed\n")
    ended = SimpleNamespace(directory=tmp_path, processes=SimpleNamespace(runs=lambda name: False))
    system = object.__new__(Slim)
    system.plane, system.process = ended, "operator-1"
    with pytest.raises(Failed, match="operator-1 has ended by itself:\nthe lease could not be renewed"):
        system.until(lambda: False, 1200.0, "all pods run")
    ended.processes.runs = lambda name: True
    system.until(lambda: True, 1200.0, "all pods run")


@pytest.mark.parametrize("closed", [http.client.RemoteDisconnected(), ssl.SSLEOFError(), BrokenPipeError()])
def test_a_call_is_repeated_on_a_new_connection_if_the_api_server_has_closed_the_idle_one(closed, monkeypatch):
    api, sent = Api(1, "token"), []

    def send(_self, method: str, *_: object) -> tuple[SimpleNamespace, bytes]:
        sent.append(method)
        if len(sent) == 1:
            raise closed
        return SimpleNamespace(status=200), b"{}"

    monkeypatch.setattr(Api, "_send", send)
    assert api.merge("/api/v1/pods/a", {}) == {}
    assert sent == ["PATCH", "PATCH"]
