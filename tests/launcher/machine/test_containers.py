import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_docker import FakeDocker

from launcher.docker_engine import Container, ContainerEnd, Image
from launcher.machine import containers
from launcher.machine.containers import ContainerLimits
from launcher.machine.runtime import Choice
from launcher.machine.watcher import Watcher
from launcher.values import Runtime
from tests.launcher.told import Golden, told
from workload import __version__
from workload.contract.spec import RunSpec

IMAGE = Image(id="sha256:ab", tags=("rooflaunch:cpu",), reference="", size_bytes=1, created="", labels={})
TIMING = Container(
    image="sha256:ab", command=("train",), user="1000:1001", writable=("/home/me/results",), memory_bytes=2**30
)


@pytest.fixture
def choice(docker: FakeDocker) -> Choice:
    return Choice(runtime=Runtime.DOCKER, why="", engine=docker.engine(SecurityOptions=["name=rootless"]), image=IMAGE)


def describe(choice: Choice, spec: RunSpec, **changes: Any) -> Container:
    plain: dict[str, Any] = {"output": Path("/out"), "command": ["train"], "limits": ContainerLimits()}
    return containers.describe(choice, containers.place_paths(spec), **plain | changes)


def test_plain_run_gets_its_output_folder_and_nothing_else(
    choice: Choice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in containers.FORWARDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LD_PRELOAD", "mine.so")
    assert describe(choice, RunSpec(), output=Path("my results"), command=["train", "--model", "x"]) == Container(
        image="sha256:ab",
        command=("train", "--model", "x"),
        user="0:0",
        writable=(f"{tmp_path}/my results",),
        network="none",
        shm_bytes=2_147_483_648,
        labels={"rooflaunch.run": __version__},
    )


def test_limits_and_gpus(choice: Choice) -> None:
    limits = ContainerLimits(shm_bytes=1, memory_bytes=2, cpus=1.5)
    found = describe(replace(choice, gpus=True), RunSpec(), limits=limits)
    assert (found.shm_bytes, found.memory_bytes, found.cpus, found.gpus) == (1, 2, 1.5, True)
    assert describe(choice, RunSpec()).gpus is False
    assert describe(choice, RunSpec(devices=4)).shm_bytes == 4 * 2**31, "for each device"


def test_a_container_with_one_gpu_gets_no_variable_that_chooses_another(
    choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in containers.FORWARDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    with_gpus = replace(choice, gpus=True)
    assert describe(with_gpus, RunSpec()).environment == {
        "CUDA_VISIBLE_DEVICES": "1,2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    one = describe(with_gpus, RunSpec(), gpu_index=2)
    assert one.environment == {}
    words = one.as_words()
    assert words[words.index("--gpus") + 1] == "device=2"


def test_folders_of_the_data_set(
    golden: Golden, choice: Choice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Paths are those of the host; what is downloaded is writable and needs a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("photos", "data"):
        Path(name).mkdir()
    Path("file").touch()
    downloaded = {"dataset": "imagenette", "data_dir": "absent/new", "download": True}
    text = ""
    for given in (
        *(
            {},
            {"data_dir": "data"},
            *({"dataset": name} for name in ("photos", "~/photos", "/photos", "absent", "file")),
        ),
        *({"dataset": "cifar10"}, {"dataset": "cifar10", "data_dir": "data"}),
        *({"dataset": "imagenette", "data_dir": "absent"}, {**downloaded, "data_dir": "data"}, downloaded),
    ):
        spec = containers.place_paths(RunSpec(**given))
        found = describe(choice, RunSpec(**given))
        placed = f"dataset {spec.dataset}, data_dir {spec.data_dir}"
        folders = f"readable {list(found.readable)}, writable {list(found.writable)}, network {found.network}"
        text += f"{given}\n    {placed}\n    {folders}\n"
    golden("data.txt", text.replace(str(tmp_path), "HERE"))
    assert not Path("absent").exists(), "a plan makes nothing"


def test_profile_with_restricted_counters_hands_the_capability_to_the_caller() -> None:
    found = containers.for_profile(TIMING, ["profile", "/out/a"], restricted=True)
    assert found == replace(
        TIMING,
        command=("profile", "/out/a"),
        user="0:0",
        capabilities=("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP"),
        entrypoint=(
            *("setpriv", "--reuid=1000", "--regid=1001", "--clear-groups", "--inh-caps=-all,+sys_admin"),
            *("--ambient-caps=-all,+sys_admin", "--bounding-set=-all,+sys_admin", "python", "-m", "workload"),
        ),
    )


def test_driver_that_restricts_counters(tmp_path: Path) -> None:
    parameters = tmp_path / "params"
    assert containers.counters_restricted(parameters) is False
    for value, restricted in (("1", True), ("0", False), ("10", False)):
        parameters.write_text(f"EnableMSI: 1\nRmProfilingAdminOnly: {value}\n")
        assert containers.counters_restricted(parameters) is restricted


def follow(docker: FakeDocker, out: list[str]) -> ContainerEnd:
    return containers.follow(docker.engine(), TIMING, on_line=out.append)


@pytest.mark.parametrize(
    ("sent", "received", "lines", "exit_code"),
    [
        ([], [], ["sealed"], 130),
        ([signal.SIGINT], ["SIGINT"], ["sealed"], 130),
        ([signal.SIGTERM], ["SIGTERM"], ["sealed"], 130),
        ([signal.SIGHUP], ["SIGHUP"], ["sealed"], 130),
        ([signal.SIGINT] * 3, ["SIGINT", "SIGINT", "SIGKILL"], [], 137),
        ([signal.SIGTERM, signal.SIGINT, signal.SIGINT], ["SIGTERM", "SIGINT", "SIGKILL"], [], 137),
    ],
    ids=str,
)
def test_first_signal_lets_the_trainer_seal_its_bundle_and_the_third_kills_it(
    sent: list[signal.Signals], received: list[str], lines: list[str], exit_code: int, docker: FakeDocker
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    docker.containers.pieces = [*(lambda each=each: signal.raise_signal(each) for each in sent), (b"sealed\n", None)]
    docker.containers.exit_code = 130
    out: list[str] = []
    first = sent[0] if sent else None
    assert follow(docker, out) == ContainerEnd(exit_code=exit_code, out_of_memory=False, signal=first)
    assert docker.containers.created[0].signals == received
    assert out == lines
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_watcher_hears_everything_and_handles_signals_itself(
    docker: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    handlers: list[object] = []
    docker.containers.pieces = [
        (b"/out/a\n", b"warmup 1/3\n"),
        lambda: handlers.append(signal.getsignal(signal.SIGTERM)),
    ]
    heard: list[str] = []
    watcher = Watcher(
        on_message=heard.append,
        on_bundle=lambda _: pytest.fail("a bundle is the runner's to tell"),
        on_started=lambda running: heard.append(f"started {running.name}"),
        on_ended=lambda: heard.append("ended"),
    )
    out: list[str] = []
    ended = containers.follow(docker.engine(), TIMING, on_line=out.append, watcher=watcher)
    assert ended == ContainerEnd(exit_code=0, out_of_memory=False)
    assert heard == ["started fake_0", "warmup 1/3", "ended"]
    assert (out, handlers) == (["/out/a"], [before])
    assert capsys.readouterr() == ("", "")


def test_signal_while_the_container_starts_reaches_it(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    create = docker.containers.create

    def interrupted(**arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return create(**arguments)

    monkeypatch.setattr(docker.containers, "create", interrupted)
    docker.containers.pieces = [(b"sealed\n", None)]
    follow(docker, [])
    assert docker.containers.created[0].signals == ["SIGINT"]


def test_what_is_said_of_a_container_that_was_ended(golden: Golden) -> None:
    def explained(exit_code: int, memory_bytes: int | None = None, **ended: Any) -> None:
        end = ContainerEnd(exit_code=exit_code, **{"out_of_memory": False, **ended})
        if error := containers.explain(end, ContainerLimits(memory_bytes=memory_bytes)):
            raise error

    cases = {
        "at its limit of memory": partial(explained, 137, 2**29, out_of_memory=True),
        "memory ran out": partial(explained, 137, out_of_memory=True),
        "killed": partial(explained, 137, 2**29),
        "interrupted": partial(explained, 137, signal=signal.SIGINT),
    }
    golden("ended.txt", told(cases))
