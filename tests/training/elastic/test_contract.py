"""The contract between a script and the loop: complete, and enforced as it is printed."""

import pytest

from elastrain.elastic.contract import BODY, RULES, Call, Contract, Effect, Phase


def test_every_call_has_a_rule_for_every_phase() -> None:
    assert {call: set(rules) for call, rules in RULES.items()} == {call: set(Phase) for call in Call}


def test_every_error_names_the_remedy() -> None:
    for call, rules in RULES.items():
        for phase, rule in rules.items():
            assert bool(rule.way_out) == (rule.effect is Effect.RAISES), (call, phase)


@pytest.mark.parametrize("call", Call)
@pytest.mark.parametrize("phase", Phase)
def test_a_call_does_what_the_table_says(call, phase) -> None:
    contract, rule = Contract(lambda: phase), RULES[call][phase]
    if rule.effect is Effect.RAISES:
        with pytest.raises(RuntimeError) as raised:
            contract.acts(call, "optimizer.step()")
        assert str(raised.value) == f"optimizer.step() {phase.value}: {rule.way_out}"
    else:
        assert contract.acts(call) == (rule.effect is Effect.ACTS)


def test_the_state_changes_only_in_a_committed_step_while_a_loop_body_runs() -> None:
    changing = [phase for phase in BODY if RULES[Call.UPDATE][phase].effect is Effect.ACTS]
    assert changing == [Phase.COMMITTED, Phase.LEARNING]
