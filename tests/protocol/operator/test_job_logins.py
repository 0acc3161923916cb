"""Users of a real etcd and Secrets for jobs: created, repaired and removed, with kills of the operator at any time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil

import pytest
import trustme
from pydantic import SecretBytes
from structlog.testing import capture_logs

from elastrain.api.keys import JobKeys
from elastrain.api.records import Issued
from elastrain.etcd import EtcdClient, EtcdConfig, EtcdDenied, EtcdError, EtcdUnavailable
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import JobRef, Outage
from elastrain_operator.kube.client import ApiError
from elastrain_operator.records import logins as logins_module
from elastrain_operator.records.logins import JobLogins
from elastrain_operator.users import EtcdUsers

JOB = JobRef("ns", "job", "uid-1234567", 1)
KEYS = JobKeys("ns", "job", "uid-1234567")
KEY = b"k" * 32


class World:
    """API server and the mirror of etcd's records; ``failing`` is the number of the write that fails, from 1."""

    def __init__(self) -> None:
        self.secrets: dict[str, dict] = {}
        self.records: dict[JobKeys, Issued] = {}
        self.outage: Outage | None = None
        self.losses = 0
        self.unread = False
        self.writes: list[str] = []
        self.failing = 0

    def _note(self, write: str) -> None:
        self.writes.append(write)
        if len(self.writes) == self.failing:
            raise ApiError(write, 503, "", "killed here")

    def issued(self, keys):
        return self.records.get(keys)

    def is_unread(self, keys):
        return self.unread

    async def claim(self, keys):
        self._note("claim")

    async def put_issued(self, keys, issued):
        self._note("record")
        self.records[keys] = issued

    async def write_secret(self, namespace, manifest, *, expected):
        name = manifest["metadata"]["name"]
        self._note("secret")
        self.secrets[name] = manifest

    def values(self) -> dict[str, str]:
        """The content of the job's Secret."""
        data = self.secrets["job-etcd-uid-1234"]["data"]
        return {name: base64.b64decode(value).decode() for name, value in data.items()}


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(logins_module, "ECHO_SECONDS", 0.0)
    return World()


@pytest.fixture
def config(secure_etcd):
    etcd = secure_etcd.root
    return OperatorConfig(
        etcd=etcd,
        worker_etcd=WorkerEtcd(endpoints=secure_etcd.endpoint, user=True, ca=True, per_job=True),
        job_key=KEY,
    )


@pytest.fixture
def root(secure_etcd):
    with EtcdClient(secure_etcd.root, timeout=5.0) as client:
        yield client


@pytest.fixture
def new_logins(config, root, world):
    """``new_logins()``: an operator's logins; a second call makes that of the next operator."""
    return lambda changed=config: JobLogins(EtcdUsers(root), world, world, changed)


def logged_in(secure_etcd, world) -> EtcdClient:
    """A client with the credentials in the job's Secret."""
    values = world.values()
    secure_etcd.ca_file.write_text(values["ca.crt"])
    return EtcdClient(secure_etcd.config(values["username"], values["password"]), timeout=2.0)


def keep(logins, **case):
    asyncio.run(logins.keep(JOB, **case))


def test_a_job_gets_a_user_and_a_secret_that_is_deleted_with_it(new_logins, world, secure_etcd):
    keep(new_logins(), creating=True)
    assert world.writes == ["claim", "secret", "record"]
    manifest = world.secrets["job-etcd-uid-1234"]
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ElasticTrainingJob", JOB.uid)
    with logged_in(secure_etcd, world) as client:
        client.put(KEYS.target, b"1")
        for other in ("/elastrain/ns/other/uid/target", "/elastrain/ns/job/an-earlier-uid/target"):
            with pytest.raises(EtcdDenied):
                client.put(other, b"1")


def test_no_log_line_contains_the_password(new_logins, world):
    with capture_logs() as lines:
        keep(new_logins(), creating=True)
    assert [line["event"] for line in lines] == ["issued credentials"]
    assert world.values()["password"] not in str(lines)


def test_nothing_is_written_without_a_change(new_logins, world):
    logins = new_logins()
    keep(logins, creating=True)
    world.writes.clear()
    keep(logins, live=True)
    keep(logins)
    assert world.writes == []
    keep(logins, creating=True)
    keep(logins, live=True, wait_long=True)
    assert world.writes == []
    keep(new_logins(), creating=True)
    assert world.writes == ["secret"], "of an earlier operator: it may have been deleted"


def test_a_secret_is_written_again_while_workers_wait_long_to_start(new_logins, world, monkeypatch):
    monkeypatch.setattr(logins_module, "INTERVAL", 0.0)
    logins = new_logins()
    keep(logins, creating=True)
    world.writes.clear()
    keep(logins, live=True, wait_long=True)
    assert world.writes == ["secret"], "it may have been deleted"


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_the_next_operator_completes_the_writes_of_a_killed_one(new_logins, world, secure_etcd, failing):
    world.failing = failing
    with pytest.raises(ApiError):
        keep(new_logins(), creating=True)
    keep(new_logins(), creating=True)
    with logged_in(secure_etcd, world) as client:
        client.put(KEYS.target, b"1")


def test_a_job_that_writes_too_much_loses_its_rights_until_another_operator_takes_over(new_logins, world, secure_etcd):
    logins = new_logins()
    keep(logins, creating=True)
    with logged_in(secure_etcd, world) as client:
        client.put(KEYS.target, b"1")
        logins.suspend(KEYS)
        asyncio.run(logins._suspend_users())
        with pytest.raises(EtcdDenied):
            client.put(KEYS.target, b"1")
        keep(logins, live=True)
        with pytest.raises(EtcdDenied):
            client.put(KEYS.target, b"1")
        keep(new_logins(), live=True)
        client.put(KEYS.target, b"1")


def test_the_same_password_is_restored_if_etcd_lost_its_users(new_logins, world, secure_etcd, root):
    keep(new_logins(), creating=True)
    before = world.values()
    with logged_in(secure_etcd, world) as client:
        client.put(KEYS.target, b"1")
        secure_etcd.kill()
        shutil.rmtree(secure_etcd.data_dir / "data")
        secure_etcd.start()
        world.records.clear()  # as the mirror will show

        async def operator() -> None:
            logins = new_logins()
            guarding = asyncio.create_task(logins.run())
            for _ in range(500):
                with contextlib.suppress(EtcdError):
                    await logins.keep(JOB, live=True)
                    if await asyncio.to_thread(EtcdUsers(root).are_checked, "root-secret"):
                        break
                await asyncio.sleep(0.02)
            guarding.cancel()

        asyncio.run(operator())
        assert EtcdUsers(root).are_checked("root-secret"), "authentication is enabled again"
        assert world.values() == before
        client.put(KEYS.target, b"2")  # the worker's client continues, with its old token and its old files
        with pytest.raises(EtcdDenied):
            client.get("/elastrain/")


def test_workers_get_another_ca_without_another_password(new_logins, world, secure_etcd):
    logins = new_logins()
    keep(logins, creating=True)
    before, woken = world.values(), []
    logins._on_change = lambda: woken.append(True)
    secure_etcd.trust(secure_etcd.authority, trustme.CA())
    logins._look_at_ca()
    logins._look_at_ca()
    assert woken == [True]
    world.writes.clear()
    keep(logins, live=True)
    assert world.writes == ["secret", "record"]
    after = world.values()
    assert after.pop("ca.crt") == secure_etcd.ca_file.read_text() != before.pop("ca.crt")
    assert after == before


def test_another_key_gives_another_password_to_user_and_secret_at_once(new_logins, world, secure_etcd, config):
    keep(new_logins(), creating=True)
    before = world.values()
    with logged_in(secure_etcd, world) as client:
        client.put(KEYS.target, b"1")
        other = config.model_copy(update={"job_key": SecretBytes(b"another key of thirty-two bytes.")})
        keep(new_logins(other), live=True)
        assert world.values()["password"] != before["password"]
        with pytest.raises(EtcdDenied, match="log in"):
            client.put(KEYS.target, b"2")
        logged_in(secure_etcd, world).close()  # writes the files, as a kubelet does
        client.put(KEYS.target, b"2")


@pytest.mark.parametrize(("outage", "unread"), [(Outage(), False), (None, True)])
def test_nothing_is_written_if_the_records_are_unknown_or_of_a_newer_version(new_logins, world, outage, unread):
    world.outage, world.unread = outage, unread
    keep(new_logins(), live=True)
    assert world.writes == []


def test_users_of_jobs_that_are_gone_are_removed(new_logins, root):
    EtcdUsers(root).ensure("somebody", "else", "/elsewhere/")
    logins = new_logins()
    keep(logins, creating=True)
    assert len(EtcdUsers(root).names()) == 3
    for _ in range(2):
        asyncio.run(logins.remove(KEYS))
    assert sorted(EtcdUsers(root).names()) == ["root", "somebody"]


def test_a_silent_etcd_delays_a_pass_only_briefly(new_logins, secure_etcd, world):
    logins = new_logins()
    secure_etcd.stop()
    with pytest.raises(EtcdUnavailable):
        keep(logins, creating=True)
    assert world.writes == ["claim"]


# ---- settings --------------------------------------------------------------------------------------------------------
def test_a_key_without_tls_or_a_user_is_refused(secure_etcd):
    worker = WorkerEtcd(endpoints="etcd:2379", user=True, ca=True, per_job=True)
    with pytest.raises(ValueError, match=r"--job-key-file needs --etcd-username .* and --etcd-ca"):
        OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=worker, job_key=KEY)
    with pytest.raises(ValueError, match="'shared' and --job-key-file exclude each other"):
        WorkerEtcd(endpoints="etcd:2379", secret="shared", per_job=True)
