"""`launch ssh --runtime docker` on a real engine behind a real sshd: agent and trainer in containers of the image."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import sshd
from tests.docker_engine.commands import docker, launch_words
from tests.waiting import until
from workload.contract import bundle

pytestmark = [pytest.mark.docker, pytest.mark.world]

TINY = ("--cpu", "--model=squeezenet1_1", "--batch-size=1", "--warmup=1", "--image-size=64", "--no-ceilings")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Machine]:
    with sshd.running() as one:
        sshd.meet(one, monkeypatch)
        yield one


def launched(machine: sshd.Machine, folder: Path, *words: str) -> subprocess.Popen[str]:
    place = ("--host", machine.host, "--port", str(machine.port))
    command = launch_words(*words, *place)
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def containers(name: str) -> str:
    return docker("ps", "--all", "--quiet", "--filter", f"volume={name}").stdout


def test_a_run_in_the_image_for_this_code(image: dict[str, Any], machine: sshd.Machine, tmp_path: Path) -> None:
    process = launched(machine, tmp_path, "ssh", *TINY, "--iterations=2", "--runtime=docker")
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert "with the image for this code" in err
    [folder] = (tmp_path / "results").iterdir()
    run = bundle.read(folder)
    assert run.record.status == "completed"
    container = run.record.environment.container
    assert container is not None
    assert container.image_digest == image["image_id"]
    home = next((machine.home / ".rooflaunch/jobs").iterdir())
    assert containers(str(home / "results")) == ""


@pytest.mark.parametrize("victim", ["nobody", pytest.param("keeper", marks=pytest.mark.night(part="kills"))])
def test_down_leaves_no_container(image: dict[str, Any], machine: sshd.Machine, tmp_path: Path, victim: str) -> None:
    """Also where the keeper was killed, so that nobody there would clear up."""
    del image
    process = launched(machine, tmp_path, "ssh", *TINY, "--iterations=100000", "--runtime=docker", "--detach")
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    name = re.search(r"^launch +(\S+)$", out, re.MULTILINE)
    assert name
    home = machine.home / ".rooflaunch/jobs" / name[1]
    until(lambda: containers(str(home / "results")), within_s=120)
    if victim == "keeper":
        [pid] = [pid for pid, words in machine.jobs() if "keeper.py" in words]
        subprocess.run(["kill", "-9", str(pid)], check=True)
    process = launched(machine, tmp_path, "down", name[1])
    out, err = process.communicate()
    assert (process.returncode, out) == (0, f"job {name[1]} in 127.0.0.1 is gone\n"), err
    assert containers(str(home / "results")) == ""
    assert docker("ps", "--all", "--quiet", "--filter", f"name={name[1]}").stdout == ""
