"""Plans for a task of a sweep, which has several runs."""

from typing import Any

import pytest

from launcher.backends.gcp.gpus import Driver
from launcher.backends.gcp.plan import Options, make_plan
from launcher.backends.gcp.planned_vm import VmPlan
from launcher.protocol.records import Request
from launcher.protocol.task import Task, TaskRun
from tests.launcher.backends.gcp.gcp_plans import IMAGE, NOW, planned, settings_of
from workload.contract.errors import UsageError
from workload.contract.spec import Device, Precision, Profile, RunSpec, resolve

pytestmark = pytest.mark.usefixtures("made_up_programs")


def a_task(**spec: Any) -> Task:
    runs = [(block, position) for block in (1, 2) for position in (1, 2)]
    specs = {1: RunSpec(model="resnet18", **spec), 2: RunSpec(model="resnet50", batch_size=64, **spec)}
    return Task(job="night", runs=tuple(TaskRun(spec=specs[at], block=block, position=at) for block, at in runs))


def of_task(task: Task) -> VmPlan:
    resolved = resolve({"dataset": task.runs[0].spec.dataset}, {}, None)
    return make_plan(resolved, Options(gpu="t4"), settings_of(), image=IMAGE, now=NOW, token="0a1b2c", task=task)


def test_a_task_of_a_sweep_travels_with_the_request_as_a_vm_does_it() -> None:
    plan = of_task(a_task(dataset="cifar10", data_dir="/home/me/data"))
    work = Request.from_bytes(plan.metadata()["rooflaunch-request"].encode()).work
    assert [(run.spec.model, run.spec.batch_size, run.block) for run in work.runs] == [
        ("resnet18", None, 1),
        ("resnet50", 64, 1),
        ("resnet18", None, 2),
        ("resnet50", 64, 2),
    ]
    assert {(run.spec.device, run.spec.download, run.spec.data_dir) for run in work.runs} == {
        (Device.CUDA, True, RunSpec().data_dir)
    }
    assert plan.text().splitlines()[0] == "plan       4 runs in 2 blocks, task 1 of 'night', each in its own process"


# Options of the last run of a task, and why the whole task is refused.
NOT_FOR_A_VM: dict[str, tuple[RunSpec, str]] = {
    "tf32 on a T4": (
        RunSpec(precision=Precision.TF32),
        "precision tf32 needs compute capability 8.0 or newer; a T4 16 GB has 7.5",
    ),
    "compile": (
        RunSpec(compile=True),
        "--compile needs a C++ compiler, which the images do not contain; a VM runs one of these images",
    ),
    "a folder of this machine": (RunSpec(dataset="photos"), "a VM cannot read the folder 'photos' of this machine"),
    "a contradiction": (RunSpec(subset=8), "synthetic data has no subset; got --subset 8"),
}


@pytest.mark.parametrize("case", NOT_FOR_A_VM)
def test_every_run_of_a_task_must_be_one_for_a_vm(case: str) -> None:
    spec, why = NOT_FOR_A_VM[case]
    with pytest.raises(UsageError) as refused:
        of_task(Task(job="night", runs=(TaskRun(spec=RunSpec()), TaskRun(spec=spec, position=2))))
    assert str(refused.value) == f"run 2 of 2 runs in 1 block, task 1 of 'night': {why}"
    assert refused.value.hint


def test_what_a_vm_needs_and_its_user_should_know_is_that_of_all_runs() -> None:
    runs = [RunSpec(device=Device.CPU), RunSpec(precision=Precision.BF16), RunSpec(dataset="cifar10")]
    plan = of_task(Task(job="night", runs=tuple(TaskRun(spec=spec) for spec in runs)))
    assert plan.driver is not Driver.NONE
    assert plan.request.options["flavour"] == "cuda"
    assert plan.notes[0] == "the VM downloads cifar10, because it starts without data"
    assert any(note.startswith("the T4 16 GB has no bf16 units") for note in plan.notes)
    on_cpu = of_task(Task(job="night", runs=(TaskRun(spec=runs[0]),)))
    assert (on_cpu.driver, on_cpu.request.options["flavour"]) == (Driver.NONE, "cpu")


def test_a_task_takes_as_long_as_its_runs_and_their_profiles() -> None:
    one = planned(run={"model": "resnet18"}).run_s
    assert of_task(a_task()).run_s == pytest.approx(4 * one)
    profiled = planned(run={"profile": "torch"}).run_s
    assert of_task(a_task(profile=Profile.TORCH)).run_s == pytest.approx(4 * profiled)
    assert planned(run={"profile": "torch", "repeats": "3"}).run_s == pytest.approx(2 * one + profiled)


def test_a_task_that_metadata_cannot_hold_is_refused() -> None:
    runs = tuple(TaskRun(spec=RunSpec(), block=block, run_key=f"{block:016x}") for block in range(3000))
    with pytest.raises(UsageError, match="a VM's metadata takes 250000") as raised:
        of_task(Task(job="night", runs=runs))
    assert str(raised.value).startswith("the request for 3000 runs in 3000 blocks, task 1 of 'night' has ")
    assert raised.value.hint == "more machines, which share the runs"
