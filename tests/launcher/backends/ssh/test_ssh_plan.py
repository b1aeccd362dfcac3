"""The plan of `launch ssh` while nobody has asked the machine."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from launcher.backends.ssh.backend import backend
from launcher.backends.ssh.options import Options, Where
from launcher.backends.ssh.plan import Start
from launcher.protocol.backend import Job
from launcher.protocol.records import Task, TaskRun
from launcher.values import Runtime
from workload.contract.errors import UsageError
from workload.contract.spec import Device, RunSpec, resolve


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (
            Options(),
            (
                "auto: an existing image, else the machine's Python, else a new image; decided at the "
                "start\nlimit      60 min, enforced on the machine even if this command ends\n"
            ),
        ),
        (Options(python="/opt/python"), "runtime    process: asked for; by /opt/python\n"),
        (Options(runtime=Runtime.PROCESS), "runtime    process: asked for; by its python3\n"),
        (Options(runtime=Runtime.DOCKER), "runtime    docker: asked for; with the image for this code\n"),
        (
            Options(image="own:1", max_run_time_s=90),
            ("docker: asked for; with own:1\nlimit      1.5 min, enforced on the machine"),
        ),
    ],
    ids=["auto", "python", "process", "docker", "image"],
)
def test_a_plan_says_what_was_asked_for_before_the_machine_is(options: Options, shown: str) -> None:
    job = Job(resolved=resolve({}, {}, None), token="abcdef")
    text = backend.plan(job, options, backend.settings(Where(host="box")), now=datetime.now(UTC)).text()
    assert shown in text
    assert "\nset by     all defaults\n" in text


def test_a_task_of_a_sweep_travels_with_the_request() -> None:
    task = Task(job="night", runs=(TaskRun(spec=RunSpec(model="resnet50"), block=2, run_key="00ff"),))
    job = Job(resolved=resolve({}, {}, None), token="abcdef", task=task)
    plan = backend.plan(job, Options(), backend.settings(Where(host="box")), now=datetime.now(UTC))
    assert plan.request.work == task
    assert plan.text().splitlines()[0] == "plan       1 run in 1 block, task 1 of 'night', each in its own process"


def test_a_gpu_of_several_travels_with_the_request() -> None:
    job = Job(resolved=resolve({}, {}, None), token="abcdef")
    settings = backend.settings(Where(host="box"))
    plan = backend.plan(job, Options(gpu_index=1), settings, now=datetime.now(UTC))
    assert plan.request.options == {"host": "box", "gpu_index": 1}
    assert plan.spec.device == "cuda"
    assert "\nGPU        index 1 in nvidia-smi there\n" in plan.text()
    task = Task(job="night", runs=(TaskRun(spec=RunSpec()), TaskRun(spec=RunSpec(device=Device.CPU), position=2)))
    with pytest.raises(UsageError, match=r"run 2 of 2 .*--gpu-index chooses an NVIDIA GPU, but the device is cpu"):
        backend.plan(replace(job, task=task), Options(gpu_index=1), settings, now=datetime.now(UTC))


def test_every_run_of_a_task_must_be_one_that_can_be() -> None:
    runs = (TaskRun(spec=RunSpec()), TaskRun(spec=RunSpec(subset=8), position=2))
    job = Job(resolved=resolve({}, {}, None), token="abcdef", task=Task(job="night", runs=runs))
    with pytest.raises(UsageError) as refused:
        backend.plan(job, Options(), backend.settings(Where(host="box")), now=datetime.now(UTC))
    why = "synthetic data has no subset; got --subset 8"
    assert str(refused.value) == f"run 2 of 2 runs in 1 block, task 1 of 'night': {why}"


def test_the_same_plan_as_another_job_has_a_folder_and_a_container_of_its_own() -> None:
    job = Job(resolved=resolve({}, {}, None), token="abcdef")
    draft = backend.plan(job, Options(), backend.settings(Where(host="box")), now=datetime.now(UTC))
    name, other = draft.request.name, draft.request.name.replace("abcdef", "123456")
    prepared = replace(draft, start=Start(words=("run", name, f"/root/jobs/{name}"), environment={}, container=name))
    renamed = prepared.renamed(replace(draft.request, name=other))
    assert renamed.start == Start(words=("run", other, f"/root/jobs/{other}"), environment={}, container=other)
