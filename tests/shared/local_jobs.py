"""A job as local mode reads it from a manifest."""

from elastrain.api import names
from elastrain_resource.job import ElasticTrainingJob

CONTAINER = {"name": "trainer", "image": "-", "command": ["-"]}
JOB = ElasticTrainingJob(
    api_version=names.API_VERSION,
    kind=names.KIND,
    metadata={"name": "digits"},
    spec={
        "maxReplicas": 4,
        "template": {"spec": {"containers": [CONTAINER]}},
    },
)
