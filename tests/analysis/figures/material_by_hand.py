"""Runs made by hand, without their bundles, and the material of their figures."""

from typing import Any

from analysis.figures.material import Material
from tests.analysis.by_hand import results
from tests.analysis.by_hand import run as made_run
from tests.analysis.sentence_runs import undrawn


def run(name: str, **facts: Any) -> dict[str, Any]:
    # The bundle has gone: what only run.json says is absent.
    return made_run(name, **{"path": "/nowhere", **facts})


def made(*runs: dict[str, Any]) -> Material:
    return undrawn(results(*runs)).material
