"""``submit`` says which script was never verified."""

from __future__ import annotations

from pathlib import Path

from elastrain_cli.shell import stamp

SCRIPT = b"import elastrain\n"


def test_script_is_named_until_its_present_text_is_verified(tmp_path: Path) -> None:
    environ = {"ELASTRAIN_CACHE": str(tmp_path / "cache")}
    assert "elastrain verify train.py" in stamp.hint("train.py", SCRIPT, environ)
    stamp.write(SCRIPT, environ)
    assert stamp.hint("train.py", SCRIPT, environ) == ""
    assert stamp.hint("train.py", SCRIPT + b"pass", environ)


def test_no_line_if_the_script_cannot_be_verified_or_the_user_wants_none(tmp_path: Path) -> None:
    environ = {"ELASTRAIN_CACHE": str(tmp_path)}
    assert stamp.hint("train.py", b"import torch", environ) == ""
    assert stamp.hint("train.py", SCRIPT, {**environ, "ELASTRAIN_VERIFY_HINT": "off"}) == ""
