"""A sweep's task on a machine that is lost in the middle: the same task, launched again, does what is missing."""

import os
import signal
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from launcher.backends.ssh.backend import SshMachines, backend, prepare
from launcher.backends.ssh.options import Options, Where
from launcher.jobs import run as launching
from launcher.jobs.session import Session
from launcher.protocol.backend import Job
from launcher.protocol.records import Task, TaskRun
from tests import sshd
from tests.launcher.backends.contract import TINY
from tests.waiting import until
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.spec import resolve
from workload.storage.inventory import sealed_runs

pytestmark = [
    pytest.mark.world,
    pytest.mark.timeout(900),
    pytest.mark.night(part="places"),
]
LIMIT_S = 400


def test_a_task_is_finished_by_the_next_launch(
    machine: sshd.Machine, machines: SshMachines, where: Where, tmp_path: Path
) -> None:
    base = resolve({**TINY}, {}, None)
    runs = tuple(
        TaskRun(spec=replace(base.spec, seed=seed), block=block, position=seed, run_key=f"{block}-{seed}")
        for block in (1, 2)
        for seed in (1, 2)
    )
    job = Job(resolved=base, token="abcdef", task=Task(job="night", runs=runs))
    options = Options(python=sys.executable, max_run_time_s=800)
    plan = prepare(backend.plan(job, options, backend.settings(where), now=datetime.now(UTC)), machines)
    session = Session(machines=machines, store=backend.store(backend.settings(where)))
    launching.run(session, plan, output=tmp_path / "home", detach=True)

    store = machine.home / ".rooflaunch"
    job_folder = store / "jobs" / plan.request.name
    started = (job_folder / "results").glob
    until(lambda: len(list(started(f"*/{bundle.STEPS}"))) >= 2, (job_folder / "log").read_text, within_s=LIMIT_S)
    before = {sealed.run_key for sealed in sealed_runs(session.store)}
    for pid, words in machine.jobs():
        if plan.request.name in words:  # agent, keeper and trainer: as if the power had gone
            os.kill(pid, signal.SIGKILL)

    outcome = launching.run(session, launching.again(plan, machines.now_s()), output=tmp_path / "home")
    assert (outcome.exit_code, outcome.error) == (ExitCode.DONE, None)
    final = Counter(sealed.run_key for sealed in sealed_runs(session.store) if sealed.status == "completed")
    assert final == Counter(["1-1", "1-2", "2-1", "2-2"]), "all of them, none twice"
    here = {sealed.record.run_key for sealed in outcome.bundles}
    assert here == set(final) - before, "the second did only what was missing"
    places = {
        sealed.record.run_key: (sealed.record.job.block, sealed.record.job.position, sealed.record.spec.seed)
        for sealed in outcome.bundles
        if sealed.record.job
    }
    assert places == {run.run_key: (run.block, run.position, run.spec.seed) for run in runs if run.run_key in here}
