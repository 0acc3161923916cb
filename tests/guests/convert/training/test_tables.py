"""What `elastrain convert` takes for known is what the frameworks have, and what their adapters do not refuse."""

from __future__ import annotations

import dataclasses
import inspect

import accelerate
import lightning.pytorch
import transformers

from elastrain_convert import tables
from elastrain_frameworks import accelerate as with_accelerate
from elastrain_frameworks.huggingface import ElasticTrainingArguments, adapter
from elastrain_frameworks.lightning import options


def test_known_options_and_calls_are_not_refused(tmp_path):
    for known, refusals in (
        (tables.OF_ACCELERATOR, with_accelerate._REFUSALS),
        (tables.OF_LIGHTNING, options._REFUSALS),
    ):
        assert not {*known} & {r.option for r in refusals} - {"logger"}  # True and False are no loggers of a person
    for refusal in adapter._REFUSALS:
        for value in tables.ARGUMENTS.get(refusal.option, ()):
            ElasticTrainingArguments(output_dir=str(tmp_path), **{refusal.option: value})
        assert refusal.option not in tables.ARGUMENTS or tables.ARGUMENTS[refusal.option]
    methods = {n: inspect.getdoc(m) or "" for n, m in vars(with_accelerate.ElasticAccelerator).items()}
    assert not [n for n in tables.CALLS_OF_ACCELERATOR if methods.get(n, "").startswith("Raises ``NotImpl")]


def test_known_options_are_those_of_the_frameworks():
    assert tables.ARGUMENTS.keys() <= {f.name for f in dataclasses.fields(transformers.TrainingArguments)}
    assert {*inspect.signature(accelerate.Accelerator.__init__).parameters} >= tables.OF_ACCELERATOR
    assert tables.OF_LIGHTNING.keys() <= {*inspect.signature(lightning.pytorch.Trainer.__init__).parameters}
