"""`elastrain convert` on the zoo: the plain scripts become elastic ones that the storm of the zoo does not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrain_convert.conversion import Options, convert

ZOO = Path(__file__).parents[3] / "examples" / "zoo"
PROCESSES = 2
"""For which the plain scripts were written: tests of the zoo run them on two."""
BITWISE = ("mnist", "torchvision_reference")
"""With dropout or a mix of samples, which depend on how a batch is cut. The scripts by hand are bitwise too."""
CONVERTED = (
    "accelerate_loop", "causal_lm", "ema_amp", "find_unused", "frozen_bn", "hf_causal_lm", "imagenet",
    "lightning_trainer", "mnist", "ppo", "torchvision_reference", "trl_sft",
)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("script", CONVERTED)
def test_converted_script_ends_as_undisturbed_at_random_moments(survives, tmp_path, script, seed) -> None:
    options = Options(processes=PROCESSES, micro_batches=4 if script in BITWISE else None)
    conversion = convert((ZOO / script / "ddp.py").read_text(), options)
    assert not conversion.notes
    path = tmp_path / "train.py"
    path.write_text(conversion.after)
    survives(script, seed=seed, bitwise=script in BITWISE, path=path)
