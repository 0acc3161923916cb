from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastrain.agent.core.health import Policy
from elastrain.agent.settings import BadSettings, Settings
from elastrain.api.settings import CheckpointSpec, RankSettings

ENVIRONMENT = {"ELASTRAIN_JOB": "digits", "ELASTRAIN_JOB_UID": "u1", "ELASTRAIN_WORKER": "digits-0"}


def test_absent_settings_have_their_documented_defaults():
    settings = Settings.from_environment({**ENVIRONMENT, "ELASTRAIN_NODE": ""})
    assert (settings.nproc, settings.lease_ttl, settings.drain_timeout) == (1, 5, 25.0)
    assert settings.termination_log == Path("/dev/termination-log")
    assert settings.health == Policy(stuck_timeout=300, exclude_stragglers=False, min_timeout=3600)


def test_the_message_names_the_variable_if_it_is_missing():
    with pytest.raises(BadSettings, match="ELASTRAIN_WORKER: Field required"):
        Settings.from_environment({k: v for k, v in ENVIRONMENT.items() if k != "ELASTRAIN_WORKER"})


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("ELASTRAIN_LEASE_TTL", "1", "greater than or equal to 2"),
        ("ELASTRAIN_NPROC_PER_NODE", "many", "valid integer"),
        ("ELASTRAIN_DRAIN_TIMEOUT", "0", "greater than 0"),
        ("ELASTRAIN_STUCK_TIMEOUT", "-1", "greater than or equal to 0"),
        ("ELASTRAIN_STRAGGLERS", "kill", "'name' or 'exclude'"),
        ("ELASTRAIN_MIN_TIMEOUT", "0", "greater than 0"),
        ("ELASTRAIN_PLACE", "1", "less than 1, the workers of a group"),
        ("ELASTRAIN_BACKEND", "mpi", "'auto', 'nccl', 'gloo' or 'tcp'"),
    ],
)
def test_the_message_names_variable_value_and_rule_if_a_value_is_wrong(name, value, rule):
    with pytest.raises(BadSettings, match=rf"{name}: .*{rule}.*'{value}'"):
        Settings.from_environment({**ENVIRONMENT, name: value})


# ---- of the ranks --------------------------------------------------------------------------------------------------
WRITTEN = RankSettings(checkpoint=CheckpointSpec(path="/ckpt", every_steps=10, keep=3), audit_dir="/audit")


def of_ranks(**variables: str) -> RankSettings:
    return Settings.from_environment(ENVIRONMENT | variables).ranks


def test_ranks_get_the_settings_that_were_written():
    assert of_ranks(**WRITTEN.to_environment()) == WRITTEN


def test_ranks_have_defaults_if_no_settings_were_written():
    assert of_ranks() == of_ranks(**RankSettings().to_environment()) == RankSettings()


def test_a_users_variables_count_if_the_written_settings_leave_their_fields_out():
    by_hand = {"ELASTRAIN_BACKEND": "TCP", "ELASTRAIN_AUDIT_DIR": "/mine"}
    assert of_ranks(**by_hand) == RankSettings(backend="tcp", audit_dir="/mine")
    assert of_ranks(**by_hand, **WRITTEN.to_environment()) == WRITTEN.model_copy(update={"backend": "tcp"})


def test_ranks_save_checkpoints_if_the_operator_is_older_than_the_settings():
    checkpoint = CheckpointSpec(path="/ckpt", every_seconds=60)
    assert of_ranks(ELASTRAIN_CHECKPOINT=checkpoint.model_dump_json(by_alias=True)).checkpoint == checkpoint


def test_ranks_save_checkpoints_if_the_image_is_older_than_the_settings():
    variable = WRITTEN.to_environment()["ELASTRAIN_CHECKPOINT"]
    assert json.loads(variable) == {"path": "/ckpt", "everySteps": 10, "keep": 3}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"colour": "red"}, r"\.colour: Extra inputs are not permitted, got 'red' \(written by the operator: .* older"),
        ({"checkpoint": {"path": "/c", "everyEpochs": 2}}, r"\.checkpoint\.everyEpochs: Extra inputs .*, got 2 \("),
        ({"checkpoint": {"path": "/c", "everySteps": "9"}}, r"\.checkpoint\.everySteps: .* valid integer, got '9' \("),
        ({"checkpoint": {"path": "c"}}, r"\.checkpoint\.path: must begin with .*, got 'c' \("),
        ({"backend": "mpi"}, r"\.backend: .*'auto', 'nccl', 'gloo' or 'tcp', got 'mpi' \("),
        ([], r": .* valid dictionary"),
    ],
)
def test_written_settings_are_refused_by_field_if_this_version_does_not_know_them(value, problem):
    with pytest.raises(BadSettings, match=f"ELASTRAIN_RANK_SETTINGS{problem}"):
        of_ranks(ELASTRAIN_RANK_SETTINGS=json.dumps(value))
