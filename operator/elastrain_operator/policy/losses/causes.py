"""Why a worker ended. Only the cause ``user`` counts against ``backoffLimit``."""

from __future__ import annotations

from elastrain.api import names
from elastrain.api.records import Outcome
from elastrain_operator.facts import Cause, Ending, Loss, Pod

_PREEMPTION = frozenset({"PreemptionByScheduler", "Preempted", "Preempting", "PreemptionByKubeScheduler"})
_DISRUPTED = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Terminated", "Shutdown", "DeadlineExceeded"})
"""Reasons of a pod (not of a container): the kubelet or a controller ended it."""
_MOST_SIGNALS = 128 + 64
"""Exit codes up to here name a signal."""
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})


def judge(pod: Pod) -> Loss | None:
    """Why a pod ended; None: it finished its work, or was drained.

    The order matters: an eviction explains any later state of the container, and the agent's termination record is more
    precise than an exit code.
    """
    ending = pod.ending
    if ending is None:
        return None
    outcome = _outcome(ending)
    if outcome is Outcome.FINISHED:
        return None
    if ending.refused and not pod.disruption:
        text = f"node {pod.node} refused worker {pod.name} ({ending.reason})"
        return Loss(pod, Cause.INFRASTRUCTURE, "PodFailed", f"{text}{_quote(ending.message)}")
    if pod.disruption or ending.reason in _DISRUPTED | _PREEMPTION:
        return disrupted(pod)
    if outcome is not None:
        return None if outcome is Outcome.DRAINED else _failed(pod, ending)
    return _without_record(pod, ending)


def disrupted(pod: Pod) -> Loss:
    """A pod that Kubernetes or a user removes."""
    word = pod.disruption or (pod.ending.reason if pod.ending else "")
    text = pod.ending.message if pod.ending and not pod.ending.record else ""
    if word in _PREEMPTION:
        return Loss(pod, Cause.PREEMPTION, "Preempted", f"worker {pod.name} was preempted{_quote(text)}")
    if word:
        return Loss(pod, Cause.INFRASTRUCTURE, "Evicted", f"worker {pod.name} was evicted ({word}){_quote(text)}")
    when = "" if pod.started else " before it started"
    return Loss(pod, Cause.INFRASTRUCTURE, "Deleted", f"the pod of worker {pod.name} was deleted{when}")


def unreachable(pod: Pod) -> Loss:
    """A pod that is not Ready any more and whose member's lease has expired."""
    return Loss(
        pod,
        Cause.INFRASTRUCTURE,
        "NodeLost",
        f"worker {pod.name} is lost: its pod is no longer Ready and its lease has expired",
    )


def _failed(pod: Pod, ending: Ending) -> Loss:
    """The agent's termination record reports a failure."""
    record = ending.record
    assert record is not None
    rank = "" if record.rank is None else f", rank {record.rank}"
    message = f"worker {pod.name}{rank}: {record.message or record.reason or 'failed without a message'}"
    hardware = record.signal != 0 or record.exit_code == names.EXIT_INFRASTRUCTURE
    cause = Cause.INFRASTRUCTURE if hardware or ending.reason == "OOMKilled" else Cause.USER
    return Loss(pod, cause, record.reason or "Failed", message, record.log_tail)


def _outcome(ending: Ending) -> Outcome | None:
    """The outcome in the termination record; of a newer agent's word the exit code decides. None: no record."""
    record = ending.record
    if record is None:
        return None
    if isinstance(record.outcome, Outcome):
        return record.outcome
    return Outcome.FAILED if record.exit_code or ending.exit_code else Outcome.DRAINED


def _silent(pod: Pod, ending: Ending) -> Loss:
    """The container ended without a termination record: its exit code decides."""
    code, text = ending.exit_code, ending.message
    if ending.reason == "OOMKilled":
        text = "used more memory than its limit (OOMKilled); raise resources.limits.memory of the trainer container"
        return Loss(pod, Cause.INFRASTRUCTURE, "OOMKilled", f"worker {pod.name} {text}")
    if ending.reason in _NOT_STARTED:
        return Loss(pod, Cause.USER, "CommandNotStarted", f"worker {pod.name} could not start{_quote(text)}")
    if code is None:
        return Loss(pod, Cause.INFRASTRUCTURE, "PodFailed", f"worker {pod.name} ended ({ending.reason}){_quote(text)}")
    if code > 128:
        lost = f"lost by its container runtime (exit code {code}), as at a restart of its node"
        how = f"killed by signal {code - 128}" if code <= _MOST_SIGNALS else lost
        return Loss(pod, Cause.INFRASTRUCTURE, "Killed", f"worker {pod.name} was {how}")
    if code == names.EXIT_INFRASTRUCTURE:
        return Loss(pod, Cause.INFRASTRUCTURE, "AgentFailed", f"the agent of worker {pod.name} failed{_quote(text)}")
    message = f"worker {pod.name} ended with exit code {code} and left no termination record{_quote(text)}"
    return Loss(pod, Cause.USER, "NoTerminationRecord", message)


def _without_record(pod: Pod, ending: Ending) -> Loss:
    """No agent tells how the worker ended."""
    if ending.container and ending.container != names.PREFLIGHT_CONTAINER:
        return _unprepared(pod, ending)
    if ending.reason == "PreflightFailed" and ending.exit_code is not None and ending.exit_code <= 128:
        return _unfit(pod, ending.exit_code, ending.message)
    return _silent(pod, ending)


def _unprepared(pod: Pod, ending: Ending) -> Loss:
    """An init container failed. The template's is the user's program, like the script; one that admission has added is
    not, and is retried like any fault of the cluster."""
    code, words = ending.exit_code, ending.message.strip()
    who = f"init container {ending.container} of worker {pod.name}"
    if ending.reason == "OOMKilled":
        text = f"{who} used more memory than its limit (OOMKilled); raise its resources.limits.memory"
        return Loss(pod, Cause.INFRASTRUCTURE, "OOMKilled", text)
    how = f"ended with exit code {code}"
    cause, reason = Cause.USER, "InitContainerFailed"
    if ending.reason in _NOT_STARTED:
        how, reason = "could not start", "CommandNotStarted"
    elif code is not None and 128 < code <= _MOST_SIGNALS:
        how, cause = f"was killed by signal {code - 128}", Cause.INFRASTRUCTURE
    if ending.added:
        who, cause, reason = f"{who}, which admission has added,", Cause.INFRASTRUCTURE, "InitContainerFailed"
    last, tail = words.splitlines()[-1] if words else "", words if "\n" in words else ""
    return Loss(pod, cause, reason, f"{who} {how}{_quote(last)}", tail)


def _unfit(pod: Pod, code: int, text: str) -> Loss:
    """The pre-flight check failed; or it could not run, which is the image's fault, not the node's."""
    if code not in names.PREFLIGHT_EXITS:
        message = f"the pre-flight check of worker {pod.name} could not run (exit code {code}){_quote(text)}"
        return Loss(pod, Cause.USER, "PreflightNotRun", f"{message}; the image must have `elastrain preflight`")
    where = f"node {pod.node} of worker {pod.name}" if pod.node else f"the node of worker {pod.name}"
    return Loss(pod, Cause.INFRASTRUCTURE, "PreflightFailed", f"{where} failed the pre-flight check{_quote(text)}")


def _quote(text: str) -> str:
    return f": {text.strip()}" if text.strip() else ""
