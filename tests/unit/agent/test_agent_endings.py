"""Termination records: their content, and that Kubernetes can read all of it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from elastrain.agent.core import endings
from elastrain.agent.core.events import RankExited
from elastrain.api.records import Outcome, Termination

TRACEBACK = """starting
Traceback (most recent call last):
  File "/app/train.py", line 9, in <module>
    main()
  File "/app/train.py", line 5, in main
    load("x")
FileNotFoundError: no such file: 'x'
cleaning up"""


def test_the_message_is_the_error_and_where_it_was_raised_if_the_log_ends_with_a_traceback():
    assert endings.error_line(TRACEBACK) == "FileNotFoundError: no such file: 'x' (/app/train.py:5 in main)"


def test_the_message_is_the_last_error_if_one_exception_caused_another():
    log = (
        TRACEBACK
        + "\n\nDuring handling ...\n\n"
        + TRACEBACK.replace("FileNotFoundError: no such file: 'x'", "KeyError: 2")
    )
    assert endings.error_line(log).startswith("KeyError: 2")


def test_the_message_is_the_last_line_if_there_is_no_traceback():
    assert endings.error_line("a\nout of disk\n\n") == "out of disk"
    assert endings.error_line("a\nleaked 3 functions", "ValueError: x") == "ValueError: x"


def test_the_message_names_the_exit_code_if_nothing_was_printed():
    assert "exited with 4" in endings.script_failed(1, RankExited(1, 0, code=4), None).message


@given(st.text(), st.text())
def test_a_record_fits_into_a_termination_log_for_any_output(message, log):
    long = Termination(outcome=Outcome.FAILED, message=message * 50, log_tail=log * 200, exit_code=1)
    raw = endings.encode(long)
    assert len(raw) < endings.RECORD_BYTES
    read = Termination.model_validate(json.loads(raw))
    assert long.log_tail.endswith(read.log_tail), "the newest lines are kept"
    assert long.message.startswith(read.message)


def test_a_record_keeps_a_short_log_whole():
    record = endings.script_failed(7, RankExited(1, 0, code=1, log_tail=TRACEBACK), 3)
    assert Termination.decode(endings.encode(record)) == record


NOISE = """Exception ignored in: <function File.__del__ at 0x7f>
Traceback (most recent call last):
  File "/app/train.py", line 30, in __del__
    raise OSError("noise of a destructor")
OSError: noise of a destructor"""

LAUNCHER = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/accelerate/commands/launch.py", line 9, in main
    launch_command(args)
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."""


def test_the_message_is_the_scripts_error_if_a_destructor_complains_after_it() -> None:
    assert endings.error_line(f"{TRACEBACK}\n{NOISE}").startswith("FileNotFoundError: no such file: 'x'")


def test_the_message_is_the_cause_if_a_launcher_reports_it() -> None:
    assert endings.error_line(f"{TRACEBACK}\n{LAUNCHER}").startswith("FileNotFoundError: no such file: 'x'")
    assert endings.error_line(LAUNCHER).startswith("subprocess.CalledProcessError"), "if it is all that was logged"


def test_the_message_is_the_error_if_torch_marks_each_line_by_its_rank() -> None:
    marked = "\n".join(f"[rank3]: {line}" for line in TRACEBACK.splitlines())
    assert endings.error_line(marked) == endings.error_line(TRACEBACK)


def test_the_message_names_the_ways_out_if_a_script_waits_for_torchruns_environment() -> None:
    error = "ValueError: Error initializing torch.distributed using env:// rendezvous: RANK expected, but not set"
    line = endings.error_line(TRACEBACK.replace("FileNotFoundError: no such file: 'x'", error))
    assert "elastrain convert" in line
    assert "elastrain_launchers.restart" in line
