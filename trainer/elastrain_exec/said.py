"""What the script prints, logs and writes: once in the job, as it would in N processes."""

from __future__ import annotations

import builtins
import functools
import io
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

from elastrain.elastic.contract import Phase
from elastrain_exec.refusals import Scripts, refuse


class Said:
    """Of this process."""

    def __init__(self, phase: Callable[[], Phase], counts: Callable[[], bool], first: Callable[[], bool]) -> None:
        """``phase()``: where the script is. ``counts()``: what it does now happens once in the job. ``first()``: the
        job has not trained yet."""
        self._phase, self._counts, self._first = phase, counts, first
        self._waiting: list[Callable[[], object]] = []
        """Made in a body whose step may have to be repeated."""
        self._files: list[tuple[weakref.ref[Any], str]] = []
        """Opened for writing before the first loop."""

    def settle(self) -> None:
        """The body ends: what it has said before its backward is said if its step counts."""
        waiting, self._waiting = self._waiting, []
        if self._phase() is Phase.COMMITTED:
            for say in waiting:
                say()

    def say(self, act: Callable[[], object]) -> None:
        """Now, when the body's step counts, or never."""
        if self._phase() in (Phase.FRESH, Phase.BACKWARD, Phase.PARTIAL) and self._counts():
            self._waiting.append(act)
        elif self._counts():
            self.settle()
            act()

    def print(self, *values: Any, **options: Any) -> None:
        """``print(…)`` in the script's text."""
        texts = [str(value) for value in values]
        self.say(functools.partial(builtins.print, *texts, **options))

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """``open(…)`` in the script's text. Where nothing counts, what is written goes nowhere."""
        if not set(mode) & set("wax+"):
            return builtins.open(file, mode, *args, **kwargs)  # noqa: PTH123 - what the script calls
        phase = self._phase()
        if phase in (Phase.FRESH, Phase.BACKWARD, Phase.PARTIAL) and self._counts():
            refuse(f"open(…, {mode!r}) before the backward: the step may be repeated", "open it behind the backward")
        if not self._counts() or (phase is Phase.SETUP and not self._first()):
            return io.BytesIO() if "b" in mode else io.StringIO()
        opened = builtins.open(file, mode, *args, **kwargs)  # noqa: PTH123, SIM115 - what the script calls
        if phase is Phase.SETUP:
            self._files.append((weakref.ref(opened), str(file)))
        return opened

    def check_files(self) -> None:
        """The training begins. Raises :class:`Refused` for a file that this process alone keeps open."""
        for reference, name in self._files:
            opened = reference()
            if opened is not None and not opened.closed:
                refuse(
                    f"the file {os.path.basename(name)!r} is open for writing: another process may become rank 0",  # noqa: PTH119
                    "open it where it is written: with open(…, 'a') as f",
                )
        self._files = []

    def hold_logs(self) -> None:
        """Records of the script's loggers are as its prints."""
        handle = logging.Logger.handle

        @functools.wraps(handle)
        def held(logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.pathname in Scripts.files:
                self.say(functools.partial(handle, logger, record))
            else:
                handle(logger, record)

        logging.Logger.handle = held  # type: ignore[method-assign, assignment]
