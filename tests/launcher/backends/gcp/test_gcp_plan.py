"""Plans of `launch gcp`: text, request and refusals compared with golden files; machine, zones, tasks, hostile text."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.gcp import gpus
from launcher.backends.gcp import plan as planning
from launcher.backends.gcp.gpus import Driver
from launcher.backends.gcp.plan import VmPlan
from launcher.protocol.records import Request, Task, TaskRun
from launcher.values import shown
from tests.launcher.backends.gcp.gcp_plans import NOW, PLANS, planned, settings_of
from tests.launcher.backends.told import errors_of
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, Precision, Profile, RunSpec, resolve

pytestmark = pytest.mark.usefixtures("made_up_programs")

Golden = Callable[[str, str], None]


def items_of(plan: VmPlan) -> dict[str, str]:
    return {item["key"]: item["value"] for item in plan.shown_body()["metadata"]["items"]}


@pytest.mark.parametrize("name", PLANS)
def test_plan_is_the_committed_one(name: str, golden: Golden) -> None:
    plan = planned(**PLANS[name])
    golden(f"{name}.txt", f"{plan.text()}\n\n{plan.sent_text()}\n")


def test_plan_as_json_is_the_committed_one(golden: Golden) -> None:
    plan = planned(**PLANS["t4-everything"])
    values = plan.to_json()
    assert values.pop("insert") == plan.shown_body()
    values["rooflaunch-request"] = json.loads(items_of(plan)["rooflaunch-request"])
    golden("t4-everything.json", json.dumps(values, indent=1) + "\n")


IN_WEST = settings_of(subnetwork="regions/us-west1/subnetworks/gpu")
REFUSED: dict[str, dict[str, Any]] = {
    "misspelled GPU": {"gpu": "v10"},
    "GPU in capitals": {"gpu": "A100-80"},
    "too many GPUs for the machine type": {"gpu": "l4", "machine_type": "g2-standard-4", "gpu_count": 2},
    "too many devices for the machine type": {"gpu": "l4", "machine_type": "g2-standard-12", "run": {"devices": 2}},
    "too many GPUs": {"gpu": "a100", "gpu_count": 9},
    "too many devices of a CPU": {"run": {"devices": 97, "device": "cpu"}},
    "not sold on demand": {"gpu": "h100"},
    "machine type of another GPU": {"gpu": "a100", "machine_type": "n1-standard-8"},
    "disk too small": {"disk_gb": 49},
    "disk too large": {"disk_gb": 65537},
    "limit too short": {"max_run_time_s": 29},
    "cost that is no number": {"max_cost_usd": math.nan},
    "infinite price": {"usd_per_h": math.inf},
    "negative reruns": {"rerun_preempted": -1, "spot": True},
    "Apple GPU": {"run": {"device": "mps"}},
    "compiled": {"run": {"compile": True}},
    "folder of this machine": {"run": {"dataset": "~/photos"}},
    "tf32 on a T4": {"run": {"precision": "tf32"}},
    "zone without the GPU": {"gpu": "v100", "zones": ("us-east1-d",)},
    "no zone": {"gpu": "v100", "zones": ("here",)},
    "no fallback without a zone": {"fallback": False},
    "zone outside of the subnetwork": {"settings": IN_WEST, "zones": ("us-central1-a",)},
    "subnetwork without the GPU": {
        "gpu": "v100",
        "settings": settings_of(subnetwork="regions/us-west4/subnetworks/gpu"),
    },
    "cost without any price": {"gpu": "h200", "max_cost_usd": 1.0},
    "cost without a price in named zones": {
        "zones": ("us-central1-a", "us-east1-c", "us-east1-b"),
        "max_cost_usd": 1.0,
    },
    "cost of less than a start": {"max_cost_usd": 0.001},
    "cost of a start and little more": {"max_cost_usd": 0.09},
}


def test_options_that_do_not_fit_are_refused_with_a_cure(golden: Golden) -> None:
    golden("plan-refusals.txt", errors_of(planned, REFUSED))


def test_bounds_are_allowed() -> None:
    assert planned(max_run_time_s=int(planned().expected_s)).notes == ()
    assert planned(max_cost_usd=0.14).request.limit_s == 600
    for options in ({"disk_gb": 50}, {"disk_gb": 65536}, {"max_run_time_s": 30}, {"max_run_time_s": 120 * 86400}):
        plan = planned(**options)
        assert {name: getattr(plan.options, name) for name in options} == options
    assert planned("a100", {"precision": "tf32"}).spec.precision == "tf32"


def test_missing_program_of_the_vm_is_an_installation_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PROGRAM_FOLDER", Path("nowhere"))
    with pytest.raises(ToolError, match=r"^this installation lacks startup\.sh$") as caught:
        planned()
    assert caught.value.hint == "install rooflaunch again"


NOTED: dict[str, dict[str, Any]] = {
    "GPUs that no device uses": {"gpu_count": 2},
    "more GPUs than devices": {"gpu": "l4", "run": {"devices": 3}},
    "run on the CPU": {"run": {"device": "cpu"}},
    "limit too short for the run": {"max_run_time_s": 300},
    "subnetwork by its name": {"settings": settings_of(subnetwork="gpu")},
    "data to be downloaded": {"run": {"dataset": "cifar10"}},
    "bf16 on a T4": {"run": {"precision": "bf16"}},
    "bf16 on an L4": {"gpu": "l4", "run": {"precision": "bf16"}},
    "bf16 on the CPU": {"run": {"precision": "bf16", "device": "cpu"}},
    "amp on a V100": {"gpu": "v100", "run": {"precision": "amp"}},
    "bf16 on a V100": {"gpu": "v100", "run": {"precision": "bf16"}},
}


def test_notes_of_a_plan(golden: Golden) -> None:
    found = []
    for name, options in NOTED.items():
        plan = planned(**options)
        shown_notes = [line for line in plan.text().splitlines() if line.startswith("note ")]
        assert [line.removeprefix("note       ") for line in shown_notes] == list(plan.notes)
        found.append("\n".join([f"## {name}", *plan.notes, ""]))
    golden("plan-notes.txt", "\n".join(found))


def test_plan_fits_its_terminal() -> None:
    lines = planned().text(90).splitlines()
    # A word that is longer stays whole: the image with its digest.
    assert [line for line in lines if len(line) > 90 and len(line.split()) > 2] == []


@pytest.mark.parametrize(
    ("network", "subnetwork", "expected"),
    [
        ("projects/host-project/global/networks/vpc", None, {"network": "projects/host-project/global/networks/vpc"}),
        (None, "gpu", {"subnetwork": "regions/us-east1/subnetworks/gpu"}),
        ("vpc", "gpu", {"network": "global/networks/vpc", "subnetwork": "regions/us-east1/subnetworks/gpu"}),
    ],
)
def test_network_of_a_request(network: str | None, subnetwork: str | None, expected: dict[str, str]) -> None:
    plan = planned(settings=replace(settings_of(), network=network, subnetwork=subnetwork), external_ip=False)
    assert plan.body("us-east1-b", request_id="")["networkInterfaces"] == [expected]


def test_times_are_utc_whatever_clock_planned_them() -> None:
    assert planned(now=NOW.astimezone(timezone(timedelta(hours=9)))) == planned()


# Machines.


@pytest.mark.parametrize(
    ("gpu", "options", "machine", "count"),
    [
        ("t4", {}, "n1-standard-4", 1),
        ("t4", {"machine_type": "n1-standard-32", "gpu_count": 2}, "n1-standard-32", 2),
        ("v100", {"machine_type": "n1-standard-16"}, "n1-standard-16", 2),
        ("l4", {"gpu_count": 2}, "g2-standard-24", 2),
        ("l4", {"machine_type": "g2-standard-48"}, "g2-standard-48", 4),
        ("a100", {"gpu_count": 3}, "a2-highgpu-4g", 4),
        ("h200", {}, "a3-ultragpu-8g", 8),
        # A GPU for each device, and as many vCPUs for each as the usual machine of one has.
        ("t4", {"run": {"devices": 2}}, "n1-standard-8", 2),
        ("t4", {"run": {"devices": 3}}, "n1-standard-16", 4),
        ("t4", {"run": {"devices": 2}, "gpu_count": 4}, "n1-standard-8", 4),
        ("t4", {"run": {"devices": 2}, "machine_type": "n1-standard-2"}, "n1-standard-2", 2),
        ("v100", {"run": {"devices": 8}}, "n1-standard-64", 8),
        ("h100", {"run": {"devices": 2}, "spot": True}, "a3-highgpu-2g", 2),
        # Devices of a CPU need vCPUs and no GPUs.
        ("t4", {"run": {"devices": 4, "device": "cpu"}}, "n1-standard-4", 1),
        ("t4", {"run": {"devices": 6, "device": "cpu"}}, "n1-standard-8", 1),
    ],
)
def test_machine_for_the_options(gpu: str, options: dict[str, Any], machine: str, count: int) -> None:
    request = planned(gpu, **options).request
    assert (request.machine_type, request.gpu_count) == (machine, count)


def test_one_device_gets_the_usual_machine() -> None:
    for name, usual in gpus.load().items():
        plan = planned(name, spot=True)
        assert (plan.machine.name, plan.request.gpu_count) == (usual.default_machine_type, plan.machine.gpus[0])


# Zones.


@pytest.mark.parametrize(
    ("zones", "fallback", "first", "count"),
    [
        ((), True, ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east1-b"], 51),
        (
            ("us-west1-b", "us-east1-c"),
            True,
            ["us-west1-b", "us-east1-c", "us-east1-b", "us-east1-d", "us-west1-a", "us-central1-a"],
            51,
        ),
        (("us-west1-b", "us-west1-b"), False, ["us-west1-b"], 1),
    ],
)
def test_order_of_the_zones(zones: tuple[str, ...], fallback: bool, first: list[str], count: int) -> None:
    plan = planned(zones=zones, fallback=fallback)
    assert list(plan.zones)[: len(first)] == first
    assert len(set(plan.zones)) == len(plan.zones) == count
    assert plan.request.zones == list(plan.zones)


def test_subnetwork_with_its_region_keeps_the_launch_there() -> None:
    plan = planned(settings=IN_WEST)
    assert plan.zones == ("us-west1-a", "us-west1-b")
    [interface] = plan.body("us-west1-a", request_id="")["networkInterfaces"]
    assert interface["subnetwork"] == "regions/us-west1/subnetworks/gpu"
    assert "network" not in interface


# Hostile text in options.

HOSTILE = {
    "command": "$(reboot)",
    "backticks": "`reboot`",
    "quotes": "a'b\"c",
    "newline": "x\nrooflaunch-driver=none",
    "unicode": "é\u2028\0\ud800",
    "4 KB": "x" * 4096,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_run_options_travel_as_data(text: str) -> None:
    """The trainer judges them; on their way they are JSON in one metadata value and nowhere else."""
    plan = planned(run={"model": text})
    items = items_of(plan)
    carrier = items.pop("rooflaunch-request")
    assert Request.from_bytes(carrier.encode()).spec["model"] == text
    assert carrier.isascii()
    assert {**plan.shown_body(), "metadata": items} == {**planned().shown_body(), "metadata": items}
    assert items == {key: value for key, value in items_of(planned()).items() if key != "rooflaunch-request"}
    assert len(plan.text().splitlines()) == len(planned(run={"model": "vgg16"}).text().splitlines())


@pytest.mark.parametrize("name", ["gpu", "zones", "machine_type", "image", "dataset"])
def test_hostile_choices_are_refused_in_one_line(name: str) -> None:
    for text in HOSTILE.values():
        options: dict[str, Any] = {name: (text,) if name == "zones" else text}
        found = errors_of(planned, {name: {"run": options} if name == "dataset" else options})
        assert shown(text) in found


# The runs of a VM.


def test_run_is_otherwise_the_one_asked_for() -> None:
    run = {
        "model": "vgg16",
        "dataset": "cifar10",
        "data_dir": "/data",
        "batch_size": "8",
        "seed": "7",
        "profile": "ncu",
    }
    plan = planned(run=run)
    asked = resolve(run, {}, None)
    assert plan.spec == replace(asked.spec, device=Device.CUDA, download=True, data_dir=RunSpec().data_dir)
    assert RunSpec.from_json(plan.request.spec) == plan.spec
    kept = {name: "option" for name in run if name != "data_dir"}
    assert plan.request.spec_origin == kept


def a_task(**spec: Any) -> Task:
    runs = [(block, position) for block in (1, 2) for position in (1, 2)]
    specs = {1: RunSpec(model="resnet18", **spec), 2: RunSpec(model="resnet50", batch_size=64, **spec)}
    return Task(job="night", runs=tuple(TaskRun(spec=specs[at], block=block, position=at) for block, at in runs))


def of_task(*specs: RunSpec) -> VmPlan:
    return planned(task=Task(job="night", runs=tuple(TaskRun(spec=spec, position=2) for spec in specs)))


def test_task_of_a_sweep_travels_with_the_request_as_a_vm_does_it() -> None:
    plan = planned(run={"dataset": "cifar10"}, task=a_task(dataset="cifar10", data_dir="/home/me/data"))
    work = Request.from_bytes(plan.metadata()["rooflaunch-request"].encode()).work
    runs = [(run.spec.model, run.spec.batch_size, run.block) for run in work.runs]
    assert runs == [("resnet18", None, 1), ("resnet50", 64, 1), ("resnet18", None, 2), ("resnet50", 64, 2)]
    assert {(run.spec.device, run.spec.download, run.spec.data_dir) for run in work.runs} == {
        (Device.CUDA, True, RunSpec().data_dir)
    }
    assert plan.text().splitlines()[0] == "plan       4 runs in 2 blocks, task 1 of 'night', each in its own process"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (RunSpec(precision=Precision.TF32), "precision tf32 needs compute capability 8.0 or newer; a T4 16 GB has 7.5"),
        (RunSpec(dataset="photos"), "a VM cannot read the folder 'photos' of this machine"),
        (RunSpec(subset=8), "synthetic data has no subset; got --subset 8"),
    ],
)
def test_every_run_of_a_task_must_be_one_for_a_vm(spec: RunSpec, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        of_task(RunSpec(), spec)
    assert str(caught.value) == f"run 2 of 2 runs in 1 block, task 1 of 'night': {why}"
    assert caught.value.hint


def test_driver_flavour_and_notes_of_a_task_are_those_of_all_runs() -> None:
    on_cpu = RunSpec(device=Device.CPU)
    plan = of_task(on_cpu, RunSpec(precision=Precision.BF16), RunSpec(dataset="cifar10"))
    assert (plan.driver, plan.request.options["flavour"]) == (Driver.PREINSTALLED, "cuda")
    assert plan.notes[0] == "the VM downloads cifar10, because it starts without data"
    assert any(note.startswith("the T4 16 GB has no bf16 units") for note in plan.notes)
    assert (of_task(on_cpu).driver, of_task(on_cpu).request.options["flavour"]) == (Driver.NONE, "cpu")


def test_task_takes_as_long_as_its_runs_and_their_profiles() -> None:
    assert planned(task=a_task()).run_s == pytest.approx(4 * planned(run={"model": "resnet18"}).run_s)
    profiled = planned(run={"profile": "torch"}).run_s
    assert planned(task=a_task(profile=Profile.TORCH)).run_s == pytest.approx(4 * profiled)


def test_request_that_metadata_cannot_hold_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^the request has 25\d{4} bytes; a VM's metadata takes 250000$") as caught:
        planned(run={"model": "x" * 250_000})
    assert caught.value.hint == "shorter values for --model and the other run options"
    runs = tuple(TaskRun(spec=RunSpec(), block=block, run_key=f"{block:016x}") for block in range(3000))
    told = r"^the request for 3000 runs in 3000 blocks, task 1 of 'night' has \d+ bytes; a VM's metadata takes 250000$"
    with pytest.raises(UsageError, match=told) as caught:
        planned(task=Task(job="night", runs=runs))
    assert caught.value.hint == "more machines, which share the runs"
