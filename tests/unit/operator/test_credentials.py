"""A job's credentials, and when they must be written."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api.keys import JobKeys
from elastrain.api.records import Issued
from elastrain_operator.facts import JobRef, Pod
from elastrain_operator.pod.manifest import secret_name
from elastrain_operator.records import logins
from elastrain_operator.records.logins import Due

NOW = logins.fingerprint(b"the CA", b"key")
FORMER = logins.fingerprint(b"the former CA", b"key")
OTHER_KEY = logins.fingerprint(b"the CA", b"former key")
names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
jobs = st.builds(JobKeys, names, names, names)


@pytest.mark.parametrize(
    ("issued", "creating", "live", "expected"),
    [
        (None, False, False, Due()),  # a job that was never started, or has ended
        (None, True, False, Due(user=True, secret=True)),
        (None, False, True, Due(user=True, secret=True)),  # its pods are older, or etcd lost its data
        (NOW, False, True, Due()),
        (NOW, True, True, Due(secret=True)),  # an earlier operator wrote it: it may have been deleted
        (FORMER, False, True, Due(secret=True)),  # the CA was replaced
        (FORMER, False, False, Due()),
        (OTHER_KEY, False, True, Due(user=True, secret=True)),  # never a Secret with a password that etcd does not have
        (OTHER_KEY, True, False, Due(user=True, secret=True)),
    ],
)
def test_due_credentials(issued, creating, live, expected):
    assert logins.due_writes(issued, NOW, creating=creating, live=live, doubted=creating) == expected


def test_a_secret_that_is_as_wanted_is_not_written_again():
    assert logins.due_writes(NOW, NOW, creating=True, live=True, doubted=False) == Due()


@pytest.mark.parametrize(
    ("seconds", "started", "expected"), [(31.0, False, True), (29.0, False, False), (31.0, True, False)]
)
def test_a_worker_that_does_not_start_on_its_node_may_lack_its_secret(seconds, started, expected):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    bound = now - timedelta(seconds=seconds)
    pod = Pod("job-0", "uid", 0, bound, started=started, node="n", bound=bound)
    assert logins.wait_long([pod], now) is expected


@given(st.sampled_from([None, NOW, FORMER, OTHER_KEY]), st.booleans(), st.booleans(), st.booleans())
def test_workers_never_start_without_a_user_and_a_secret(
    issued: Issued | None, creating: bool, live: bool, doubted: bool
):
    due = logins.due_writes(issued, NOW, creating=creating, live=live, doubted=doubted)
    if creating and (doubted or issued != NOW):
        assert due.secret, "a pod is created only after its Secret was written"
        assert due.user or (issued and issued.key == NOW.key), "and only with a user that has its password"
    assert not due.user or due.secret, "a user is created with its Secret, which alone has the password"


def test_passwords_differ_by_job_and_key_and_stay_the_same():
    one, other = JobKeys("ns", "job", "1"), JobKeys("ns", "job", "2")
    made = logins.password_of(b"key", one)
    assert made == logins.password_of(b"key", one)
    assert re.fullmatch(r"[-\w]{43}", made), "256 bits"
    assert len({made, logins.password_of(b"key", other), logins.password_of(b"other", one)}) == 3


def test_secrets_of_two_jobs_of_one_name_differ():
    first = secret_name(JobRef("ns", "digits", "0f0e1d2c-1111"))
    assert first == "digits-etcd-0f0e1d2c"
    assert first != secret_name(JobRef("ns", "digits", "aaaaaaaa-1111"))
