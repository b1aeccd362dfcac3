import json
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from fake_docker import FakeDocker

from launcher import docker_engine, doctor
from launcher.backends import BACKENDS
from launcher.images import contents
from launcher.machine import containers
from launcher.protocol.backend import Check
from launcher.protocol.backend import Health as State
from launcher.values import HERE, DoctorPart
from tests.launcher.told import Golden
from workload.contract.errors import ExitCode, ToolError
from workload.environment import machine

QUERY = "nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader"
DCGM = "pgrep -x nv-hostengine"
L4 = "NVIDIA L4, 8.9, 580.95.05, 23034 MiB\n"
Launch = Callable[..., int]
LayOut = Callable[..., Any]


@pytest.fixture
def lay_out(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> LayOut:
    """The doctor of a machine with an engine, an L4 and ncu, unless said otherwise; it may ask no other tools."""

    def build(
        *,
        smi: str | None = L4,
        dcgm: str | None = None,
        ncu: str | None = "/opt/ncu",
        restricted: bool = False,
        service: machine.Service | None = None,
        **how: Any,
    ) -> Any:
        tools: Mapping[str, str | None] = {
            QUERY: smi,
            DCGM: dcgm,
            "/opt/ncu --version": "NVIDIA (R) Nsight Compute\nVersion 2026.3.1.2 (build 1)\n",
            "/opt/old --version": "Nsight\n",
        }
        info = {"gpus": True, "NCPU": 2, "MemTotal": 8_300_000_000, "DockerRootDir": "/var/lib/docker"}
        monkeypatch.setattr(doctor, "run_tool", lambda *command, **_: tools[" ".join(command)])
        monkeypatch.setattr(docker_engine, "connect", lambda: docker.engine(**info | how))
        monkeypatch.setattr(containers, "counters_restricted", lambda: restricted)
        monkeypatch.setattr(doctor, "installed_ncus", lambda _: filter(None, [ncu]))
        monkeypatch.setattr(doctor, "hosting_service", lambda: service)
        return doctor

    return build


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Free bytes where images are kept; None: not on this machine."""
    disk = SimpleNamespace(free=50_000_000_000)

    def usage(path: str) -> SimpleNamespace:
        if disk.free is None:
            raise FileNotFoundError(path)
        return disk

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return disk


COLAB = next(service for service in machine.SERVICES if service.name == "Colab")
T4 = "Tesla T4, 7.5, 550.54.15, 15360 MiB\n"
VOLTA = "Tesla V100-SXM2-16GB, 7.0, 595.71.05, 16384 MiB\n"
# The GPU with this index does not tell its compute capability.
BROKEN = "NVIDIA L4, [N/A], 580.95.05, 23034 MiB\n"
# What is laid out besides the usual machine.
GPU_MACHINES: dict[str, dict[str, Any]] = {
    "sound": {},
    # Its driver belongs to the service, and no image runs there: what these would need is not asked for.
    "notebook on a hosted machine": {
        "smi": "Tesla T4, 7.5, 550.54.15, 15360 MiB\n",
        "restricted": True,
        "service": COLAB,
    },
    **{f"no GPU on {service.name}": {"smi": None, "service": service} for service in machine.SERVICES},
    "restricted counters": {"restricted": True},
    "DCGM": {"dcgm": "812\n"},
    "no ncu": {"ncu": None},
    "broken ncu": {"ncu": "/opt/old"},
    "two GPUs and a broken one": {"smi": f"{L4}{BROKEN}{L4}"},
    "two kinds of GPUs": {"smi": f"NVIDIA L4, 8.9, 595.71.05, 23034 MiB\n{VOLTA}{VOLTA}"},
    "a warning before the GPU": {"smi": f"\nWarning: something\n{L4}\n"},
    "a broken GPU": {"smi": BROKEN},
    "no devices": {"smi": "No devices were found\n"},
    "silent nvidia-smi": {"smi": ""},
    # As text 1000 would come before 580.
    **{
        f"{capability} with driver {driver}": {"smi": f"A GPU, {capability}, {driver}, 1 MiB\n"}
        for capability, driver in (
            *(("8.9", "580.65.05"), ("8.9", "1000.1"), ("7.0", "525.60.13"), ("7.0", "581.15"), ("6.1", "580.65.06")),
            ("5.2", "580.65.06"),
        )
    },
}
ENGINES: dict[str, dict[str, Any]] = {
    "sound, without an image": {},
    "the oldest": {"version": "20.10.24+dfsg1"},
    "too old": {"version": "20.9.1"},
    "rootless": {"SecurityOptions": ["name=rootless"]},
    "no GPUs for containers": {"gpus": False},
    "no GPUs for containers and none here": {"gpus": False, "smi": None},
    "hardly enough space": {"free": 14_000_000_000},
    "too little space": {"free": 13_900_000_000},
    "unknown space": {"free": None},
}


def test_gpus_of_a_machine(golden: Golden, lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {name: lay_out(**laid).examine([DoctorPart.GPU]) for name, laid in GPU_MACHINES.items()}
    for system in ("Linux", "Darwin"):
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        texts[f"no GPU on {system}"] = lay_out(smi=None).examine([DoctorPart.GPU])
    not_named = texts["no GPU, and none was asked for"] = lay_out(smi=None).examine([DoctorPart.GPU], named=False)
    golden("doctor_gpu.txt", rendered(texts))
    assert doctor.exit_code(not_named) == ExitCode.DONE


def test_engine_of_a_machine(
    golden: Golden, docker: FakeDocker, disk: SimpleNamespace, lay_out: LayOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = replace(contents.load_flavours()["cpu"], digest="", base="BASE")
    monkeypatch.setattr(contents, "load_flavours", lambda: {"cpu": cpu})
    texts = {}
    for name, laid in ENGINES.items():
        how = dict(laid)
        disk.free = how.pop("free", 50_000_000_000)
        texts[name] = lay_out(**how).examine([DoctorPart.DOCKER])
    for labels in ({"rooflaunch.run": "0.1"}, {"rooflaunch.run": "0.1"}, {}):
        docker.containers.create(labels=labels)
    texts["containers were left behind"] = lay_out().examine([DoctorPart.DOCKER])
    labels = {"rooflaunch.flavour": "cpu", "rooflaunch.inputs": contents.make_recipe(cpu).inputs_hash}
    docker.hold("sha256:ab", "rooflaunch:cpu", "rooflaunch:cpu-01", labels={**labels, "rooflaunch.base": "unpinned"})
    texts["an image"] = lay_out().examine([DoctorPart.DOCKER])
    golden("doctor_docker.txt", rendered(texts))


def rendered(texts: Mapping[str, Sequence[Check]]) -> str:
    return "\n".join(f"## {name}\n{doctor.render(checks)}\n" for name, checks in texts.items())


def test_a_backend_is_looked_at_when_named(lay_out: LayOut) -> None:
    cloud = Check(part="gcp", name="project", state=State.OK, found="given")
    asked: list[str] = []

    def checks_of(name: str) -> list[Check]:
        asked.append(name)
        return [cloud]

    assert lay_out().examine(["gcp"], checks_of=checks_of) == [cloud]
    assert asked == ["gcp"]
    assert not set(HERE) & set(BACKENDS), "without a part named the network is not needed"


def test_no_engine_ends_its_part(lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_engine() -> NoReturn:
        raise ToolError("no Docker engine answers: permission denied", hint="log in again")

    lay_out()
    monkeypatch.setattr(docker_engine, "connect", no_engine)
    checks = doctor.examine([DoctorPart.DOCKER, DoctorPart.GPU, DoctorPart.DOCKER])
    assert doctor.render(checks[:1]).splitlines() == [
        "problem  engine  no Docker engine answers: permission denied",
        "                 -> log in again",
    ]
    parts = [check.part for check in checks]
    assert parts == [DoctorPart.DOCKER, *[DoctorPart.GPU] * 5], "a part that is named twice is one"


def test_command(lay_out: LayOut, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out()
    assert launch("doctor", "gpu") == 0
    assert capsys.readouterr().out.startswith("ok       GPU 0     NVIDIA L4, compute capability 8.9, 23034 MiB\n")
    lay_out(dcgm="812\n", ncu="/opt/old")
    assert launch("doctor", "gpu", "--format", "json") == 4
    told = json.loads(capsys.readouterr().out)
    assert [check["state"] for check in told] == ["ok", "ok", "ok", "note", "problem"]
    assert told[0] == {
        "part": "gpu",
        "name": "GPU 0",
        "state": "ok",
        "found": "NVIDIA L4, compute capability 8.9, 23034 MiB",
        "cure": "",
    }
    assert launch("doctor") == 4
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {"ok", "note", "problem", "->"}
    assert launch("doctor", "cloud") == 2
