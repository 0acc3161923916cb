"""Traces of changes of generation, as the operator sees them.

When it acts, the generation that will follow has no number yet: what was done is kept until the job's status shows the
next one, and told of that. All of it can be lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from elastrain.api.job import JobStatus
from elastrain.tracing import Attribute, Span, Tracer
from elastrain_operator.model import JobRef

KEPT_SPANS = 16
"""Of one job, until its next generation; the newest stay."""
KEPT_JOBS = 1024
"""Jobs of which something is kept; the ones that were acted on longest ago are forgotten first."""


@dataclass(slots=True)
class _Job:
    number: int | None = None
    """Newest generation that the status has shown; None: none was seen by this process."""
    spans: list[Span] = field(default_factory=list)


class Traces:
    """Of all jobs of one operator. For one thread."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.monotonic) -> None:
        self._tracer, self._clock = tracer, clock
        self._jobs: dict[str, _Job] = {}

    @contextlib.contextmanager
    def span(self, job: JobRef, name: str, **attributes: Attribute) -> Iterator[None]:
        """What is done in here, also if it fails."""
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
        """The job's status as of now: tell of the generation after the one last seen what was done before it."""
        number = status.generation.number if status.generation else 0
        kept = self._of(job)
        before, kept.number = kept.number, number
        if number in {0, before}:
            return
        spans, kept.spans = kept.spans, []
        if spans:
            self._tracer.emit(job.uid, number if before is None else before + 1, spans)

    def close(self) -> None:
        """Send what waits; bounded."""
        self._tracer.close()

    def _of(self, job: JobRef) -> _Job:
        kept = self._jobs.pop(job.uid, None) or _Job()
        self._jobs[job.uid] = kept  # the newest last
        if len(self._jobs) > KEPT_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return kept
