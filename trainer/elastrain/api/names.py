"""Names shared by operator, agent, ranks and local mode: API group, labels, variables, exit codes, worker counts."""

from __future__ import annotations

import signal

GROUP = "elastrain.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ElasticTrainingJob"
PLURAL = "elastictrainingjobs"
SINGULAR = "elastictrainingjob"
SHORT_NAME = "etj"

SET_KIND = "WorkerSet"
"""The controller of a job's worker pods: it tells Kubernetes' disruption controller how many there are to be."""
SET_PLURAL = "workersets"

TRAINER_CONTAINER = "trainer"
"""The training container of the pod template; without a container of this name, the first one."""

# Labels on worker pods.
LABEL_JOB = f"{GROUP}/job"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_ORDINAL = f"{GROUP}/ordinal"
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"  # of a job: its LocalQueue; Kueue decides the job's size
LABEL_GROUP = f"{GROUP}/group"  # number of the worker's group, if a group has several workers
LABEL_PLACE = f"{GROUP}/place"  # the worker's place in it, from 0
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "elastrain"
LABEL_USES = f"{GROUP}/uses"  # of a worker whose template names a service account, a Secret or a claim
LABEL_TEMPLATE = f"{GROUP}/template"  # the version of spec.template that a worker was made from

CONTAINERS_NOTE = f"{GROUP}/containers"
"""Annotation of a worker pod: its containers and init containers as this operator made them, separated by commas, the
trainer first. Admission may add others, and put them first."""
COUNTED_NOTE = f"{GROUP}/counted"
"""Annotation of one of a job's pods: the number of its :data:`SET_KIND`, if that has changed without a pod."""
AGENT = ("elastrain", "agent", "--")
"""The command of PID 1 of the trainer container, followed by the user's command."""

# Annotations on worker pods that autoscalers read.
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"

CONTROLLER = f"{GROUP}/operator"
"""Value of ``spec.managedBy`` for this operator; absence means the same."""

PREFLIGHT = ("elastrain", "preflight")
"""The command of the pre-flight check, before its options."""
PREFLIGHT_CONTAINER = "elastrain-preflight"
"""The init container that runs it."""
PREFLIGHT_EXITS = {10: "accelerator", 11: "compute", 12: "bandwidth", 13: "shared memory", 14: "time", 15: "pairs"}
"""Its exit codes for a failed node, and the failed check; 0: passed. Another code: the check could not run."""

# Environment of an agent (set on the pod by the operator, on the process by local mode).
ENV_ETCD_ENDPOINTS = "ELASTRAIN_ETCD_ENDPOINTS"  # host:port[,host:port]
ENV_ETCD_USERNAME = "ELASTRAIN_ETCD_USERNAME"
ENV_ETCD_PASSWORD_FILE = "ELASTRAIN_ETCD_PASSWORD_FILE"  # noqa: S105 - a file's path, never the secret
ENV_ETCD_CA = "ELASTRAIN_ETCD_CA"
ENV_ETCD_CERT = "ELASTRAIN_ETCD_CERT"
ENV_ETCD_KEY = "ELASTRAIN_ETCD_KEY"
ENV_NAMESPACE = "ELASTRAIN_NAMESPACE"
ENV_JOB = "ELASTRAIN_JOB"
ENV_JOB_UID = "ELASTRAIN_JOB_UID"
ENV_WORKER = "ELASTRAIN_WORKER"  # name of the worker (pod)
ENV_NODE = "ELASTRAIN_NODE"
ENV_POD_UID = "ELASTRAIN_POD_UID"  # in a cluster: by it the operator knows which pod a member is in
ENV_ADDRESS = "ELASTRAIN_ADDRESS"  # address at which other members reach this one (pod IP)
ENV_NPROC = "ELASTRAIN_NPROC_PER_NODE"
ENV_GROUP = "ELASTRAIN_GROUP"  # number of the worker's group, if a group has several workers
ENV_PLACE = "ELASTRAIN_PLACE"  # the worker's place in it, from 0
ENV_LEASE_TTL = "ELASTRAIN_LEASE_TTL"  # seconds, at least 2
ENV_DRAIN_TIMEOUT = "ELASTRAIN_DRAIN_TIMEOUT"  # seconds, shorter than the pod's grace period
ENV_RANK_SETTINGS = "ELASTRAIN_RANK_SETTINGS"  # RankSettings as JSON
ENV_CHECKPOINT = "ELASTRAIN_CHECKPOINT"  # spec.checkpoint as JSON, for and from versions without ENV_RANK_SETTINGS
ENV_TERMINATION_LOG = "ELASTRAIN_TERMINATION_LOG"  # default /dev/termination-log
ENV_FORK_RANKS = "ELASTRAIN_FORK_RANKS"  # "on" (default) or "off": execute the command for each rank instead
ENV_PRELOAD = "ELASTRAIN_PRELOAD"  # modules that the zygote imports beside torch, separated by commas
ENV_STUCK_TIMEOUT = "ELASTRAIN_STUCK_TIMEOUT"  # seconds until a rank that blocks others is restarted; 0: never
ENV_STRAGGLERS = "ELASTRAIN_STRAGGLERS"  # name (default) or exclude
ENV_AUDIT_DIR = "ELASTRAIN_AUDIT_DIR"  # RankSettings.audit_dir, for users
ENV_BACKEND = "ELASTRAIN_BACKEND"  # RankSettings.backend, for users
ENV_MIN_TIMEOUT = "ELASTRAIN_MIN_TIMEOUT"  # seconds that a worker waits for the least number of members

# Environment of a rank (set by its agent).
ENV_AGENT_SOCKET = "ELASTRAIN_AGENT_SOCKET"
ENV_JOINED = "ELASTRAIN_JOINED"  # set by the rank itself: its pid
ENV_VERIFY = "ELASTRAIN_VERIFY"  # a run of `elastrain verify`: its settings as JSON
ENV_VERIFY_HINT = "ELASTRAIN_VERIFY_HINT"  # "off": submit prints no line for a script that was not verified
ENV_LOCAL_RANK = "LOCAL_RANK"  # torch's own name: scripts choose their device by it

STACKS_SIGNAL = signal.SIGRTMIN + 1
"""A rank prints the stacks of its Python threads at this signal. Scripts and schedulers do not use it by convention."""

DEFAULT_ETCD_PORT = 2379
DEFAULT_LEASE_TTL = 5
DEFAULT_TERMINATION_LOG = "/dev/termination-log"

EXIT_FINISHED = 0
"""The job is done, or this worker was drained; the termination record distinguishes the two."""
EXIT_USAGE = 2
EXIT_INFRASTRUCTURE = 75
"""EX_TEMPFAIL: the agent failed for a reason outside of the script (refused by etcd, fenced, ...)."""
DEVICE_FAILED = "DeviceFailed"
"""Reason of the end of a worker whose device failed: its node is excluded at once."""
NETWORK_FAILED = "NetworkFailed"
"""Reason of the end of a worker that could not reach its peers, or not by NCCL: several of them exclude the node."""


def node_memory(job_uid: str) -> str:
    """The directory in a node's memory where workers keep their final state: one folder each."""
    return f"/dev/shm/elastrain-{job_uid}"  # noqa: S108 - a name of its own, readable by its user only


def headcount(count: int) -> str:
    """A number of workers as text: ``1 worker``, ``4 workers``."""
    return "1 worker" if count == 1 else f"{count} workers"


def replicas(count: int, group_size: int) -> str:
    """A number of replicas as text: ``4 workers``, or ``2 groups`` if a replica has ``group_size`` workers."""
    if group_size == 1:
        return headcount(count)
    return "1 group" if count == 1 else f"{count} groups"


DIVERGED = "RanksDiverged"
"""Reason of a termination and of the record ``closed``: ranks have done different things, so that the job must fail."""


def worker_set(job: str, uid: str) -> str:
    """The name of a job's :data:`SET_KIND`. A job's name has at most 50 characters."""
    return f"{job}-{uid[:8]}"
