"""`elastrain convert` on the plain scripts of the zoo: what each becomes, and what is left to a person."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from elastrain_convert.conversion import Conversion, Options, convert

ZOO = Path(__file__).parents[4] / "examples" / "zoo"
SCRIPTS = sorted(path.parent.name for path in ZOO.glob("*/ddp.py"))
BY_HAND = {
    "dcgan": ("each rank draws for its part of the batch",),
    "nanogpt": ("this loop trains, and goes over no torch.utils.data.DataLoader",),
    "streaming": ("a stream that shares its samples by rank", "job.rank is 0 in every process before its first step"),
    "timm_loop": ("sampler decides which rank has which samples", "num_updates was passed before"),
    "word_lm": ("this loop trains, and goes over no torch.utils.data.DataLoader",),
}
"""Scripts with lines that need a person, and why. All others pass the storm (tests/training/zoo/test_converted.py)."""
LEFT = re.compile(
    r"\bdist\.|DistributedDataParallel\(|DistributedSampler|init_process_group|\bDDP\(|set_epoch|[^.]loss\.backward\("
)


@functools.cache
def converted(script: str) -> Conversion:
    return convert((ZOO / script / "ddp.py").read_text(), Options(processes=2))


@pytest.mark.parametrize("script", SCRIPTS)
def test_result_is_python_and_is_converted_no_further(script):
    conversion = converted(script)
    ast.parse(conversion.after)
    again = convert(conversion.after, Options(processes=2))
    assert again.after == conversion.after


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s not in BY_HAND])
def test_nothing_of_the_process_group_is_left_if_no_line_needs_a_person(script):
    conversion = converted(script)
    assert not conversion.notes
    assert "with elastrain.join() as job:" in conversion.after
    assert not LEFT.search(conversion.after)
    assert not unused_imports(conversion.after)


@pytest.mark.parametrize("script", BY_HAND)
def test_lines_are_named_that_need_a_person(script):
    conversion = converted(script)
    for why in BY_HAND[script]:
        assert any(note.why.startswith(why) for note in conversion.notes), conversion.notes


def unused_imports(text: str) -> set[str]:
    tree = ast.parse(text)
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    imported = {
        (a.asname or a.name).partition(".")[0]
        for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names
    }  # fmt: skip
    return imported - names
