"""No background task of the operator ends in silence, whatever it meets."""

from __future__ import annotations

import ast
import asyncio
import errno
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

import elastrain_operator
from elastrain.api.names import EXIT_INFRASTRUCTURE
from elastrain.etcd import EtcdConfig
from elastrain_operator import process
from elastrain_operator.app import App
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.kube.answers import ApiError, decoded
from elastrain_operator.metrics.process import REGISTRY
from elastrain_operator.supervise import Tasks

CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379"))
SUPERVISED_OTHERWISE = {
    "supervise.py": "the supervisor itself",
    "app.py": "ends one job: asyncio reports its error",
    "job/recorder.py": "a group that fails as a whole, in a supervised task",
    "job/loop.py": "the loop catches everything of a pass",
    "process.py": "awaited; its end ends the process",
}


def errors() -> float:
    return REGISTRY.get_sample_value("elastrain_operator_errors_total", {"source": "operator"}) or 0.0


@pytest.mark.parametrize("error", [ValueError("HTML"), TypeError("None"), OSError(errno.EMFILE, "files"), None])
def test_a_task_that_fails_or_ends_is_logged_counted_shown_and_begun_again(error):
    async def scenario():
        begun, tasks = asyncio.Semaphore(0), Tasks(again=0.0)

        async def run() -> None:
            begun.release()
            if error is not None:
                raise error

        before = errors()
        task = tasks.start("search", run)
        async with asyncio.timeout(10):
            for _ in range(3):
                await begun.acquire()
        assert errors() >= before + 2
        assert list(tasks.failures()) == ["search"]
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with structlog.testing.capture_logs() as logs:
        asyncio.run(scenario())
    assert {(entry["task"], entry["log_level"]) for entry in logs} == {("search", "error")}


def test_a_failure_of_one_task_leaves_the_others_alone():
    async def scenario():
        tasks, alive = Tasks(again=3600.0), asyncio.Event()

        async def fails() -> None:
            raise ValueError("at once")

        async def lives() -> None:
            await asyncio.sleep(0)
            alive.set()
            await asyncio.Event().wait()

        started = [tasks.start("one", fails), tasks.start("two", lives)]
        async with asyncio.timeout(10):
            await alive.wait()
        assert not any(task.done() for task in started)
        assert list(tasks.failures()) == ["one"]

    asyncio.run(scenario())


def test_each_task_of_the_operator_is_supervised():
    root = Path(elastrain_operator.__file__).parent
    unsupervised = set()
    for path in root.rglob("*.py"):
        calls = (n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
        if any(isinstance(call, ast.Attribute) and call.attr == "create_task" for call in calls):
            unsupervised.add(str(path.relative_to(root)))
    assert unsupervised == SUPERVISED_OTHERWISE.keys()


@pytest.mark.parametrize("page", [b"<html>Please log in</html>", b"[1]", b"", b"\xff", b"null", b"17"])
def test_an_answer_of_a_proxy_is_an_error_of_the_call_that_is_repeated(page):
    with pytest.raises(ApiError, match="cannot list pods: HTTP 200, and no JSON object") as caught:
        decoded("list pods", 200, page)
    assert caught.value.is_transient


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Expecting value: line 1 column 1"),  # a page of a proxy
        ApiError("list jobs", 404, "NotFound", "the server could not find the requested resource"),  # no CRD
        RuntimeError("Error in the watch-stream: etcdserver: no leader"),
        OSError(errno.EADDRINUSE, "Address already in use"),
    ],
)
def test_the_process_names_the_answer_that_ends_kopf_and_is_started_again(monkeypatch, error):
    async def ends(**_):
        raise error

    monkeypatch.setattr(process.kopf, "operator", ends)
    with capture_logs() as logged:
        code = asyncio.run(process.Process(CONFIG)._lead(asyncio.Event(), App(CONFIG)))
    assert code == EXIT_INFRASTRUCTURE
    assert str(error) in logged[-1]["error"]
    assert "exc_info" not in logged[-1], "no traceback"
