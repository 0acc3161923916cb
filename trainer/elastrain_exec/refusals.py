"""What ``elastrain exec`` refuses: one line with the file, the line, the reason and the way out."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import ClassVar, NoReturn

WAY_OUT = "elastrain convert shows the calls of a script that does it itself"


class Refused(BaseException):
    """The script does what cannot be made elastic from outside. No ``except Exception`` of the script catches it."""


class Scripts:
    """The files of the script: its own and those beside it."""

    files: ClassVar[set[str]] = set()

    @classmethod
    def nearest(cls, depth: int = 1) -> FrameType | None:
        """The innermost frame of the script's own text."""
        frame: FrameType | None = sys._getframe(depth + 1)
        while frame is not None and frame.f_code.co_filename not in cls.files:
            frame = frame.f_back
        return frame


def refuse(reason: str, way_out: str = WAY_OUT, *, at: tuple[str, int] | None = None) -> NoReturn:
    """Raises :class:`Refused`. ``at``: file and line; default: the line of the script that runs."""
    if at is None and (frame := Scripts.nearest()) is not None:
        at = frame.f_code.co_filename, frame.f_lineno
    place = f"{Path(at[0]).name}:{at[1]}: " if at else ""
    raise Refused(f"{place}{reason}: {way_out}")
