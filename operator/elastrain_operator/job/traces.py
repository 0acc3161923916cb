"""Traces of rescales, from the operator's side.

When the operator acts, the next generation has no number yet: its spans are kept until the job's status shows the
number, and are sent then. Losing them is safe.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from elastrain.api.job import JobStatus
from elastrain.tracing import Attribute, Span, Tracer
from elastrain_operator.facts import JobRef

KEPT_SPANS = 16
"""Most spans of one job until its next generation; the newest are kept."""
KEPT_JOBS = 1024
"""Most jobs with kept spans; the least recently used are dropped first."""


@dataclass(slots=True)
class _JobSpans:
    number: int | None = None
    """Newest generation in the status; None: this process has seen none."""
    spans: list[Span] = field(default_factory=list)


class Traces:
    """The traces of all jobs of one operator. For one thread."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.monotonic) -> None:
        self._tracer, self._clock = tracer, clock
        self._jobs: dict[str, _JobSpans] = {}

    @contextlib.contextmanager
    def span(self, job: JobRef, name: str, **attributes: Attribute) -> Iterator[None]:
        """A span around the block, also if that fails."""
        start = self._clock()
        error = ""
        try:
            yield
        except Exception as failed:
            error = type(failed).__name__
            raise
        finally:
            facts: dict[str, Attribute] = {f"elastrain.{key}": value for key, value in attributes.items()}
            if error:
                facts["error.type"] = error
            kept = self._of(job)
            kept.spans.append(Span(name, start, self._clock(), facts))
            del kept.spans[:-KEPT_SPANS]

    def seen(self, job: JobRef, status: JobStatus) -> None:
        """The job's current status. If it shows a new generation, the kept spans become part of that trace."""
        number = status.generation.number if status.generation else 0
        kept = self._of(job)
        before, kept.number = kept.number, number
        if number in {0, before}:
            return
        spans, kept.spans = kept.spans, []
        if spans:
            self._tracer.emit(job.uid, number if before is None else before + 1, spans)

    def close(self) -> None:
        """Send the pending spans; bounded."""
        self._tracer.close()

    def _of(self, job: JobRef) -> _JobSpans:
        kept = self._jobs.pop(job.uid, None) or _JobSpans()
        self._jobs[job.uid] = kept  # the newest comes last
        if len(self._jobs) > KEPT_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return kept
