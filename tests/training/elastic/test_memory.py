"""Memory of the host that is there at once: each case in a process of its own, whose allocator it changes."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from elastrain.elastic.state import memory


def faults(prepare: str) -> int:
    """Page faults of three new tensors of 24 MiB, after ``prepare``."""
    program = f"""
        import resource, torch
        from elastrain.elastic.state import memory

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


GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "used", "cached", "expected"),
    [
        (str(4 * GIB), 3 * GIB, 0, GIB),
        (str(4 * GIB), 3 * GIB, GIB, 2 * GIB),
        (str(4 * GIB), 5 * GIB, 0, 0),
        (str(64 * GIB), 0, 0, 8 * GIB),
        ("max", 3 * GIB, 0, 8 * GIB),
    ],
    ids=["what the limit leaves", "cached files go", "beyond the limit", "more than the machine has", "no limit"],
)
def test_what_is_left_is_the_least_of_machine_and_container(
    tmp_path: Path, limit: str, used: int, cached: int, expected: int
) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:  {8 * GIB // 1024} kB\n")
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")
    assert memory.left(tmp_path) == expected


def test_what_the_machine_has_is_left_if_there_is_no_cgroup(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 2048 kB\n")
    assert memory.left(tmp_path) == 2 << 20


def test_no_more_than_half_of_what_is_left_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A joiner that touched for moments which its optimizer does not have would be killed for want of memory."""
    touched: list[int] = []
    monkeypatch.setattr(memory, "left", lambda: 40 << 20)
    monkeypatch.setattr(memory.ctypes, "memset", lambda _address, _value, size: touched.append(size))
    memory.touch(1 << 40)
    assert sum(touched) == 20 << 20
