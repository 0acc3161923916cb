"""Ranks of one generation that do different things: every sum's header shows it, and the job fails with the reason."""

import contextlib
import re
import threading
from dataclasses import astuple

import pytest
import torch

from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import HEADER_BYTES, Header, Kind, difference, encode, left_early

ADVICE = ": all ranks must run the same number of steps: leave the loop by job.stop()"
SAME_CALLS = ": all ranks must make the same calls in the same order: not only 'if job.rank == 0'"
SAME_MODEL = ": all ranks must run the same steps of the same models, with the same backwards"


def header(kind: Kind, step: int, nbytes: int = 8, sequence: int = 5) -> Header:
    return Header(sequence, kind, step, nbytes)


def test_a_header_arrives_as_it_was_sent():
    sent = Header(2**40, Kind.BARRIER, -1, 2**40)
    raw = encode(*astuple(sent))
    assert Header.decode(raw) == sent
    assert len(raw) == HEADER_BYTES


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        (
            header(Kind.GRADIENTS, 31, 1024),
            header(Kind.BARRIER, 31),
            "rank 2 left its loop after step 31 while rank 0 computes step 32 (1024 bytes of gradients)" + ADVICE,
        ),
        (
            header(Kind.GRADIENTS, 31, 1024),
            header(Kind.GRADIENTS, 31, 512),
            "rank 0 computes step 32 (1024 bytes of gradients) while rank 2 computes step 32 (512 bytes of gradients)"
            + SAME_MODEL,
        ),
        (
            header(Kind.NORM, 3),
            header(Kind.GRADIENTS, 3),
            "rank 0 computes step 4 (statistics of a SyncBatchNorm, 8 bytes) while rank 2 computes step 4 "
            "(8 bytes of gradients)" + SAME_MODEL,
        ),
        (
            header(Kind.CONTROL, 3, sequence=5),
            header(Kind.CONTROL, 3, sequence=6),
            "rank 0 sums the control vector of step 4 (sum 5 of the generation) while rank 2 sums the control vector "
            "of step 4 (sum 6 of the generation)" + SAME_MODEL,
        ),
        (
            header(Kind.GRADIENTS, 31, 1024),
            header(Kind.EVALUATE, 31),
            "rank 2 calls job.evaluate() after step 31 while rank 0 computes step 32 (1024 bytes of gradients)"
            + SAME_CALLS
            + "; a loop ends on all ranks by job.stop()",
        ),
        (
            header(Kind.GRADIENTS, 31, 1024),
            header(Kind.END, 31),
            "rank 2 ends its script after step 31 while rank 0 computes step 32 (1024 bytes of gradients)" + ADVICE,
        ),
        (
            header(Kind.REDUCE, 31),
            header(Kind.END, 31),
            "rank 0 calls job.all_reduce() after step 31 while rank 2 ends its script after step 31" + SAME_CALLS,
        ),
        (
            header(Kind.GATHER, 31, sequence=3),
            header(Kind.GATHER, 31, sequence=4),
            "rank 0 calls job.all_gather_object() after step 31 (sum 3 of the generation) while rank 2 calls "
            "job.all_gather_object() after step 31 (sum 4 of the generation)" + SAME_CALLS,
        ),
        (
            header(Kind.BARRIER, 7),
            header(99, 7),
            "rank 0 left its loop after step 7 while rank 2 sums 8 bytes of kind 99" + ADVICE,
        ),
    ],
)
def test_both_ranks_name_both_ranks_what_they_do_and_in_which_step(mine, theirs, text):
    assert difference(0, mine, 2, theirs) == difference(2, theirs, 0, mine) == text


@pytest.mark.parametrize("kind", [Kind.FORM, Kind.ENTRY, Kind.FAREWELL])
def test_ranks_may_have_committed_different_numbers_of_steps_if_the_sum_belongs_to_no_step(kind):
    assert difference(0, header(kind, 3), 1, header(kind, 4)) is None


def test_the_generation_breaks_on_all_ranks_with_the_reason_if_one_does_something_else(connect, each):
    def rank(c: Communicator) -> str | None:
        c.step = 31
        if c.rank == 2:
            with pytest.raises(GenerationBroken):
                c.all_gather_ints([0], Kind.BARRIER)
        else:
            c.sum_bucket(torch.ones(256)).wait()
        return c.diverged

    told = [reason for reason in each(rank, connect(3)) if reason is not None]
    assert told, "the first that reads the header of a rank that does something else"
    for reason in told:
        assert re.match(r"rank 2 left its loop after step 31 while rank [01] computes step 32 \(1024 bytes", reason)


def test_a_rank_that_waits_outside_the_loop_is_seen_while_no_sum_of_the_host_is_under_way(pair):
    """As with NCCL: the others wait on their devices, and read nothing from the connections of the host."""
    training, deserter = pair
    training.step = deserter.step = 4
    assert training.mesh.waiting() == {}

    def leave() -> None:
        with contextlib.suppress(GenerationBroken):
            deserter.all_gather_ints([0], Kind.BARRIER)

    leaving = threading.Thread(target=leave)
    leaving.start()
    try:
        while not (seen := training.mesh.waiting()):
            pass
        (theirs,) = seen.values()
        assert (theirs.kind, theirs.step) == (Kind.BARRIER, 4)
        assert "rank 1 left its loop after step 4 while rank 0 computes step 5:" in left_early(0, 4, 1, theirs)
        assert left_early(0, 3, 1, theirs) is None, "it has taken part in the step that this rank waits for"
        assert training.devices._find_deserter() == training.diverged == left_early(0, 4, 1, theirs)
    finally:
        training.abort("over")
        leaving.join()
