"""Models whose parameters are spread over ranks, which elastrain does not train yet."""

from __future__ import annotations

from torch import nn

_REPLICATE = "give the plain module, which every rank holds as a whole"
_WRAPPERS = (
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FSDP"),
    ("torch.distributed.fsdp._fully_shard", "FSDP2 (fully_shard)"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel"),
)


def refuse_sharded(module: nn.Module) -> None:
    """Raises ``ValueError`` naming the layer, and what to do, for a model that is sharded or replicated already.

    Its parts would be summed over ranks that hold other parts, and a rank that is lost would take its part with it.
    Told by where classes come from: to import FSDP for it would cost every start.
    """
    for name, layer in module.named_modules():
        for kind in type(layer).__mro__:
            for origin, called in _WRAPPERS:
                if kind.__module__.startswith(origin):
                    raise ValueError(
                        f"job.wrap(): {name or 'the model'} is wrapped by {called}; {_REPLICATE}. Sharded models are "
                        "not supported yet (docs/gpu.md says what is missing)"
                    )
    for name, parameter in module.named_parameters():
        if type(parameter.data).__module__.startswith("torch.distributed.tensor"):
            raise ValueError(
                f"job.wrap(): parameter {name} is a DTensor, spread over ranks; {_REPLICATE}. Sharded models are not "
                "supported yet (docs/gpu.md says what is missing)"
            )
