"""TensorFlow's ``MultiWorkerMirroredStrategy`` with restart semantics::

    python -m elastrain_launchers.tensorflow CMD...

Each worker runs CMD with the cluster of its generation in ``TF_CONFIG``. The next generation ends and restarts CMD, and
``keras.callbacks.BackupAndRestore`` resumes the last epoch. This module imports no TensorFlow.
"""

from __future__ import annotations

import json
import os
import sys

from elastrain_launchers.keeper import command_of
from elastrain_launchers.restart import Restarted, World


def of_tensorflow(world: World) -> dict[str, str]:
    """``TF_CONFIG`` of this member: one process per member, the first is the chief.

    Source: https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable
    """
    task = {"type": "worker", "index": world.rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": world.addresses}, "task": task})}


def main() -> int:
    """Run CMD with ``TF_CONFIG`` for each generation; returns the exit code."""
    command = command_of(sys.argv[1:], "tensorflow")
    return Restarted(lambda world: (command, of_tensorflow(world))).keep(os.environ)


if __name__ == "__main__":
    sys.exit(main())
