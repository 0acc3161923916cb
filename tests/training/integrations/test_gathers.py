"""Calls that make one value of all ranks, in training: each rank has its part of a step, so they are refused."""

from __future__ import annotations

import pytest
import torch

from elastrain.data.loader import ElasticLoader
from elastrain.elastic.contract import Phase
from scripted_loop import ScriptedJob

WAY_OUT = r"in training the ranks may change .*job\.add\(name=number\).*job\.sums.*job\.loss.*job\.all_reduce\(\)"


@pytest.mark.parametrize("call", ["gather", "gather_for_metrics", "reduce"])
def test_accelerates_call_outside_of_evaluation_names_the_way_out(require, call):
    require("accelerate", "ELASTRAIN_REQUIRE_HUGGINGFACE")
    from elastrain_frameworks.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(ScriptedJob(), cpu=True)
    with pytest.raises(RuntimeError, match=rf"accelerator\.{call}\(\): only in a loop over .*{WAY_OUT}"):
        getattr(accelerator, call)(torch.ones(2))
    (batches,) = [[*torch.arange(6).split(4)]]
    accelerator._training = object()  # the next loader is that of an evaluation
    loader = accelerator.prepare(torch.utils.data.DataLoader(range(6), batch_size=4))
    for batch, whole in zip(loader, batches, strict=True):
        assert torch.equal(getattr(accelerator, call)(batch), whole)


@pytest.mark.parametrize("framework", ["accelerate", "fabric"])
def test_a_model_that_a_framework_prepares_and_that_does_not_train_is_tracked(require, framework):
    require("accelerate", "ELASTRAIN_REQUIRE_HUGGINGFACE")
    require("lightning", "ELASTRAIN_REQUIRE_LIGHTNING")
    from lightning.fabric import Fabric

    from elastrain_frameworks.accelerate import ElasticAccelerator
    from elastrain_frameworks.lightning import ElasticStrategy

    job, teacher = ScriptedJob(), torch.nn.Linear(1, 1).requires_grad_(False)
    if framework == "accelerate":
        ElasticAccelerator(job, cpu=True).prepare(teacher)
    else:
        Fabric(accelerator="cpu", devices=1, strategy=ElasticStrategy(job)).setup_module(teacher)
    assert job.tracked["prepared"].state_dict()["weight"].data_ptr() == teacher.weight.data_ptr()
    assert "model" not in job.tracked


@pytest.mark.parametrize("call", ["all_gather", "all_reduce", "broadcast"])
def test_fabrics_call_names_the_way_out(require, call):
    require("lightning", "ELASTRAIN_REQUIRE_LIGHTNING")
    from lightning.fabric import Fabric

    from elastrain_frameworks.lightning import ElasticStrategy

    fabric = Fabric(accelerator="cpu", devices=1, strategy=ElasticStrategy(ScriptedJob()))
    way_out = r"job\.track" if call == "broadcast" else r"job\.add\(name=number\)"
    with pytest.raises(NotImplementedError, match=rf"fabric\.{call}\(\): not in an elastic job; .*{way_out}"):
        getattr(fabric, call)(torch.ones(2))


@pytest.mark.parametrize("call", ["gather", "gather_for_metrics", "reduce"])
def test_call_in_a_training_step_of_transformers_names_the_way_out(require, call):
    require("transformers", "ELASTRAIN_REQUIRE_HUGGINGFACE")
    from elastrain_frameworks.huggingface.accelerator import JobsAccelerator

    accelerator = JobsAccelerator(cpu=True)
    accelerator.job = ScriptedJob()
    assert torch.equal(getattr(accelerator, call)(torch.ones(2)), torch.ones(2)), "between loops"
    accelerator.job.body, accelerator.job.phase = object(), Phase.FRESH
    with pytest.raises(RuntimeError, match=rf"accelerator\.{call}\(\): only in an evaluation.*{WAY_OUT}"):
        getattr(accelerator, call)(torch.ones(2))
    accelerator.evaluates = True
    assert torch.equal(getattr(accelerator, call)(torch.ones(2)), torch.ones(2))


def test_epochs_of_a_job_can_be_those_of_accelerates_loader(require):
    """As docs/integrations.md says; the job's own check of its argument."""
    require("accelerate", "ELASTRAIN_REQUIRE_HUGGINGFACE")
    from elastrain.data.options import order_of
    from elastrain.elastic.arguments import epochs
    from elastrain_frameworks.training_data import Epochs

    data = range(6)
    loader = ElasticLoader(data, order_of(data, global_batch_size=2, seed=0, shuffle=False, drop_last=False))
    epochs(Epochs(loader, iter, batches=3), 2)
    with pytest.raises(TypeError, match="its batches cannot be cut"):
        epochs(data, 2)


@pytest.mark.parametrize(
    ("name", "options"),
    [("on_main_process", {}), ("on_last_process", {}), ("on_process", {"process_index": 1})],
)
def test_decorated_function_of_accelerate_is_called_by_rank_0_alone(require, name, options):
    require("accelerate", "ELASTRAIN_REQUIRE_HUGGINGFACE")
    from elastrain_frameworks.accelerate import ElasticAccelerator

    job = ScriptedJob()
    accelerator, calls = ElasticAccelerator(job, cpu=True), []
    decorate = getattr(accelerator, name)
    noted = decorate(**options)(calls.append) if options else decorate(calls.append)
    job.phase = Phase.BETWEEN
    for job._rank in (0, 1, 2, 0):
        accelerator.show_place()
        noted(job.rank)
    assert calls == [0, 0]
