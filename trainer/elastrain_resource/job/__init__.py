"""``ElasticTrainingJob``: the resource that users write and read. ``crd.py`` generates the CRD from these models.

Each field names its writer, its reader and the meaning of its absence. Field names are camelCase on the wire.
"""

from elastrain.api.base import ApiModel, AwareTime, NonNegativeInt, PositiveInt
from elastrain.api.settings import CheckpointSpec
from elastrain_resource.job.resource import ElasticTrainingJob
from elastrain_resource.job.spec import (
    CleanPodPolicy,
    JobSpec,
    PairsSpec,
    PreflightSpec,
    SuccessPolicy,
    trainer_container,
)
from elastrain_resource.job.status import (
    AcceleratorSeconds,
    Condition,
    ConditionType,
    ExcludedNode,
    Figures,
    GenerationStatus,
    JobStatus,
    LastFailure,
    LastRescale,
    Leaving,
    LossStreak,
    MeasuredSize,
    ProgressStatus,
    RestartCounts,
    SparesStatus,
    UnhealthyWorker,
    Withdrawal,
)

__all__ = [
    "AcceleratorSeconds",
    "ApiModel",
    "AwareTime",
    "CheckpointSpec",
    "CleanPodPolicy",
    "Condition",
    "ConditionType",
    "ElasticTrainingJob",
    "ExcludedNode",
    "Figures",
    "GenerationStatus",
    "JobSpec",
    "JobStatus",
    "LastFailure",
    "LastRescale",
    "Leaving",
    "LossStreak",
    "MeasuredSize",
    "NonNegativeInt",
    "PairsSpec",
    "PositiveInt",
    "PreflightSpec",
    "ProgressStatus",
    "RestartCounts",
    "SparesStatus",
    "SuccessPolicy",
    "UnhealthyWorker",
    "Withdrawal",
    "trainer_container",
]
