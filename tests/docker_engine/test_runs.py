"""`launch local --runtime docker` on the real engine: whole, killed, interrupted, out of memory."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.docker_engine.commands import TINY, Launch, docker, environment, launch_words
from tests.launcher.script import tiny
from tests.waiting import until
from workload.contract import bundle
from workload.contract.errors import ExitCode

pytestmark = [pytest.mark.world, pytest.mark.docker, pytest.mark.timeout(900), pytest.mark.usefixtures("image")]

ENDLESS = ["local", "--runtime", "docker", "--cpu", *TINY, "--iterations", "1000000", "-o", "out"]


def test_a_run_from_plan_to_table(launch: Launch, image: dict[str, Any], images: Path, tmp_path: Path) -> None:
    words = ["--cpu", *TINY, "--iterations", "3", "--dataset", str(images), "--workers", "1", "--repeats", "2"]
    done = launch("local", *words, "--cpus", "1.5", "--memory", "3g", "-o", "my results", "--format", "json")
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["repeat"] for run in runs] == [{"index": 1, "of": 2}, {"index": 2, "of": 2}]
    for run in runs:
        found = bundle.read(tmp_path / run["path"])
        where = found.document["environment"]
        assert run["path"].startswith("my results/")
        assert found.document["spec"]["dataset"] == str(images), "the folder keeps its name"
        assert where["runtime"] == "docker"
        assert "the image for this code, flavour cpu" in where["runtime_reason"]
        assert where["container"]["image_digest"] == image["image_id"]
        assert where["container"]["image"] == image["tag"]
        assert where["host"]["cgroup_cpu_limit"] == 1.5
        assert where["host"]["cgroup_memory_limit_bytes"] == 3 * 2**30
        assert where["container"]["shm_bytes"] == 2 * 2**30
        assert where["host"]["hostname"] == Path("/proc/sys/kernel/hostname").read_text().strip()
        assert {path.stat().st_uid for path in found.path.iterdir()} == {os.getuid()}


def test_the_profile_is_a_second_container(launch: Launch, tmp_path: Path) -> None:
    words = ["--cpu", *TINY, "--iterations", "2", "--profile", "torch", "-o", "out"]
    done = launch("local", "--runtime", "docker", *words)
    assert done.returncode == 0, done.stderr
    [first, second] = [line for line in done.stderr.splitlines() if "docker run" in line]
    assert " train " in first
    assert " profile " in second
    assert "SYS_ADMIN" not in first + second, "a trace needs no privilege"
    [folder] = (path for path in (tmp_path / "out").iterdir() if path.is_dir())
    found = bundle.read(folder)
    assert found.document["profile"]["status"] == "completed"
    assert {"torch/kernels.csv", "torch/trace.json.gz"} <= {file.name for file in found.files}
    assert "profile       torch: " in done.stdout


def test_auto_takes_the_image_and_says_so(launch: Launch) -> None:
    done = launch("local", "--cpu", "--dry-run")
    assert "runtime    docker (Docker " in done.stdout
    assert "--network none" in done.stdout
    without = launch("local", "--cpu", "--flavour", "cuda", "--dry-run")
    assert without.returncode == ExitCode.TOOL
    assert "error: no image of flavour cuda is built for this code\n" in without.stderr
    assert without.stderr.endswith("-m launcher build --flavour cuda\n"), "as it was called"


def test_out_of_memory_is_a_result(launch: Launch, tmp_path: Path) -> None:
    big = ["--cpu", "--model", "resnet18", "--batch-size", "64", "--no-ceilings"]
    done = launch("local", "--runtime", "docker", *big, "--memory", "512m", "-o", "out")
    assert done.returncode == ExitCode.OUT_OF_MEMORY
    assert done.stderr.endswith(
        "error: the run was killed at the container's limit of 512m of memory\n"
        "hint: a smaller --batch-size, fewer --workers, or more --memory\n"
    )
    [folder] = (path for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert bundle.read(folder).document["status"] == "out_of_memory"


def running(tmp_path: Path) -> tuple["subprocess.Popen[str]", str, Path]:
    """An endless run that has written steps: the launcher, its container, its bundle."""
    process = subprocess.Popen(
        launch_words(*ENDLESS),
        cwd=tmp_path,
        env=environment(),
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        steps = list(tmp_path.glob("out/*/steps.csv"))
        if steps and steps[0].read_text().count("\n") > 5:
            names = docker("ps", "--quiet", "--filter", "label=rooflaunch.run").stdout.split()
            return process, names[0], steps[0].parent
        time.sleep(0.2)
    process.kill()
    pytest.fail(f"the run did not come to its steps: {process.communicate()}")


def test_a_signal_stops_the_container_in_order(tmp_path: Path) -> None:
    process, container, folder = running(tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert bundle.read(folder).document["status"] == "interrupted"
    assert docker("inspect", container).returncode != 0, "it is removed"


@pytest.mark.night(part="kills")
def test_a_launcher_that_is_killed_leaves_a_whole_bundle_and_nothing_that_runs(tmp_path: Path) -> None:
    process, container, folder = running(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    state = ["inspect", "--format", "{{.State.Status}}", container]
    until(lambda: docker(*state).stdout.strip() == "exited", lambda: docker("logs", container).stderr)
    docker("rm", container)
    found = bundle.read(folder)
    gone = "interrupted: the process that started this run has ended"
    assert (found.document["status"], found.document["error"]) == ("interrupted", gone)
    assert len(found.steps()) > 3


def test_a_script_of_ones_own_runs_in_its_folder(launch: Launch, tmp_path: Path) -> None:
    tiny.project(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "none.txt").write_text("# the image has all that it needs\n")
    words = ("--requirements", "none.txt", *tiny.FEW, "--repeats", "2", "--data", "data", "--profile", "torch")
    theirs = ("--", "train.py", "--root", "{data}", "--token", "hunter2")
    done = launch("local", *words, "-o", "out", "--format", "json", *theirs)
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["repeat"] for run in runs] == [{"index": 1, "of": 2}, {"index": 2, "of": 2}]
    for run in runs:
        assert (run["status"], run["environment"]["runtime"]) == ("completed", "docker")
        assert run["spec"]["script"]["command"] == "train.py --root '{data}' --token '[redacted]'"
    assert [run["profile"]["status"] for run in runs] == ["completed", "not profiled"], "of repeats the first"
    assert f"argv: --root {tmp_path}/data --token hunter2 gpus: \n" in done.stderr
    assert done.stderr.count("hunter2") == 2, "the script's own line of each run, and no command of ours"
    assert (tmp_path / "written.txt").stat().st_uid == os.getuid()
