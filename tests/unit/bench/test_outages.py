"""How bench/outages.py judges what it saw."""

from __future__ import annotations

from outages_harness.analysis import Seen, Worker, audit_problems, judge, longest_pause, markdown

PODS = {"a-0": Worker("u0", 10), "a-1": Worker("u1", 11)}
SOUND = {"lost": 0, "repeated": 0, "redone": 0, "problems": [], "samples": 10, "pids": {"a-0": [7], "a-1": [7]}}


def seen(*, after=PODS, steps=((0.0, 10), (1.0, 12), (2.0, 14)), converged: float | None = 5.0) -> Seen:
    return Seen("a", PODS, after, steps, converged)


def test_outage_is_harmless_if_the_same_pods_train_on_and_grow_afterwards():
    result = judge("etcd", 600, [seen(after={**PODS, "a-2": Worker("u2", 12)}), seen(converged=9.0)])
    assert (result.problems, result.replaced) == ((), ())
    assert (result.steps, result.longest_pause, result.converged) == (8, 1.0, 9.0)
    assert "| etcd | 600 | 2 | 8 | 1.0 | 0 | 9 |" in markdown([result], 1000)


def test_worker_counts_as_replaced_if_it_is_gone_or_another_pod_or_its_agent_has_ended():
    for worker in (None, Worker("other", 11), Worker("u1", None)):
        after = {"a-0": PODS["a-0"], **({"a-1": worker} if worker else {})}
        result = judge("operator", 60, [seen(after=after)])
        assert result.replaced == ("a/a-1",)
        assert result.problems == ("a/a-1 was restarted or replaced",)


def test_stall_is_a_problem_also_if_it_lasts_until_the_end():
    assert longest_pause([(0, 5), (1, 6), (2, 6), (30, 6)]) == 29
    assert longest_pause([(0, 5), (14, 5)]) == 14
    assert longest_pause([(0, 5), (20, 6), (21, 7)]) == 20
    assert longest_pause([]) == 0
    assert judge("all", 30, [seen(steps=((0, 5), (29, 5)))]).problems == ("a committed nothing for 29 s",)


def test_missing_convergence_is_a_problem():
    result = judge("all", 60, [seen(), seen(converged=None)])
    assert result.converged is None
    assert "a did not reach the size that was asked for meanwhile" in result.problems
    assert "| never |" in markdown([result], 0)


def test_audit_is_a_problem_if_samples_are_lost_or_a_pod_had_two_training_processes():
    assert audit_problems("a", SOUND, {"a-0": {"u0"}, "a-1": {"u1"}}) == []
    assert audit_problems("a", SOUND | {"lost": 3}, {"a-0": {"u0"}, "a-1": {"u1"}}) == ["a: 3 samples lost"]
    twice = SOUND | {"pids": {"a-0": [7, 9]}}
    assert audit_problems("a", twice, {"a-0": {"u0"}}) == ["a/a-0: 2 training processes in 1 pods"]
    assert audit_problems("a", twice, {"a-0": {"u0", "u5"}}) == [], "the name was used again after a shrink"
