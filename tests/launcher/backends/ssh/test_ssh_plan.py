"""The plan of `launch ssh` while nobody has asked the machine."""

from dataclasses import replace
from datetime import UTC, datetime

from launcher.backends.ssh.backend import backend
from launcher.backends.ssh.options import Options, Where
from launcher.backends.ssh.plan import SshPlan, Start
from launcher.kinds import Runtime
from launcher.protocol.backend import Job
from launcher.protocol.task import Task, TaskRun
from tests.launcher.told import Golden, told
from workload.contract.spec import Device, RunSpec, resolve

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def plan_of(options: Options, *runs: TaskRun) -> SshPlan:
    task = Task(job="night", runs=runs) if runs else None
    job = Job(resolved=resolve({}, {}, None), token="abcdef", task=task)
    return backend.plan(job, options, backend.settings(Where(host="box")), now=NOW)


PLANS: dict[str, tuple[Options, list[TaskRun]]] = {
    "auto": (Options(), []),
    "python": (Options(python="/opt/python"), []),
    "process": (Options(runtime=Runtime.PROCESS), []),
    "docker": (Options(runtime=Runtime.DOCKER), []),
    "image": (Options(image="own:1", max_run_time_s=90), []),
    "a GPU of several": (Options(gpu_index=1), []),
    "a task of a sweep": (Options(), [TaskRun(spec=RunSpec(model="resnet50"), block=2, run_key="00ff")]),
    "a task with a run that cannot be": (
        Options(),
        [TaskRun(spec=RunSpec()), TaskRun(spec=RunSpec(subset=8), position=2)],
    ),
    "a GPU's index and the CPU": (
        Options(gpu_index=1),
        [TaskRun(spec=RunSpec()), TaskRun(spec=RunSpec(device=Device.CPU), position=2)],
    ),
    "python for a container": (Options(python="p", image="x"), []),
    "image for a process": (Options(runtime=Runtime.PROCESS, image="x"), []),
    "an option as python": (Options(python="-c"), []),
    "an option as image": (Options(image="-v"), []),
}


def test_plans(golden: Golden) -> None:
    golden(
        "plans.txt", told({name: lambda case=case: plan_of(case[0], *case[1]).text() for name, case in PLANS.items()})
    )


def test_request_has_the_gpu_and_the_task() -> None:
    options, runs = PLANS["a task of a sweep"]
    assert plan_of(options, *runs).request.work == Task(job="night", runs=tuple(runs))
    chosen = plan_of(Options(gpu_index=1))
    assert (chosen.request.options, chosen.spec.device) == ({"host": "box", "gpu_index": 1}, "cuda")


def test_the_same_plan_as_another_job_has_a_folder_and_a_container_of_its_own() -> None:
    draft = plan_of(Options())
    name, other = draft.request.name, draft.request.name.replace("abcdef", "123456")
    prepared = replace(draft, start=Start(words=("run", name, f"/root/jobs/{name}"), environment={}, container=name))
    renamed = prepared.renamed(replace(draft.request, name=other))
    assert renamed.start == Start(words=("run", other, f"/root/jobs/{other}"), environment={}, container=other)
