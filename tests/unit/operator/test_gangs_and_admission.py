"""No job gives up a worker twice for a minimum that failed, unless something that the failure named has changed.

The messages of the assertions are the promises. CI tries 500 clusters, ``--hypothesis-profile=nightly`` 10,000, which
takes a quarter of an hour on each of two cores that others use, too.
"""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from admitting_cluster import Admitting
from budgets import examples
from elastrain_operator.allocation.promise import FIRST_BACKOFF, MOST_BACKOFF

HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("hard"), st.none() | st.integers(0, 8)),
        st.tuples(st.just("foreign"), st.integers(0, 3)),
        st.tuples(st.just("most_of_a_job"), st.none() | st.integers(0, 4)),
        st.tuples(st.just("refuses_all"), st.booleans()),
        st.tuples(st.just("spec"), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([1, 3, 90, 900])),
    ),
    max_size=8,
)


@examples(400)
@given(
    st.integers(2, 6),
    st.integers(1, 4),
    st.sampled_from([0, 100]),
    st.booleans(),
    st.integers(0, 4),
    st.none() | st.integers(0, 5),
    HAPPENINGS,
)
def test_no_job_is_shrunk_twice_for_a_minimum_that_failed_unless_what_the_failure_named_has_changed(
    least, victims, priority, readable, lag, hard, happenings
):
    cluster = Admitting(8, readable=readable, lag=lag)
    cluster.hard = hard
    for n in range(victims):
        cluster.arrive(f"victim{n}", 1, 8, "free")
    cluster.run(20)
    cluster.arrive("gang", least, least, "a", priority=priority)
    for what, how in [*happenings, ("wait", 900)]:
        match what:
            case "wait":
                for _ in range(min(how, 12)):
                    follow(cluster, step=max(how // 12, 1))
            case "spec":
                cluster.change_spec("gang")
            case _:
                setattr(cluster, what, how)
        follow(cluster)


def follow(cluster: Admitting, step: int = 1) -> None:
    """An allocation after so many seconds, with the promise."""
    failed, before = cluster.failures.get("gang"), cluster.lost.get("gang", 0)
    cluster.run(step, step)
    if failed is None or cluster.lost.get("gang", 0) == before or cluster.facts("gang") != failed.facts:
        return
    rest = timedelta(seconds=min(FIRST_BACKOFF * 2 ** (failed.number - 1), MOST_BACKOFF))
    _generation, hard, foreign, _most, refuses_all = failed.facts
    least = cluster.jobs["gang"].spec.min
    seen = cluster.readable and hard is not None and hard - foreign < least
    assert not seen, "no worker leaves for a minimum that a quota, which is known, does not admit"
    assert not refuses_all, "no worker leaves for a job of which the API server admits no pod"
    assert cluster.now - failed.at >= rest, (
        "what cannot be known is tried after a back-off that doubles, and no earlier"
    )


def test_no_worker_ever_leaves_for_a_minimum_that_a_known_quota_does_not_admit():
    cluster = Admitting(6, readable=True)
    cluster.hard = 2
    cluster.arrive("victim", 1, 6, "free")
    cluster.run(10)
    cluster.arrive("gang", 3, 3, "a", priority=100)
    cluster.run(3600)
    assert cluster.lost == {}
    assert cluster.jobs["victim"].bound == 6
    share = cluster.shares["gang"]
    assert (share.size, share.reason) == (0, "WaitingForCapacity")
    assert share.message.endswith("; 2 of 2 requests.nvidia.com/gpu of ResourceQuota a/gpus used, 1 more needed")

    cluster.hard = 3
    cluster.run(10)
    assert cluster.jobs["gang"].bound == 3, "it starts when the quota is raised"


def test_a_quota_that_cannot_be_read_costs_others_one_shrink_and_then_ever_rarer_ones():
    cluster = Admitting(6, readable=False)
    cluster.hard = 2
    cluster.arrive("victim", 1, 6, "free")
    cluster.run(10)
    cluster.arrive("gang", 3, 3, "a", priority=100)
    cluster.run(7200)
    assert cluster.lost["gang"] <= 3 * 8, "after 1, 2, 4, … 30 minutes: 8 times in two hours"
    share = cluster.shares["gang"]
    assert (share.reason, share.obstacle) == ("GrantUnused", "QuotaExceeded")
    assert "QuotaExceeded: by this cluster" in share.message, "the cause is kept while the back-off lasts"
    cluster.change_spec("gang")
    cluster.hard = 3
    cluster.run(70)
    assert cluster.jobs["gang"].bound == 3, "a changed spec is tried at once"


def test_a_job_that_trains_keeps_its_size_whatever_its_quota_becomes():
    cluster = Admitting(6, readable=True)
    cluster.hard = 4
    cluster.arrive("a", 2, 6, "a")
    for _ in range(10):
        cluster.run(1)
        assert "None" not in cluster.shares["a"].message
    assert cluster.jobs["a"].bound == 4
    share = cluster.shares["a"]
    assert (share.size, share.reason) == (4, "QuotaExceeded")
    assert share.message == "not grown: 4 of 4 requests.nvidia.com/gpu of ResourceQuota a/gpus used, 1 more needed"
    cluster.hard = 1
    cluster.run(100)
    assert cluster.jobs["a"].bound == 4, "a quota bounds new pods only"
    cluster.hard = None
    cluster.run(100)
    assert cluster.jobs["a"].bound == 6
