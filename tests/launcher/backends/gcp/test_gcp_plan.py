"""Plans of `launch gcp`: text and request compared with the files in plans/, zones, tasks, and hostile options."""

import json
import re
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.gcp import gpus
from launcher.backends.gcp import plan as planning
from launcher.backends.gcp.gpus import Driver
from launcher.backends.gcp.plan import Options, VmPlan, make_plan
from launcher.protocol.records import NAME, Request, Task, TaskRun
from launcher.values import shown
from tests.launcher.backends.gcp.gcp_plans import GOLDEN, IMAGE, NOW, lines_of, planned, refused, settings_of
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, Precision, Profile, RunSpec, resolve

pytestmark = pytest.mark.usefixtures("made_up_programs")

PLANS = Path(__file__).with_name("plans")
LABEL_KEY, LABEL_VALUE = re.compile(r"[a-z][_\-a-z0-9]{0,62}"), re.compile(r"[_\-a-z0-9]{0,63}")


def items_of(plan: VmPlan) -> dict[str, str]:
    return {item["key"]: item["value"] for item in plan.shown_body()["metadata"]["items"]}


# The whole plan.


def check_committed(name: str, found: str) -> None:
    """Compare with a file. To change a plan on purpose, delete its file, run the test, and read the difference."""
    path = PLANS / name
    if not path.exists():
        path.write_text(found, encoding="utf-8")
        pytest.fail(f"{path} is new: read it")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GOLDEN)
def test_the_plan_is_the_committed_one(name: str) -> None:
    plan = planned(**GOLDEN[name])
    check_committed(f"{name}.txt", f"{plan.text()}\n\n{plan.sent_text()}\n")


def test_the_plan_as_json_is_the_committed_one() -> None:
    plan = planned(**GOLDEN["t4-everything"])
    values = plan.to_json()
    assert values.pop("insert") == plan.shown_body()
    values["rooflaunch-request"] = json.loads(items_of(plan)["rooflaunch-request"])
    check_committed("t4-everything.json", json.dumps(values, indent=1) + "\n")


def test_no_other_plan_is_committed() -> None:
    assert {path.stem for path in PLANS.iterdir()} == set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_names_labels_and_metadata_are_as_google_demands(name: str) -> None:
    plan = planned(**GOLDEN[name])
    body = plan.body(plan.zones[-1], request_id="0" * 32)
    assert NAME.fullmatch(body["name"])
    for labels in (body["labels"], body["disks"][0]["initializeParams"]["labels"]):
        assert all(LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value) for key, value in labels.items())
    assert Request.from_bytes(items_of(plan)["rooflaunch-request"].encode()) == plan.request
    assert sum(len(key) + len(value) for key, value in items_of(plan).items()) < 256_000


@pytest.mark.parametrize(
    ("network", "subnetwork", "expected"),
    [
        ("vpc", None, {"network": "global/networks/vpc"}),
        ("projects/host-project/global/networks/vpc", None, {"network": "projects/host-project/global/networks/vpc"}),
        (None, "gpu", {"subnetwork": "regions/us-east1/subnetworks/gpu"}),
        ("vpc", "gpu", {"network": "global/networks/vpc", "subnetwork": "regions/us-east1/subnetworks/gpu"}),
    ],
)
def test_network(network: str | None, subnetwork: str | None, expected: dict[str, str]) -> None:
    plan = planned(settings=replace(settings_of(), network=network, subnetwork=subnetwork), external_ip=False)
    assert plan.body("us-east1-b", request_id="")["networkInterfaces"] == [expected]


def test_times_are_utc_whatever_clock_planned_them() -> None:
    assert planned(now=NOW.astimezone(timezone(timedelta(hours=9)))) == planned()


def test_an_installation_without_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PROGRAM_FOLDER", Path("nowhere"))
    assert refused(ToolError) == ("this installation lacks startup.sh", "install rooflaunch again")


# Text.


@pytest.mark.parametrize(("gpu", "warned"), [("t4", True), ("v100", True), ("l4", False), ("a100", False)])
def test_bf16_without_units_for_it_is_noted(gpu: str, warned: bool) -> None:
    note = "has no bf16 units"
    assert any(note in line for line in planned(gpu, run={"precision": "bf16"}).notes) == warned
    assert not any(note in line for line in planned(gpu, run={"precision": "amp"}).notes)
    assert not any(note in line for line in planned(gpu, run={"precision": "bf16", "device": "cpu"}).notes)


def test_the_plan_fits_its_terminal() -> None:
    lines = planned().text(90).splitlines()
    # A word that is longer stays whole: the image with its digest.
    assert [line for line in lines if len(line) > 90 and len(line.split()) > 2] == []


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"gpu_count": 2}, "a run computes on one GPU of the VM's 2; the price is that of the whole VM"),
        (
            {"gpu": "l4", "run": {"devices": 3}},
            "a run computes on at most 3 GPUs of the VM's 4; the price is that of the whole VM",
        ),
        ({"run": {"device": "cpu"}}, "the run computes on the VM's CPU, but its T4 16 GB must be paid too"),
        ({"max_run_time_s": 300}, "the run may take longer than the limit of 300 s: --max-run-time"),
        (
            {"settings": settings_of(subnetwork="gpu")},
            "every region needs a subnetwork 'gpu'; name it with its region to use only that region",
        ),
        ({"run": {"dataset": "cifar10"}}, "the VM downloads cifar10, because it starts without data"),
    ],
)
def test_notes(options: dict[str, Any], note: str) -> None:
    plan = planned(**options)
    assert plan.notes == (note,)
    assert lines_of(plan)[-1] == f"note       {note}"


# Zones.


def test_a_zone_without_the_gpu_names_those_with_it() -> None:
    those = "us-central1-a,b,c,f us-east1-b,c us-west1-a,b europe-west4-a,b,c asia-east1-c"
    assert refused(gpu="v100", zones=("us-east1-d",)) == (
        f"no V100 16 GB in zone 'us-east1-d'; the zones with one: {those}",
        "--zone us-east1-c",
    )
    assert refused(gpu="v100", zones=("here",))[1] == "--zone us-central1-a"


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


def test_fallback_needs_a_named_zone_to_be_switched_off() -> None:
    assert refused(fallback=False) == (
        "--no-fallback allows only the zones that are named with --zone, but none is named",
        "--zone us-central1-a --no-fallback",
    )


def test_a_subnetwork_with_its_region_keeps_the_launch_there() -> None:
    there = settings_of(subnetwork="regions/us-west1/subnetworks/gpu")
    plan = planned(settings=there)
    assert plan.zones == ("us-west1-a", "us-west1-b")
    [interface] = plan.body("us-west1-a", request_id="")["networkInterfaces"]
    assert interface["subnetwork"] == "regions/us-west1/subnetworks/gpu"
    assert "network" not in interface
    assert refused(settings=there, zones=("us-central1-a",)) == (
        "zone 'us-central1-a' is not in the region of subnetwork 'regions/us-west1/subnetworks/gpu'",
        "--zone us-west1-a",
    )
    nowhere = settings_of(subnetwork="regions/us-west4/subnetworks/gpu")
    assert refused(gpu="v100", settings=nowhere)[0].startswith(
        "no V100 16 GB in the region of subnetwork 'regions/us-west4/subnetworks/gpu'; the zones with one: us-central1"
    )


# Hostile text in options.

HOSTILE = ["$(reboot)", "`reboot`", "a'b\"c", "x\nrooflaunch-driver=none", "; rm -rf /", "é\u2028\0\ud800", "x" * 4096]
HOSTILE_IDS = ["command", "backticks", "quotes", "newline", "semicolon", "unicode", "4 KB"]


@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE_IDS)
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


@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE_IDS)
@pytest.mark.parametrize("name", ["gpu", "zones", "machine_type", "image", "dataset"])
def test_hostile_choices_are_refused_in_one_line(name: str, text: str) -> None:
    options: dict[str, Any] = {name: (text,) if name == "zones" else text}
    message, _ = refused(**({"run": options} if name == "dataset" else options))
    assert shown(text) in message
    assert message.isprintable()
    assert len(message) < 1000


def test_a_request_too_large_for_metadata() -> None:
    message, hint = refused(run={"model": "x" * 250_000})
    assert re.fullmatch(r"the request has 25\d{4} bytes; a VM's metadata takes 250000", message)
    assert hint == "shorter values for --model and the other run options"


# Tasks of a sweep, which have several runs.


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
    runs = [(run.spec.model, run.spec.batch_size, run.block) for run in work.runs]
    assert runs == [("resnet18", None, 1), ("resnet50", 64, 1), ("resnet18", None, 2), ("resnet50", 64, 2)]
    assert {(run.spec.device, run.spec.download, run.spec.data_dir) for run in work.runs} == {
        (Device.CUDA, True, RunSpec().data_dir)
    }
    assert plan.text().splitlines()[0] == "plan       4 runs in 2 blocks, task 1 of 'night', each in its own process"


# Options of the last run of a task, and why the whole task is refused.
NOT_FOR_A_VM: list[tuple[RunSpec, str]] = [
    (RunSpec(precision=Precision.TF32), "precision tf32 needs compute capability 8.0 or newer; a T4 16 GB has 7.5"),
    (RunSpec(dataset="photos"), "a VM cannot read the folder 'photos' of this machine"),
    (RunSpec(subset=8), "synthetic data has no subset; got --subset 8"),
]


@pytest.mark.parametrize(("spec", "why"), NOT_FOR_A_VM)
def test_every_run_of_a_task_must_be_one_for_a_vm(spec: RunSpec, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        of_task(Task(job="night", runs=(TaskRun(spec=RunSpec()), TaskRun(spec=spec, position=2))))
    assert str(caught.value) == f"run 2 of 2 runs in 1 block, task 1 of 'night': {why}"
    assert caught.value.hint


def test_what_a_vm_needs_and_its_user_should_know_is_that_of_all_runs() -> None:
    runs = [RunSpec(device=Device.CPU), RunSpec(precision=Precision.BF16), RunSpec(dataset="cifar10")]
    plan = of_task(Task(job="night", runs=tuple(TaskRun(spec=spec) for spec in runs)))
    assert (plan.driver, plan.request.options["flavour"]) == (Driver.PREINSTALLED, "cuda")
    assert plan.notes[0] == "the VM downloads cifar10, because it starts without data"
    assert any(note.startswith("the T4 16 GB has no bf16 units") for note in plan.notes)
    on_cpu = of_task(Task(job="night", runs=(TaskRun(spec=runs[0]),)))
    assert (on_cpu.driver, on_cpu.request.options["flavour"]) == (Driver.NONE, "cpu")


def test_a_task_takes_as_long_as_its_runs_and_their_profiles() -> None:
    assert of_task(a_task()).run_s == pytest.approx(4 * planned(run={"model": "resnet18"}).run_s)
    profiled = planned(run={"profile": "torch"}).run_s
    assert of_task(a_task(profile=Profile.TORCH)).run_s == pytest.approx(4 * profiled)


def test_a_task_that_metadata_cannot_hold_is_refused() -> None:
    runs = tuple(TaskRun(spec=RunSpec(), block=block, run_key=f"{block:016x}") for block in range(3000))
    with pytest.raises(UsageError, match="a VM's metadata takes 250000") as caught:
        of_task(Task(job="night", runs=runs))
    assert str(caught.value).startswith("the request for 3000 runs in 3000 blocks, task 1 of 'night' has ")
    assert caught.value.hint == "more machines, which share the runs"


def test_one_device_gets_the_usual_machine() -> None:
    for name, usual in gpus.load().items():
        plan = planned(name, spot=True)
        assert (plan.machine.name, plan.request.gpu_count) == (usual.default_machine_type, plan.machine.gpus[0])
