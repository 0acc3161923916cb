"""Scripts in the shapes that people copy: whatever happens to the job, it ends with the undisturbed result."""

from __future__ import annotations

import pytest

SCRIPTS = ("mnist", "accelerate_loop")
IN_CI = ("mnist", "accelerate_loop")


@pytest.mark.parametrize("script", IN_CI)
def test_script_ends_as_undisturbed_if_ranks_join_die_and_leave(survives, script) -> None:
    survives(script, seed=1, bitwise=script in ("mnist",))
