"""Why a pod is refused: the answers of a real API server (1.35), in golden/refusals.json, and invented ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain_operator.facts import RefusalKind
from elastrain_operator.kube import answers
from elastrain_operator.kube.answers import refused
from elastrain_operator.kube.repeats import is_creation_worth_repeating

ANSWERS = json.loads((Path(__file__).parent / "golden/refusals.json").read_text())
KINDS = {
    "quota": RefusalKind.QUOTA_EXCEEDED,
    "quota_must_specify": RefusalKind.QUOTA_EXCEEDED,
    "pod_security": RefusalKind.ADMISSION_DENIED,
    "limit_range": RefusalKind.ADMISSION_DENIED,
    "limit_range_two": RefusalKind.ADMISSION_DENIED,
    "priority_class": RefusalKind.ADMISSION_DENIED,
    "service_account": RefusalKind.ADMISSION_DENIED,
    "invalid": RefusalKind.TEMPLATE_INVALID,
    "strict": RefusalKind.TEMPLATE_INVALID,
    "bad_type": RefusalKind.TEMPLATE_INVALID,
    "already_exists": RefusalKind.NAME_TAKEN,
    "namespace_missing": RefusalKind.OTHER,
    "namespace_ends": RefusalKind.ADMISSION_DENIED,
    "rbac": RefusalKind.NOT_PERMITTED,
    "conflict_put": RefusalKind.BUSY,
    "policy": RefusalKind.ADMISSION_DENIED,
    "mutating_policy": RefusalKind.ADMISSION_DENIED,
    "webhook_deny": RefusalKind.ADMISSION_DENIED,
    "webhook_deny409": RefusalKind.ADMISSION_DENIED,
    "webhook_deny429": RefusalKind.ADMISSION_DENIED,
    "webhook_silent": RefusalKind.ADMISSION_DENIED,
    "webhook_500": RefusalKind.WEBHOOK_FAILED,
    "webhook_hang": RefusalKind.WEBHOOK_FAILED,
    "webhook_dead": RefusalKind.WEBHOOK_FAILED,
    "webhook_hang_timeout_param": RefusalKind.BUSY,
}
"""Most answers are about a pod named quota-demo-0; texts of webhooks and policies begin with "exceeded quota: "."""


@pytest.mark.parametrize("name", ANSWERS)
def test_kind_is_that_of_the_api_server_s_answer(name):
    found = refused(ANSWERS[name])
    assert found.kind is KINDS[name]
    assert ANSWERS[name]["message"].removeprefix("Internal error occurred: ") in found.message


@pytest.mark.parametrize("name", ["webhook_500", "webhook_hang", "webhook_dead", "webhook_deny"])
def test_message_names_the_webhook(name):
    assert ".example.com" in refused(ANSWERS[name]).message


@given(st.text(max_size=20).map(lambda more: f"exceeded quota: {more}"))
def test_no_name_and_no_foreign_text_changes_the_kind(text):
    forbidden = {"code": 403, "reason": "Forbidden", "details": {"kind": "pods", "name": text}}
    security = f'pods "{text}" is forbidden: violates PodSecurity "restricted:latest": {text}'
    assert refused({**forbidden, "message": security}).kind is RefusalKind.ADMISSION_DENIED
    denied = f'admission webhook "{text.replace(chr(34), "")}" denied the request: {text}'
    assert refused({"code": 403, "message": denied}).kind is RefusalKind.ADMISSION_DENIED


@given(
    st.dictionaries(
        st.sampled_from(["code", "reason", "message", "details", "status"]), st.none() | st.integers() | st.text()
    )
)
def test_any_answer_has_a_kind_and_a_message(status):
    assert refused(status).message


def test_wait_is_the_one_that_the_api_server_asks_for():
    limited = {"message": "slow down", "reason": "TooManyRequests", "details": {"retryAfterSeconds": 7}, "code": 429}
    assert (refused(limited).kind, refused(limited).retry) == (RefusalKind.BUSY, 7.0)
    plain = answers.error_of("create a pod", 429, b"Too many requests, please try again later.", "1")
    assert refused(plain.status).retry == 1.0


@pytest.mark.parametrize("named", [2**31 - 1, 10**30, 1e308, float("inf"), float("nan"), -1, True, "7", None])
def test_no_answer_asks_for_more_than_five_minutes(named):
    """A webhook may name 68 years, and a proxy more seconds than a date has."""
    status = {"message": "no", "reason": "TooManyRequests", "details": {"retryAfterSeconds": named}, "code": 429}
    assert 0 <= refused(status).retry <= 300
    assert 0 <= answers.ApiError("create", 429, "", "no", status["details"]).retry_after <= 300


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("9" * 30, 300), ("9" * 5000, 300), ("²", 0), ("٣", 0), ("-1", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0)],
)
def test_any_header_of_a_proxy_is_read(header, seconds):
    assert answers.error_of("create", 503, b"<html>", header).retry_after == seconds


def test_only_what_passes_by_itself_is_repeated_at_once():
    repeated = {
        name
        for name, body in ANSWERS.items()
        if is_creation_worth_repeating(answers.error_of("x", body["code"], json.dumps(body).encode()))
    }
    assert repeated == {"conflict_put", "webhook_hang_timeout_param"}


def test_a_refusal_lasts_if_only_a_change_of_the_job_or_its_namespace_ends_it():
    assert RefusalKind.ADMISSION_DENIED.lasts
    assert RefusalKind.QUOTA_EXCEEDED.lasts
    assert not RefusalKind.WEBHOOK_FAILED.lasts
    assert not RefusalKind.BUSY.lasts
