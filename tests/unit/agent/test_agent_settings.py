from __future__ import annotations

from pathlib import Path

import pytest

from elastrain.agent.core.health import Policy
from elastrain.agent.settings import BadSettings, Settings

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
    ],
)
def test_the_message_names_variable_value_and_rule_if_a_value_is_wrong(name, value, rule):
    with pytest.raises(BadSettings, match=rf"{name}: .*{rule}.*'{value}'"):
        Settings.from_environment({**ENVIRONMENT, name: value})
