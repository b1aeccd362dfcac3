"""Before a job starts: its plan, its runtime, our code on its way there, and the programs that run there."""

import ast
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.ssh.backend import (
    Site,
    SshMachines,
    _require_alike,
    _require_possible,
    _runtime,
    backend,
    inputs_by_flavour,
    prepare,
)
from launcher.backends.ssh.options import Options, Where
from launcher.backends.ssh.plan import SshPlan, Start
from launcher.protocol.backend import Job
from launcher.protocol.records import Task, TaskRun
from launcher.values import Runtime
from tests import sshd
from tests.launcher.backends.ssh.conftest import plan_of
from tests.launcher.told import Golden, told
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, RunSpec, resolve

ROOT = Path(__file__).parents[4]
PYTHON = {"path": "/usr/bin/python3", "version": [3, 11, 2], "torch": "2.5.1", "torchvision": "0.20"}
PYTHON |= {"numpy": "2.1", "psutil": "6.0"}
DOCKER = {"version": "28.2", "is_installed": True, "images": [], "has_gpus": True, "group": 999}
L4 = (("NVIDIA L4", "8.9", "580.82", "23034 MiB"),)
BUILT = dict.fromkeys(inputs_by_flavour(), "sha256:abc")
BARE: dict[str, Any] = {"gpus": (), "docker": {**DOCKER, "version": "", "is_installed": False}, "python": PYTHON}
NO_TORCH = {**PYTHON, "torch": ""}


def site(**has: Any) -> Site:
    given = {"host": "box", "root": "/home/me/.rooflaunch", "is_writable": True, "has_code": False, "cpus": 8}
    given |= {"free_bytes": 10**11, "user": "1000:1000", "images": {}, **BARE, **has}
    return Site(**given)


IN_DOCKER = {"runtime": Runtime.DOCKER}
# What the machine has, and what is asked for.
CHOICES: dict[str, tuple[Site, dict[str, Any]]] = {
    "its Python": (site(), {}),
    "its image": (site(docker=DOCKER, images=BUILT), {}),
    "rather its Python than a build": (site(docker=DOCKER), {}),
    "a build": (site(docker=DOCKER, python=NO_TORCH), {}),
    "a Python of one's own": (site(docker=DOCKER, images=BUILT), {"python": "python3"}),
    "a container is asked for": (site(docker=DOCKER), IN_DOCKER),
    "an image is named": (site(docker=DOCKER), {"image": "a/b@sha256:c"}),
    "nothing": (site(python=NO_TORCH), {}),
    "an old Python": (site(python={**PYTHON, "version": [3, 9, 1]}), {"runtime": Runtime.PROCESS}),
    "no Docker": (site(), IN_DOCKER),
    "Docker without rights": (site(docker={**DOCKER, "version": ""}), IN_DOCKER),
    "no GPU for containers": (site(docker={**DOCKER, "has_gpus": False}, gpus=L4), IN_DOCKER),
    "a GPU that no image knows": (site(docker=DOCKER, gpus=(("Tesla K80", "3.7", "470.1", "11441 MiB"),)), IN_DOCKER),
    "compile needs a process": (site(docker=DOCKER, images=BUILT), {"compile": True}),
    "compile in a container": (site(docker=DOCKER), {"compile": True, **IN_DOCKER}),
}


def test_a_runtime_is_chosen(golden: Golden) -> None:
    def chosen(machine: Site, asked: dict[str, Any]) -> str:
        specs = [RunSpec(device=Device.AUTO), RunSpec(device=Device.AUTO, compile="compile" in asked)]
        options = Options(**{name: value for name, value in asked.items() if name != "compile"})
        runtime, why = _runtime("box", options, specs, machine, with_gpu=bool(machine.gpus))
        return f"{runtime}: {why}"

    golden("runtime.txt", told({name: partial(chosen, *case) for name, case in CHOICES.items()}))


def test_devices_that_the_machine_lacks(golden: Golden) -> None:
    def required(device: Device, devices: int, **has: Any) -> None:
        _require_possible("box", site(**has), [RunSpec(device=device)], devices)

    cases = {
        "too few GPUs": partial(required, Device.AUTO, 3, gpus=L4 * 2),
        "one GPU": partial(required, Device.CUDA, 2, gpus=L4),
        "enough CPUs": partial(required, Device.CPU, 8, gpus=L4, cpus=8),
        "too few CPUs": partial(required, Device.AUTO, 9, cpus=8),
        "unknown CPUs": partial(required, Device.CPU, 2, cpus=0),
    }
    golden("devices.txt", told(cases))


@pytest.fixture
def machines(where: Where) -> SshMachines:
    return backend.machines(backend.settings(where))


def breaking(machines: SshMachines, do: str, *, when: str) -> None:
    """Have the connection break the first time that this is asked: before it is done, or after."""
    machines.now_s()
    before = "os._exit(255)" if when == "before" else "pass"
    after = "os._exit(255)" if when == "after" else "pass"
    machines._program += (
        "\n_main = main\ndef main(question, payload):\n"
        f"    breaks = question['do'] == {do!r} and not question['again']\n    if breaks: {before}\n"
        f"    answer = _main(question, payload)\n    if breaks: {after}\n    return answer\n"
    )


@pytest.mark.world
@pytest.mark.parametrize("when", ["before", "after"])
def test_our_code_is_sent_whole_over_a_connection_that_breaks(
    machine: sshd.Machine, machines: SshMachines, where: Where, when: str
) -> None:
    breaking(machines, "code", when=when)
    plan = prepare(plan_of(where), machines)
    [folder] = (machine.home / ".rooflaunch/code").iterdir()
    assert plan.start is not None
    assert plan.start.environment["PYTHONPATH"] == str(folder)
    assert plan.request.store == str(machine.home / ".rooflaunch")
    for name in ("launcher/agent/__main__.py", "workload/run/train.py", "docker/Dockerfile"):
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes()
    sent = machines.calls["ssh.code"]
    prepare(replace(plan, start=None), machines)
    assert machines.calls["ssh.code"] == sent, "it is there"


@pytest.mark.world
def test_half_of_our_code_is_none(machine: sshd.Machine, machines: SshMachines) -> None:
    with pytest.raises(ToolError, match="the connection broke while our code was sent"):
        machines.ask("code", code="0123", size=1000, payload=b"half")
    assert list((machine.home / ".rooflaunch/code").iterdir()) == []


@pytest.mark.world
def test_what_is_there(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    machine.program("nvidia-smi", "#!/bin/sh\necho 'NVIDIA L4, 8.9, 580.82, 23034 MiB'\n")
    machine.program("docker", "#!/bin/sh\nexit 1\n")
    plan = prepare(plan_of(where), machines)
    assert "NVIDIA L4" in plan.machine
    assert plan.request.runtime == "process"
    assert plan.request.image == ""
    assert plan.start is not None
    assert plan.start.words[0] == sys.executable


@pytest.mark.world
def test_one_of_several_gpus(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    lines = "NVIDIA L4, 8.9, 580.82, 23034 MiB\nTesla T4, 7.5, 580.82, 15360 MiB"
    machine.program("nvidia-smi", f"#!/bin/sh\necho '{lines}'\n")
    machine.program("docker", "#!/bin/sh\nexit 1\n")

    def prepared(index: int) -> SshPlan:
        job = Job(resolved=resolve({}, {}, None), token="abcdef")
        options = Options(python=sys.executable, gpu_index=index)
        return prepare(backend.plan(job, options, backend.settings(where), now=datetime.now(UTC)), machines)

    assert ", Tesla T4, " in prepared(1).machine
    with pytest.raises(UsageError) as caught:
        prepared(2)
    assert str(caught.value) == f"--gpu-index must be one of the GPUs of {machines.place} (0, 1); got 2"
    assert caught.value.hint == "`launch doctor ssh` lists the GPUs, counted from 0"
    machine.program("nvidia-smi", "#!/bin/sh\nexit 9\n")
    with pytest.raises(ToolError, match="nvidia-smi shows no GPU on"):
        prepared(0)


@pytest.mark.parametrize(
    "path", ["launcher/backends/ssh/remote.py", "launcher/backends/ssh/keeper.py", "workload/storage/ssh_remote.py"]
)
def test_what_runs_there_needs_python_3_8_alone(path: str) -> None:
    text = (ROOT / path).read_bytes().decode("ascii")
    tree = ast.parse(text, feature_version=(3, 8))
    names = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert {str(name).partition(".")[0] for name in names} <= sys.stdlib_module_names | {"__future__"}


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def drafted(options: Options, *runs: TaskRun, **typed: object) -> SshPlan:
    task = Task(job="night", runs=runs) if runs else None
    job = Job(resolved=resolve(typed, {}, None), token="abcdef", task=task)
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
        "plans.txt", told({name: lambda case=case: drafted(case[0], *case[1]).text() for name, case in PLANS.items()})
    )


BESIDE: dict[str, tuple[Options, str]] = {
    "three machines": (Options(beside=("me@box2", "box3"), usd_per_h=0.5), "3"),
    "one machine twice": (Options(beside=("me@box",)), "2"),
    "another number": (Options(beside=("box2",)), "3"),
    "no such host": (Options(beside=("-x",)), "2"),
    "in containers": (Options(beside=("box2",), runtime=Runtime.DOCKER), "2"),
    "an image": (Options(beside=("box2",), image="own:1"), "2"),
    "one GPU of each": (Options(beside=("box2",), gpu_index=1), "2"),
}


def test_plans_of_several_machines(golden: Golden) -> None:
    cases = {name: lambda case=case: drafted(case[0], machines=case[1]).text() for name, case in BESIDE.items()}
    golden("beside.txt", told(cases))
    draft = drafted(*BESIDE["three machines"][:1], machines="3")
    assert draft.to_json()["beside"] == ["me@box2", "box3"]
    assert (draft.request.options["beside"], draft.estimate.usd_per_h) == (["box2", "box3"], 1.5)


def test_machines_that_cannot_train_together(golden: Golden) -> None:
    def required(device: Device, **second: Any) -> None:
        _require_alike({"box": site(), "box2": site(**second)}, [RunSpec(device=device)])

    cases = {
        "alike": partial(required, Device.AUTO),
        "another torch": partial(required, Device.AUTO, python={**PYTHON, "torch": "2.9.0"}),
        "a GPU on one": partial(required, Device.AUTO, gpus=L4),
        "the CPUs of all": partial(required, Device.CPU, gpus=L4),
    }
    golden("alike.txt", told(cases))


def test_request_has_the_gpu_and_the_task() -> None:
    options, runs = PLANS["a task of a sweep"]
    assert drafted(options, *runs).request.work == Task(job="night", runs=tuple(runs))
    chosen = drafted(Options(gpu_index=1))
    assert (chosen.request.options, chosen.spec.device) == ({"host": "box", "gpu_index": 1}, "cuda")


def test_the_same_plan_as_another_job_has_a_folder_and_a_container_of_its_own() -> None:
    draft = drafted(Options())
    name, other = draft.request.name, draft.request.name.replace("abcdef", "123456")
    prepared = replace(draft, start=Start(words=("run", name, f"/root/jobs/{name}"), environment={}, container=name))
    renamed = prepared.renamed(replace(draft.request, name=other))
    assert renamed.start == Start(words=("run", other, f"/root/jobs/{other}"), environment={}, container=other)
