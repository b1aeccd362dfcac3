"""A real Slurm on this machine, with a folder of its own for each test."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from launcher.backends.slurm.backend import backend
from launcher.backends.slurm.machines import SlurmMachines
from launcher.backends.slurm.options import Options, Where
from launcher.backends.slurm.plan import SlurmPlan
from launcher.protocol.backend import Job
from launcher.protocol.records import Task
from tests import slurm
from tests.launcher.backends.contract import TINY
from tests.slurm import SlurmCluster
from workload.contract.spec import resolve

# CI has the cluster without accounting; the night has both.
CLUSTERS = (pytest.param("accounting", marks=pytest.mark.night(part="places")), "plain")


@pytest.fixture(params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """Each of the two, unless a test says which."""
    home = tmp_path / "home"
    home.mkdir()
    with slurm.cluster(request.param, home, monkeypatch) as one:
        yield one


def machines_of(where: Where | None = None) -> SlurmMachines:
    return backend.machines(backend.settings(where or Where()))


def plan_of(
    *, token: str = "abcdef", task: Task | None = None, options: Options | None = None, **given: object
) -> SlurmPlan:
    """A draft for a tiny run by this process's Python; nobody looked at the cluster."""
    chosen = replace(options or Options(), python=sys.executable)
    job = Job(resolved=resolve({**TINY, **given}, {}, None), token=token, task=task)
    return backend.plan(job, chosen, backend.settings(Where()), now=datetime.now(UTC))


def doing(plan: SlurmPlan, folder: Path, *lines: str) -> SlurmPlan:
    """The plan with a few lines of a shell in place of the agent."""
    guest = folder / ".rooflaunch" / plan.node.guest
    guest.parent.mkdir(parents=True, exist_ok=True)
    guest.touch()
    program = folder / "agent"
    program.write_text("#!/bin/bash\n" + "\n".join(lines) + "\n")
    program.chmod(0o755)
    return replace(plan, node=replace(plan.node, python=str(program)))
