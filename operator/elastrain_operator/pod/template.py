"""Which template a pod is made of. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def version(template: Mapping[str, Any]) -> str:
    """A short name of a template: a digest of its text as stored, the same in each version of the operator. Another
    spelling is another version: it costs one planned rescale."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
