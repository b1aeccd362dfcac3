import json
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
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
from workload.contract.errors import ExitCode, ToolError
from workload.environment import machine

QUERY = "nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader"
DCGM = "pgrep -x nv-hostengine"
L4 = "NVIDIA L4, 8.9, 580.95.05, 23034 MiB\n"
TOOLKIT = "install the NVIDIA Container Toolkit: docs.nvidia.com/datacenter/cloud-native/container-toolkit"
UNLOCK = (
    "write 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' to a file in /etc/modprobe.d/, then reboot; "
    "or --runtime docker, which asks for CAP_SYS_ADMIN in the profile pass alone"
)

Launch = Callable[..., int]
LayOut = Callable[..., Any]
Row = tuple[str, str, str, str]


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
        monkeypatch.setattr(doctor, "run_tool", lambda command: tools[" ".join(command)])
        monkeypatch.setattr(docker_engine, "connect", lambda: docker.engine(**info | how))
        monkeypatch.setattr(containers, "counters_restricted", lambda: restricted)
        monkeypatch.setattr(doctor, "find_ncu", lambda: ncu)
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


def rows(checks: Sequence[Check]) -> list[Row]:
    return [(check.name, check.state.value, check.found, check.cure) for check in checks]


def row_of(checks: Sequence[Check], name: str) -> Row:
    (row,) = (row for row in rows(checks) if row[0] == name)
    return row


def test_sound_gpu_machine(lay_out: LayOut) -> None:
    driver = contents.load_flavours()["cuda"].driver
    assert rows(lay_out().examine([DoctorPart.GPU])) == [
        ("GPU 0", "ok", "NVIDIA L4, compute capability 8.9, 23034 MiB", ""),
        ("driver", "ok", f"580.95.05; flavour cuda needs {driver}", ""),
        ("counters", "ok", "open to every user", ""),
        ("DCGM", "ok", "is not running", ""),
        ("ncu", "ok", "2026.3.1.2 (/opt/ncu)", ""),
    ]


def test_a_notebook_on_a_hosted_machine(lay_out: LayOut) -> None:
    """Its driver belongs to the service, and no image runs there: what these would need is not asked for."""
    [colab] = [service for service in machine.SERVICES if service.name == "Colab"]
    t4 = "Tesla T4, 7.5, 550.54.15, 15360 MiB\n"
    assert rows(lay_out(smi=t4, restricted=True, service=colab).examine([DoctorPart.GPU]))[:-2] == [
        ("GPU 0", "ok", "Tesla T4, compute capability 7.5, 15360 MiB", ""),
        ("driver", "ok", "550.54.15", ""),
        ("clocks", "note", "cannot be fixed on Colab", "nothing: each run records its clocks"),
        ("counters", "note", "for administrators only (RmProfilingAdminOnly: 1)", machine.WITHOUT_COUNTERS),
    ]


@pytest.mark.parametrize("service", machine.SERVICES, ids=lambda service: service.name)
def test_a_notebook_without_a_gpu(lay_out: LayOut, service: machine.Service) -> None:
    assert rows(lay_out(smi=None, service=service).examine([DoctorPart.GPU])) == [
        ("driver", "problem", "nvidia-smi shows no GPU", f"{service.gpu}; --cpu needs none")
    ]


def test_sound_engine(docker: FakeDocker, lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = contents.load_flavours()["cpu"]
    monkeypatch.setattr(contents, "load_flavours", lambda: {"cpu": cpu})
    inputs = contents.make_recipe(cpu).inputs_hash
    labels = {"rooflaunch.flavour": "cpu", "rooflaunch.inputs": inputs, "rooflaunch.base": "unpinned"}
    docker.hold("sha256:ab", "rooflaunch:cpu", "rooflaunch:cpu-0123456789ab", labels=labels)
    assert rows(lay_out().examine([DoctorPart.DOCKER])) == [
        ("engine", "ok", "Docker 28.2.2; 2 CPUs, 8.3 GB of memory", ""),
        ("GPUs", "ok", "containers can use NVIDIA GPUs", ""),
        ("disk", "ok", "50.0 GB free in /var/lib/docker", ""),
        ("image cpu", "ok", "rooflaunch:cpu-0123456789ab; the base has no digest", ""),
        *(
            []
            if cpu.digest
            else [("base of cpu", "note", f"{cpu.base} has no digest", "launch build --flavour cpu --pin")]
        ),
        ("containers", "ok", "none left over", ""),
    ]


@pytest.mark.parametrize(
    ("machine", "row"),
    [
        ({"restricted": True}, ("counters", "note", "for administrators only (RmProfilingAdminOnly: 1)", UNLOCK)),
        (
            {"dcgm": "812\n"},
            (
                "DCGM",
                "note",
                "nv-hostengine is running and may block the counters",
                "while --profile ncu runs: sudo systemctl stop nvidia-dcgm, or dcgmi profile --pause",
            ),
        ),
        (
            {"ncu": None},
            (
                "ncu",
                "note",
                "not on this machine",
                "install Nsight Compute, or --runtime docker: flavours cuda and volta contain it",
            ),
        ),
        ({"ncu": "/opt/old"}, ("ncu", "problem", "/opt/old does not tell its version", "install Nsight Compute again")),
    ],
)
def test_gpu_machine_with_something_amiss(machine: dict[str, Any], row: Row, lay_out: LayOut) -> None:
    assert row_of(lay_out(**machine).examine([DoctorPart.GPU]), row[0]) == row


@pytest.mark.parametrize(
    ("capability", "driver", "state", "found", "cure"),
    [
        ("8.9", "580.65.05", "problem", "580.65.05; flavour cuda needs 580.65.06", "install driver 580.65.06 or newer"),
        # As text 1000 would come before 580.
        ("8.9", "1000.1", "ok", "1000.1; flavour cuda needs 580.65.06", ""),
        ("7.0", "525.60.13", "ok", "525.60.13; flavour volta needs 525.60.13", ""),
        ("7.0", "581.15", "problem", "581.15; flavour volta needs 525.60.13, below 581", "install driver branch 580"),
        ("6.1", "580.65.06", "ok", "580.65.06; flavour volta needs 525.60.13", ""),
        (
            "5.2",
            "580.65.06",
            "problem",
            "A GPU has compute capability 5.2: no image flavour has code for it",
            "--runtime process with a torch build that supports the GPU",
        ),
    ],
)
def test_driver_against_the_images(
    capability: str, driver: str, state: str, found: str, cure: str, lay_out: LayOut
) -> None:
    checks = lay_out(smi=f"A GPU, {capability}, {driver}, 1 MiB\n").examine([DoctorPart.GPU])
    assert row_of(checks, "driver") == ("driver", state, found, cure)


@pytest.mark.parametrize(
    ("printed", "names"),
    [
        (f"{L4}Tesla V100-SXM2-16GB, 7.0, 580.95.05, 16384 MiB\n", ["NVIDIA L4", "Tesla V100-SXM2-16GB"]),
        (f"\n{L4}\n", ["NVIDIA L4"]),
        (f"Warning: something\n{L4}", ["NVIDIA L4"]),
        ("NVIDIA L4, [N/A], 580.95.05, 23034 MiB\n", []),
        ("No devices were found\n", []),
        ("", []),
        (None, []),
    ],
)
def test_gpus_that_nvidia_smi_shows(printed: str | None, names: list[str], lay_out: LayOut) -> None:
    checks = lay_out(smi=printed).examine([DoctorPart.GPU])
    found = [check.found.partition(",")[0] for check in checks if check.name.startswith("GPU")]
    assert found == names
    assert any(check.found == "nvidia-smi shows no GPU" for check in checks) is (names == [])


def test_several_gpus_are_listed_by_the_index_that_chooses_one(lay_out: LayOut) -> None:
    # The GPU with index 1 does not tell its compute capability.
    broken = "NVIDIA L4, [N/A], 580.95.05, 23034 MiB\n"
    checks = lay_out(smi=f"{L4}{broken}{L4}").examine([DoctorPart.GPU])
    assert [check.name for check in checks][:3] == ["GPU 0", "GPU 2", "choice"]
    found = "2 GPUs: a run uses one of them, the fastest if none is chosen"
    assert row_of(checks, "choice") == ("choice", "note", found, "launch local --gpu-index 1")


def test_each_kind_of_gpu_asks_for_its_driver(lay_out: LayOut) -> None:
    volta = "Tesla V100-SXM2-16GB, 7.0, 595.71.05, 16384 MiB\n"
    checks = lay_out(smi=f"NVIDIA L4, 8.9, 595.71.05, 23034 MiB\n{volta}{volta}").examine([DoctorPart.GPU])
    assert {check.name: check.state for check in checks if "driver" in check.name} == {
        "driver for NVIDIA L4": "ok",
        "driver for Tesla V100-SXM2-16GB": "problem",
    }


@pytest.mark.parametrize(
    ("system", "cure"),
    [
        ("Linux", "install NVIDIA's driver; --cpu needs none"),
        ("Darwin", "use a machine with an NVIDIA GPU; --cpu needs none"),
    ],
)
def test_no_gpu_ends_its_part(system: str, cure: str, lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    assert rows(lay_out(smi=None).examine([DoctorPart.GPU])) == [("driver", "problem", "nvidia-smi shows no GPU", cure)]


def test_no_gpu_is_nothing_to_repair_where_none_was_asked_for(lay_out: LayOut) -> None:
    checks = lay_out(smi=None).examine([DoctorPart.GPU], named=False)
    cure = "without a GPU, runs use the CPU; otherwise: launch doctor gpu"
    assert rows(checks) == [("driver", "note", "nvidia-smi shows no GPU", cure)]
    assert doctor.exit_code(checks) == ExitCode.DONE


@pytest.mark.parametrize(
    ("machine", "row"),
    [
        ({"version": "20.10.24+dfsg1"}, ("engine", "ok", "Docker 20.10.24+dfsg1; 2 CPUs, 8.3 GB of memory", "")),
        ({"version": "20.9.1"}, ("engine", "problem", "Docker 20.9.1; 20.10 is needed", "upgrade Docker")),
        (
            {"SecurityOptions": ["name=rootless"]},
            ("engine", "ok", "Docker 28.2.2, rootless; 2 CPUs, 8.3 GB of memory", ""),
        ),
        ({"gpus": False}, ("GPUs", "problem", "this machine has a GPU, but containers cannot use it", TOOLKIT)),
        ({"gpus": False, "smi": None}, ("GPUs", "note", "no NVIDIA runtime, and no GPU here that would need it", "")),
        ({}, ("image cuda", "note", "not built", "launch build --flavour cuda")),
    ],
)
def test_engine_with_something_amiss(machine: dict[str, Any], row: Row, lay_out: LayOut) -> None:
    assert row_of(lay_out(**machine).examine([DoctorPart.DOCKER]), row[0]) == row


@pytest.mark.parametrize(
    ("free", "state", "found", "cure"),
    [
        (14_000_000_000, "ok", "14.0 GB free in /var/lib/docker", ""),
        (13_900_000_000, "problem", "13.9 GB free in /var/lib/docker; a build needs 14 GB", "docker system prune"),
        (None, "note", "/var/lib/docker is not visible from here", ""),
    ],
)
def test_disk(free: int | None, state: str, found: str, cure: str, disk: SimpleNamespace, lay_out: LayOut) -> None:
    disk.free = free
    assert row_of(lay_out().examine([DoctorPart.DOCKER]), "disk") == ("disk", state, found, cure)


def test_containers_that_were_left_behind(docker: FakeDocker, lay_out: LayOut) -> None:
    for _ in range(2):
        docker.containers.create(labels={"rooflaunch.run": "0.1"})
    docker.containers.create(labels={})
    row = ("containers", "note", "of earlier runs: fake_0, fake_1", "docker rm -f fake_0 fake_1")
    assert row_of(lay_out().examine([DoctorPart.DOCKER]), "containers") == row


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
    assert rows(checks)[0] == ("engine", "problem", "no Docker engine answers: permission denied", "log in again")
    assert [check.part for check in checks] == [DoctorPart.DOCKER, *[DoctorPart.GPU] * 5], (
        "a part that is named twice is one"
    )


CHECKS = [
    Check(part=DoctorPart.GPU, name="driver", state=State.OK, found="580"),
    Check(part=DoctorPart.GPU, name="counters", state=State.NOTE, found="restricted", cure="do this"),
]
PROBLEM = Check(part=DoctorPart.GPU, name="DCGM", state=State.PROBLEM, found="runs", cure="stop it")


def test_a_line_per_check() -> None:
    assert doctor.render([*CHECKS, PROBLEM]).splitlines() == [
        "ok       driver    580",
        "note     counters  restricted",
        "                   -> do this",
        "problem  DCGM      runs",
        "                   -> stop it",
    ]


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


@pytest.mark.world
def test_tool_that_is_absent_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.run_tool(["rooflaunch-no-such-tool"]) is None
    monkeypatch.setattr(doctor, "TOOL_LIMIT_S", 0.05)
    assert doctor.run_tool([sys.executable, "-c", "import time; time.sleep(600)"]) is None
