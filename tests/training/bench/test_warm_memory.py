"""What is touched before a run."""

import mmap

import psutil
import pytest

from rescale_harness import warm
from rescale_harness.warm import touch_memory


@pytest.mark.parametrize(("free", "touched"), [(0, 0), (100 << 20, 0), (1 << 30, 768 << 20), (1 << 40, 4 << 30)])
def test_no_more_is_touched_than_is_free_and_a_run_may_want(monkeypatch, free, touched) -> None:
    monkeypatch.setattr(mmap, "mmap", lambda *_, **__: _Nothing())
    told: list[str] = []
    assert touch_memory(told.append, lambda: free) == touched
    assert len(told) == touched // warm._BLOCK


def test_memory_is_given_back_when_it_was_touched() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    most: list[int] = []
    touch_memory(lambda _: most.append(process.memory_info().rss), lambda: 1 << 30)
    assert max(most) - before >= 2 * warm._BLOCK, "its pages are there"
    assert process.memory_info().rss - before < warm._BLOCK


class _Nothing:
    def close(self) -> None:
        pass
