"""Memory of the host that is there at once: each case in a process of its own, whose allocator it changes."""

import subprocess
import sys
from textwrap import dedent

import pytest

from elastrain.elastic import memory


def faults(prepare: str) -> int:
    """Page faults of three new tensors of 24 MiB, after ``prepare``."""
    program = f"""
        import resource, torch
        from elastrain.elastic import memory

        def fill(count):
            tensors = [torch.empty(24 << 20, dtype=torch.uint8).zero_() for _ in range(count)]

        torch.zeros(1)
        {prepare}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        fill(3)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    run = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True, timeout=100
    )
    return int(run.stdout)


def test_freed_memory_is_used_again_without_a_fault() -> None:
    assert faults("memory.keep_freed({}); fill(4)") < 500


def test_memory_that_was_touched_beforehand_is_used_without_a_fault() -> None:
    assert faults("memory.keep_freed({}); memory.touch(80 << 20)") < 500


def test_memory_is_given_back_and_faulted_in_anew_if_the_user_has_set_that() -> None:
    assert faults("assert not memory.keep_freed({'MALLOC_TRIM_THRESHOLD_': '1'}); fill(4)") > 4000


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_malloc_is_left_alone_if_the_user_has_set_it_up(name: str) -> None:
    assert not memory.keep_freed({name: "x"})
