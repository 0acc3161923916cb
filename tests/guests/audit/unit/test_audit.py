"""The judge of audit logs must find every way of breaking the promise."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api.shape import Shape
from elastrain.data import Drawn, LengthBuckets
from elastrain.data.audit import AuditLog, Line
from elastrain.data.order import Order
from elastrain.data.share import Place, Share
from elastrain_audit.judge import judge, verify

ORDER = Order(length=23, global_batch_size=5, seed=4)
STEPS = 2 * ORDER.steps_per_epoch


def line(
    step: int, rank: int, world: int, generation: int = 1, kind: str = "commit", share: Share | None = None
) -> Line:
    share = share or Share(rank, world)
    indices = () if share.learner else ORDER.slice(step, *share).indices
    return Line(kind, step, generation, rank, world, f"w{rank}", 100 + rank, indices, share)


@pytest.fixture
def lines() -> list[Line]:
    return [line(s, r, 1 + s % 3, generation=s) for s in range(STEPS) for r in range(1 + s % 3)]


def test_verdict_is_good_if_every_step_is_committed_once(lines) -> None:
    verdict = judge(lines, ORDER)
    assert verdict.ok
    assert (verdict.steps, verdict.epochs, verdict.samples) == (STEPS, 2, 46)
    assert verdict.pids["w0"] == (100,)


@given(st.data())
def test_verdict_is_good_if_ranks_died_before_they_could_write(data) -> None:
    lines = []
    for step in range(STEPS):
        world = data.draw(st.integers(1, 4))
        survivors = data.draw(st.sets(st.integers(0, world - 1), min_size=1))
        committed = data.draw(st.sampled_from(sorted(survivors)))
        kinds = {r: "commit" if r == committed or data.draw(st.booleans()) else "adopted" for r in survivors}
        lines += [line(step, r, world, generation=step, kind=kinds[r]) for r in survivors]
    assert judge(lines, ORDER).ok


def test_verdict_is_good_if_a_joiner_was_a_learner_while_the_others_computed_the_batch(lines) -> None:
    looked_on = [line(4, 0, 3, share=Share(0, 2)), line(4, 1, 3, share=Share(2, 2)), line(4, 2, 3, share=Share(1, 2))]
    assert judge([x for x in lines if x.step != 4] + looked_on, ORDER).ok


def write(folder, worker: str, steps: range, *, full_from: int | None = None) -> AuditLog:
    """The log of the only rank, whose disk is full from a step on."""
    log = AuditLog(folder, worker, 0, 1)
    for step in steps:
        if step == full_from:
            log._file = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115
        log.write("commit", step, line(step, 0, 1).indices, ORDER, place=Place(1, 0, 1), share=Share(0, 1))
    log.close()
    return log


def test_training_goes_on_and_the_log_says_from_where_it_is_incomplete_if_its_disk_is_full(tmp_path) -> None:
    log = write(tmp_path, "a", range(STEPS), full_from=4)
    assert log.error == f"the audit log is incomplete from step 4 on: {tmp_path}/a.0.1.jsonl: No space left on device"
    verdict = verify(tmp_path)
    assert (verdict.incomplete, verdict.steps, verdict.problems, verdict.ok) == (4, 4, (), False)


@pytest.mark.parametrize(
    ("others", "incomplete"),
    [
        ({"b": range(STEPS)}, None),  # its lines prove the parts of all ranks
        ({"b": range(2), "c": range(7, STEPS)}, 4),  # one that began when there was room again
        ({"b": range(6)}, None),
    ],
)
def test_a_log_that_is_incomplete_counts_only_for_steps_that_no_other_log_has(tmp_path, others, incomplete) -> None:
    write(tmp_path, "a", range(STEPS), full_from=4)
    for worker, steps in others.items():
        write(tmp_path, worker, steps)
    verdict = verify(tmp_path)
    assert (verdict.incomplete, verdict.problems) == (incomplete, ())


def test_verdict_is_good_if_a_job_of_sharded_models_went_on_with_whole_ones(tmp_path) -> None:
    for worker, even, steps in (("a", True, range(4)), ("b", False, range(4, STEPS))):
        log = AuditLog(tmp_path, worker, 0, 1)
        order = replace(ORDER, even=even)
        for step in steps:
            log.write("commit", step, order.slice(step, 0, 1).indices, order, place=Place(1, 0, 1), share=Share(0, 1))
        log.close()
    assert verify(tmp_path).ok


def test_verdict_is_good_if_neighbours_compute_each_part_together(lines) -> None:
    shape = Shape.of(4, tensor=2)
    together = [line(4, r, 4, share=Place(1, r, 4, shape).share) for r in range(4)]
    others = [x for x in lines if x.step != 4]
    assert judge([*others, *(replace(x, mates=tuple(shape.along(x.rank, "tp"))) for x in together)], ORDER).ok
    assert not judge([*others, *together], ORDER).ok


def test_redone_steps_are_counted_if_a_later_generation_commits_them_again(lines) -> None:
    verdict = judge([*lines, line(3, 0, 1, generation=99)], ORDER)
    assert verdict.ok
    assert verdict.redone == 1


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda x: [y for y in x if y.step != 4], "step 4: committed by no rank"),
        (lambda x: [replace(y, kind="adopted") if y.step == 4 else y for y in x], "no rank committed it"),
        (lambda x: [replace(y, indices=(1, 2, 3, 4, 5)) if y.step == 3 else y for y in x], "trained on"),
        (lambda x: [*x, replace(x[5], world_size=7)], "world sizes"),
        (lambda x: [*x, replace(x[1], indices=())], "two different parts"),
        (lambda x: [*x, replace(x[1], share=Share(2, 3))], "world sizes and parts"),
        (lambda x: [*x, line(4, 2, 2, generation=4, share=Share(0, 2))], "part 0 was computed by two ranks"),
        (lambda x: [replace(y, share=Share(2, 2)) if y.step == 4 else y for y in x], "trained on"),
    ],
)
def test_verdict_is_bad_with_the_cause_if_the_logs_break_the_promise(lines, break_it, problem) -> None:
    verdict = judge(break_it(lines), ORDER)
    assert not verdict.ok
    assert any(problem in p for p in verdict.problems), verdict.problems


def test_logs_are_judged_from_files_if_one_ends_in_a_torn_line(lines, tmp_path) -> None:
    logs = {r: AuditLog(tmp_path, f"w{r}", 0, 100 + r) for r in range(3)}
    for x in lines:
        place = Place(x.generation, x.rank, x.world_size)
        logs[x.rank].write(x.kind, x.step, x.indices, ORDER, place=place, share=x.share)
    for log in logs.values():
        log.close()
    with next(tmp_path.glob("w2*")).open("a") as f:
        f.write('{"kind": "com')
    assert verify(tmp_path).ok


GROWN = replace(ORDER, length=31).behind(ORDER, STEPS)
GROWN_STEPS = range(STEPS, STEPS + 2 * GROWN.steps_per_epoch)


@pytest.mark.parametrize(
    ("first", "second", "steps", "verdict"),
    [
        (range(STEPS), GROWN, GROWN_STEPS, ()),
        (range(8), GROWN, GROWN_STEPS, ("step 8: committed by no rank", "step 9: committed by no rank")),
        (range(STEPS), GROWN, GROWN_STEPS[1:], (f"step {STEPS}: committed by no rank",)),
        (range(STEPS), replace(ORDER, length=22), range(STEPS, STEPS + 5), ()),  # as many batches
        (range(8), replace(ORDER, length=22), range(8, STEPS), None),  # within an epoch
        (range(STEPS), replace(ORDER, length=31), GROWN_STEPS, None),  # counted from the job's beginning
        (range(STEPS + 1), GROWN, GROWN_STEPS, None),
        (range(STEPS), replace(ORDER, seed=5), range(STEPS), None),
    ],
)
def test_loops_over_data_that_grow_are_judged_one_after_the_other_and_others_refused(
    tmp_path, first, second, steps, verdict
) -> None:
    for worker, order, own in (("a", ORDER, first), ("b", second, steps)):
        log = AuditLog(tmp_path, worker, 0, 1)
        for step in own:
            log.write("commit", step, order.slice(step, 0, 1).indices, order, place=Place(1, 0, 1), share=Share(0, 1))
        log.close()
    if verdict is None:
        with pytest.raises(ValueError, match="2 different orders of data"):
            verify(tmp_path)
        return
    found = verify(tmp_path)
    assert (found.problems, found.steps, found.pids) == (verdict, len({*first, *steps}), {"a": (1,), "b": (1,)})
    if not verdict:
        epochs = 2 + len(steps) // second.steps_per_epoch
        assert (found.epochs, found.samples, found.lost) == (epochs, 46 + (epochs - 2) * second.length, 0)


ODD = [
    '{"kind": ' + "[" * 99_999,
    "[]",
    "7",
    "null",
    '{"kind": {}}',
    '{"kind": "order", "seed": []}',
    '{"kind": "commit"}',
    "\x00",
]
OTHERS = [None, "x", -1, 2**70, 1e400, [[]], {}, [1, "x"], []]


@given(data=st.data())
def test_a_verdict_or_the_damaged_line_is_named_whatever_a_log_holds(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("logs")
    log = AuditLog(folder, "w0", 0, 7)
    for step in range(2):
        log.write("commit", step, ORDER.slice(step, 0, 1).indices, ORDER, place=Place(1, 0, 1), share=Share(0, 1))
    log.close()
    (file,) = folder.iterdir()
    lines = file.read_text().splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    changed = json.loads(lines[number])
    changed[data.draw(st.sampled_from(sorted(changed)))] = data.draw(st.sampled_from(OTHERS))
    lines[number] = data.draw(st.sampled_from([*ODD, json.dumps(changed)]))
    file.write_text("\n".join(lines) + "\n")
    try:
        verify(folder)
    except ValueError as e:
        assert str(folder) in str(e)


DRAWN = Order(30, 7, shuffle=False, sampler=Drawn(12, samples=30))
BUCKETS = LengthBuckets([*range(1, 24)], max_tokens=60, buckets=4)
BATCHES = Order(BUCKETS.samples, BUCKETS.batch_size, shuffle=False, batch_sampler=BUCKETS)


@pytest.mark.parametrize("order", [DRAWN, BATCHES], ids=["with replacement", "batches of different sizes"])
def test_every_position_of_a_sampler_is_proven_consumed_once_also_if_a_rank_wrote_nothing(order, tmp_path) -> None:
    logs = [AuditLog(tmp_path, f"w{r}", 0, r) for r in range(2)]
    for step in range(2 * order.steps_per_epoch):
        for rank in [step % 3] if step % 3 < 2 else range(2):  # in each third step both ranks write
            share = Share(rank, 2)
            logs[rank].write(
                "commit", step, order.slice(step, *share).indices, order, place=Place(step, rank, 2), share=share
            )
    verdict = verify(tmp_path)
    assert verdict.ok, verdict
    assert (verdict.epochs, verdict.samples) == (2, 2 * order.length)
    for log in logs:
        log.close()
    (file,) = tmp_path.glob("w0*")
    file.write_text("".join(line for line in file.read_text().splitlines(True) if '"step": 3,' not in line))
    assert verify(tmp_path).problems == ("step 3: committed by no rank",)


def test_the_verdict_is_bad_if_the_sampler_of_one_rank_made_another_batch(tmp_path) -> None:
    for rank, seed in ((0, 1), (1, 2)):
        order = replace(DRAWN, sampler=Drawn(12, samples=30, seed=seed))
        log, share = AuditLog(tmp_path, f"w{rank}", 0, rank), Share(rank, 2)
        log.write("commit", 0, order.slice(0, *share).indices, order, place=Place(1, rank, 2), share=share)
        log.close()
    assert "step 0: the sampler made different batches on the ranks" in verify(tmp_path).problems


def test_the_verdict_is_bad_if_a_rank_trained_on_other_samples_than_its_sampler_made(tmp_path) -> None:
    log = AuditLog(tmp_path, "w0", 0, 1)
    log.write("commit", 0, (0, 0), DRAWN, place=Place(1, 0, 1), share=Share(0, 1))
    log.close()
    assert any("trained on (0, 0)" in problem for problem in verify(tmp_path).problems)


def test_error_names_file_and_line_if_a_log_is_damaged(tmp_path) -> None:
    (tmp_path / "x.jsonl").write_text("nonsense\n{}\n")
    with pytest.raises(ValueError, match=r"x\.jsonl:1"):
        verify(tmp_path)


def test_error_names_the_directory_if_it_has_no_log(tmp_path) -> None:
    with pytest.raises(ValueError, match="no audit lines"):
        verify(tmp_path)
