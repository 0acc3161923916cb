"""Refuses models whose parameters are spread over ranks, in a job whose ranks hold whole models."""

from __future__ import annotations

from torch import nn

_REPLICATE = "pass the plain module, which every rank holds as a whole"
_WRAPPERS = (
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FSDP"),
    ("torch.distributed.fsdp._fully_shard", "FSDP2 (fully_shard)"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel"),
)


def refuse_sharded(module: nn.Module) -> None:
    """Raises ``ValueError`` naming the layer and the way out, for a model that is sharded or replicated already.

    Its parts would be summed over ranks with other parts, and a lost rank's part would be lost. The check compares the
    modules of classes: importing FSDP for it would delay every start.
    """
    for name, layer in module.named_modules():
        for kind in type(layer).__mro__:
            for origin, called in _WRAPPERS:
                if kind.__module__.startswith(origin):
                    raise ValueError(
                        f"job.wrap(): {name or 'the model'} is wrapped by {called}; {_REPLICATE}, or set "
                        "spec.parallelism.shards and shard it by fully_shard(…, mesh=job.mesh) (docs/sharded.md)"
                    )
    for name, parameter in module.named_parameters():
        if type(parameter.data).__module__.startswith("torch.distributed.tensor"):
            raise ValueError(
                f"job.wrap(): parameter {name} is a DTensor, spread over ranks; {_REPLICATE}, or set "
                "spec.parallelism.shards and shard it by fully_shard(…, mesh=job.mesh) (docs/sharded.md)"
            )
