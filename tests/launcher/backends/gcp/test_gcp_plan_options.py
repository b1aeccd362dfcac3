"""The machine, limits and runs that a plan takes, and those that it refuses."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.launcher.backends.gcp.gcp_plans import planned, refused
from workload.contract.spec import Device, RunSpec, resolve

pytestmark = pytest.mark.usefixtures("made_up_programs")


@pytest.mark.parametrize(
    ("gpu", "machine_type", "gpu_count", "expected"),
    [
        ("t4", None, 1, ("n1-standard-4", 1)),
        ("t4", "n1-standard-32", 2, ("n1-standard-32", 2)),
        ("v100", "n1-standard-16", 1, ("n1-standard-16", 2)),
        ("l4", None, 2, ("g2-standard-24", 2)),
        ("l4", "g2-standard-48", 1, ("g2-standard-48", 4)),
        ("a100", None, 3, ("a2-highgpu-4g", 4)),
        ("h200", None, 1, ("a3-ultragpu-8g", 8)),
    ],
)
def test_machine(gpu: str, machine_type: str | None, gpu_count: int, expected: tuple[str, int]) -> None:
    plan = planned(gpu, machine_type=machine_type, gpu_count=gpu_count)
    assert (plan.request.machine_type, plan.request.gpu_count) == expected


@pytest.mark.parametrize(
    ("gpu", "devices", "options", "expected"),
    [
        ("t4", 2, {}, ("n1-standard-8", 2)),
        ("t4", 3, {}, ("n1-standard-16", 4)),
        ("t4", 2, {"gpu_count": 4}, ("n1-standard-8", 4)),
        ("t4", 2, {"machine_type": "n1-standard-2"}, ("n1-standard-2", 2)),
        ("v100", 8, {}, ("n1-standard-64", 8)),
        ("l4", 8, {}, ("g2-standard-96", 8)),
        ("h100", 2, {"spot": True}, ("a3-highgpu-2g", 2)),
    ],
)
def test_a_machine_for_several_devices(
    gpu: str, devices: int, options: dict[str, Any], expected: tuple[str, int]
) -> None:
    """A GPU for each, and as many vCPUs for each as the usual machine of one has."""
    plan = planned(gpu, {"devices": devices}, **options)
    assert (plan.request.machine_type, plan.request.gpu_count) == expected


def test_devices_of_a_cpu_need_vcpus_and_no_gpus() -> None:
    small, large = (planned("t4", {"devices": devices, "device": "cpu"}).request for devices in (4, 6))
    assert (small.machine_type, small.gpu_count) == ("n1-standard-4", 1)
    assert (large.machine_type, large.gpu_count) == ("n1-standard-8", 1)


A2 = "a2-highgpu-1g, a2-highgpu-2g, a2-highgpu-4g, a2-highgpu-8g"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            {"gpu": "l4", "machine_type": "g2-standard-4", "gpu_count": 2},
            "g2-standard-4 has at most 1 GPU and 4 vCPUs; got --gpu-count 2",
            "--machine-type g2-standard-24",
        ),
        (
            {"gpu": "l4", "machine_type": "g2-standard-12", "run": {"devices": 2}},
            "g2-standard-12 has at most 1 GPU and 12 vCPUs; got --devices 2",
            "--machine-type g2-standard-24",
        ),
        (
            {"gpu": "a100", "gpu_count": 9},
            "a VM has 1, 2, 4, 8 GPUs of A100 40 GB, and up to 96 vCPUs; got --gpu-count 9",
            "--gpu-count 8",
        ),
        (
            {"run": {"devices": 97, "device": "cpu"}},
            "a VM has 1, 2, 4 GPUs of T4 16 GB, and up to 96 vCPUs; got --devices 97",
            "--devices 96",
        ),
        (
            {"gpu": "h100"},
            "a3-highgpu-1g is not sold on demand, only as spot, flex-start or by reservation",
            "--spot or --machine-type a3-highgpu-8g",
        ),
        (
            {"gpu": "a100", "machine_type": "n1-standard-8"},
            f"machine type for a100 must be one of {A2}; got 'n1-standard-8'",
            "--machine-type a2-highgpu-1g",
        ),
        ({"disk_gb": 49}, "--disk-gb must be 50 to 65536, for two images and data; got '49'", "--disk-gb 100"),
        ({"disk_gb": 65537}, "--disk-gb must be 50 to 65536, for two images and data; got '65537'", "--disk-gb 100"),
        ({"max_run_time_s": 29}, "--max-run-time must be 30 s to 120 d; got '29 s'", "--max-run-time 60m"),
        ({"max_cost_usd": math.nan}, "--max-cost must be a positive sum in USD; got 'nan'", "--max-cost 1.50"),
        ({"usd_per_h": math.inf}, "--usd-per-h must be a positive sum in USD; got 'inf'", "--usd-per-h 1.50"),
        (
            {"rerun_preempted": -1, "spot": True},
            "--rerun-preempted is only for spot VMs, because only these are preempted; got '-1'",
            "--spot --rerun-preempted 2",
        ),
    ],
)
def test_refused(options: dict[str, Any], message: str, hint: str) -> None:
    assert refused(**options) == (message, hint)


def test_bounds_are_allowed() -> None:
    assert planned(max_run_time_s=int(planned().expected_s)).notes == ()
    for options in ({"disk_gb": 50}, {"disk_gb": 65536}, {"max_run_time_s": 30}, {"max_run_time_s": 120 * 86400}):
        plan = planned(**options)
        assert {name: getattr(plan.options, name) for name in options} == options


@pytest.mark.parametrize(
    ("run", "message", "hint"),
    [
        ({"device": "mps"}, "a VM has no Apple GPU; got --mps", "leave --mps out"),
        (
            {"compile": True},
            "--compile needs a C++ compiler, which the images do not contain; a VM runs one of these images",
            "leave --compile out",
        ),
        (
            {"dataset": "~/photos"},
            "a VM cannot read the folder '~/photos' of this machine",
            "--dataset synthetic, or --dataset imagenette --download",
        ),
        (
            {"precision": "tf32"},
            "precision tf32 needs compute capability 8.0 or newer; a T4 16 GB has 7.5",
            "--precision fp32, or --precision amp",
        ),
    ],
)
def test_runs_that_a_vm_cannot_do(run: dict[str, object], message: str, hint: str) -> None:
    assert refused(run=run) == (message, hint)


def test_tf32_where_the_gpu_has_it() -> None:
    assert planned("a100", {"precision": "tf32"}).spec.precision == "tf32"


def test_the_run_is_otherwise_the_one_asked_for() -> None:
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
