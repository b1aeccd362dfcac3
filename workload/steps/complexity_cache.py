"""Stores counts of training steps beside the bundles, because counting takes as long as a short run.

Entries hold for the same code, PyTorch, torchvision and fvcore. A file that is damaged or made by others is ignored.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from workload.contract.files import replace_text
from workload.environment.software import version
from workload.model import flop, models
from workload.steps import complexity, training_step
from workload.steps.complexity import Complexity

CACHE_NAME = ".complexity.json"
# An entry has up to 60 kB: this many are read in some milliseconds.
MAX_ENTRIES = 50
PACKAGES = ("torch", "torchvision", "fvcore")


def read(folder: Path, asked: Mapping[str, Any]) -> Complexity | None:
    """Stored count for the arguments `asked` of `complexity.count`; None if `folder` has none."""
    with suppress(KeyError, TypeError, ValueError):
        facts = _entries(folder)[_key(asked)]
        return Complexity(**{**facts, "uncounted": tuple(facts["uncounted"])})
    return None


def write(folder: Path, asked: Mapping[str, Any], counted: Complexity) -> None:
    """Store a count if it is new. The oldest entries make room for it; a folder that cannot be written is no error."""
    stored, key = _entries(folder), _key(asked)
    if key in stored:
        return
    newest = dict([*stored.items()][-(MAX_ENTRIES - 1) :])
    text = json.dumps({"counted_by": _counted_by(), "counts": {**newest, key: asdict(counted)}})
    with suppress(OSError):
        replace_text(folder / CACHE_NAME, text, shared=True, durable=False)


def _entries(folder: Path) -> dict[str, Any]:
    """Stored counts by key; empty if the file is absent, damaged, or of other code or packages."""
    with suppress(OSError, KeyError, TypeError, ValueError, AttributeError):
        content = json.loads((folder / CACHE_NAME).read_text(encoding="utf-8"))
        if content["counted_by"] == _counted_by():
            return dict(content["counts"])
    return {}


def _key(asked: Mapping[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True)


@cache
def _counted_by() -> str:
    """Hash of the code that counts, and the versions of its packages."""
    code = sha256()
    for module in (complexity, flop, models, training_step):
        assert module.__file__
        code.update(Path(module.__file__).read_bytes())
    return " ".join([code.hexdigest(), *(version(name) or "absent" for name in PACKAGES)])
