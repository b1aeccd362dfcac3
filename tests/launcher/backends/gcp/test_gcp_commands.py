"""`launch gcp` as it is typed, and the options that it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.backends.gcp import options
from launcher.backends.gcp.backend import ComputeEngine
from launcher.jobs.launches import LaunchState
from launcher.protocol.records import LaunchPhase
from tests.launcher.backends.gcp.canned_cloud import IMAGE, ZONE, Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.launcher.backends.gcp.command_world import (
    AT_HOME,
    GCP,
    NAME,
    NOWHERE,
    Launch,
    forbidden,
    world_of,
)
from workload.contract import bundle

ROOT = Path(__file__).parents[4]
# The plan and the options: nothing outside is asked.


def test_the_dry_run_asks_nobody(launch: Launch) -> None:
    text = launch(NOWHERE, "gcp", "--gpu", "t4", "--zone", ZONE, "--dry-run", "--project", "my-project").output()
    image = r"^image +us-central1-docker.pkg.dev/my-project/rooflaunch/trainer:cuda-[0-9a-f]{12}"
    assert re.search(image, text, re.MULTILINE)
    plan = launch(NOWHERE, *GCP, "--dry-run", "--format", "json", "--repeats", "3").json()
    assert plan["insert"]["name"] == plan["name"]
    assert plan["name"].startswith("rooflaunch-t4-20261121-120000-")
    assert plan["zones"][0] == ZONE


def test_a_price_needs_no_project(launch: Launch) -> None:
    text = launch(NOWHERE, "gcp", "--gpu", "t4", "--zone", ZONE, "--dry-run").output()
    assert "instances.insert" not in text
    shown = launch(NOWHERE, "gcp", "--gpu", "t4", "--zone", ZONE, "--dry-run", "--request").output()
    assert "\n\nrequest    instances.insert in us-central1-a; " in shown
    assert re.search(r"^price +0\.540 USD per hour in us-central1", text, re.MULTILINE)
    assert re.search(r"^bucket +gs://PROJECT-rooflaunch/runs/$", text, re.MULTILINE)
    assert text.endswith("note       no project is set: PROJECT stands for your project; name it with --project\n")


REFUSED: tuple[tuple[str, ...], ...] = (
    ("gcp", "--gpu", "t5", "--dry-run", *AT_HOME),
    ("gcp", "--gpu", "t5"),
    ("gcp", "--gpu", "t4", "--model", "resnet81"),
    ("gcp", "--gpu", "t4", "--request"),
    ("gcp", "--gpu", "t4", "--detach", "--rerun-preempted", "2", "--spot"),
    ("gcp", *AT_HOME),
    ("down", *AT_HOME),
    ("down", "--all", "abc", *AT_HOME),
    ("doctor", "docker", "--project", "my-project"),
)


def test_bad_option_is_told_before_anything_is_asked(launch: Launch, golden: Callable[[str, str], None]) -> None:
    found = [f"$ launch {' '.join(words)}\n{launch(NOWHERE, *words).error(2)}" for words in REFUSED]
    golden("command-refusals.txt", "\n".join(found))


def test_zones_are_completed_for_the_gpu_that_is_typed() -> None:
    def zones(**typed: str) -> Sequence[str]:
        context: Any = SimpleNamespace(params=typed)
        return options.COMPLETIONS.zone_names(context)

    assert zones(gpu="v100")[0] == "asia-east1-c"
    assert ZONE in zones(gpu="v100")
    assert len(zones()) > len(zones(gpu="v100"))
    assert options.COMPLETIONS.gpu_names()[:3] == ["t4", "l4", "v100"]


# Whole commands.


@pytest.mark.world
def test_one_command_ends_with_the_bundle_and_the_table(launch: Launch, clouds: Clouds, tmp_path: Path) -> None:
    with clouds() as cloud:
        said = launch(world_of(cloud), *GCP, "-o", "home")
        assert said.code == 0
        (folder,) = (tmp_path / "home").iterdir()
        assert bundle.read(folder).document["status"] == "completed"
        assert said.out.splitlines()[0] == "resnet18, batch 32, fp32, on cuda: Tesla T4"
        table = dict(re.findall(r"^  (VM|cost|time|bundle|images/s) +(.*)$", said.out, re.MULTILINE))
        assert table["images/s"] == "250  (one run: no interval)"
        assert table["VM"] == f"n1-standard-4 in {ZONE}"
        moment = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"
        cost = rf"0\.0\d\d USD from {moment} to {moment}, at 0\.5599 USD per hour as of 20\S+; without traffic and tax"
        assert re.fullmatch(cost, table["cost"])
        # The boot is longer than any other part: 9 s of boot, 3 s each of image, run and upload.
        usd = r"\(0\.0\d+ USD\)"
        time = rf"steps \d\S* % of \d\S* s and 0\.\d+ USD \(1 run\); boot \d\S* s {usd}, .*upload \d\S* s {usd}.*"
        assert re.fullmatch(time, table["time"]), table["time"]
        phases = re.findall(r"^ *\+\d+ s  (\w[\w ]*)$", said.err, re.MULTILINE)
        assert phases == [phase.replace("_", " ") for phase in LaunchPhase if not phase.startswith("profile")]
        assert "insert" not in said.err, "the request is for --dry-run"
        assert cloud.fake.instances == []


@pytest.mark.world
def test_json_has_the_whole_story(launch: Launch, clouds: Clouds) -> None:
    with clouds(fault=Fault.FAILS) as cloud:
        said = launch(world_of(cloud), *GCP, "--format", "json", "--spot", "--rerun-preempted", "1")
        assert said.code == 6
        told = json.loads(said.out)
        assert told["exit_code"] == 6
        assert [run["status"] for run in told["runs"]] == ["failed"]
        assert told["calls"]["compute.instances.insert"] == 1
        assert (told["zone"], told["attempts"], told["detached"]) == (ZONE, 1, False)
        assert said.err.endswith(f"error: '{told['name']}': the loss is nan\nhint: a lower learning rate\n")


@pytest.mark.world
def test_the_doctor_looks_at_the_project_that_is_named(launch: Launch, clouds: Clouds) -> None:
    with clouds():
        done = launch(NOWHERE, "doctor", "gcp", *AT_HOME, "--format", "json")
        found = {check["name"]: check for check in done.json(done.code)}
        assert done.code in (0, 4)
        assert found["project"]["found"] == "my-project (option); Compute Engine answers"
        assert {check["part"] for check in found.values()} == {"gcp"}


@pytest.mark.world
def test_a_project_that_refuses_is_known_before_an_image_is_built(launch: Launch, clouds: Clouds) -> None:
    with clouds() as cloud:
        cloud.fake.refuse(403, "not yours", match="GET .*/projects/my-project$")
        words = [word for word in GCP if word not in ("--image", IMAGE)]
        error = launch(world_of(cloud, engine=forbidden("Docker")), *words).error(4)
        assert "no permission in project 'my-project': not yours" in error


# Ctrl-C.


@pytest.mark.world
@pytest.mark.parametrize("keep", [None, True, False], ids=["no terminal", "keep", "delete"])
def test_ctrl_c_while_following(launch: Launch, clouds: Clouds, keep: bool | None) -> None:
    """Without a terminal nobody is asked, and the launch goes on."""
    asked: list[tuple[str, bool]] = []

    def answer(question: str, default: bool) -> bool:
        asked.append((question, default))
        assert keep is not None
        return keep

    durations = dict.fromkeys(LaunchPhase, 4.0) | {LaunchPhase.RUN_ENDED: 60.0}
    with clouds(durations=durations) as cloud:

        def press() -> None:
            assert cloud.vm.started.wait(60)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        world = world_of(cloud, confirm=None if keep is None else answer)
        error = launch(world, *GCP).error(130)
        name = NAME.findall(error)[0]
        assert asked == ([] if keep is None else [(f"\nKeep '{name}' running?", True)])
        if keep is False:
            assert error.endswith(f"error: interrupted; '{name}' is deleted\nhint: launch again\n")
            assert cloud.fake.instances == []
            assert cloud.state(name).state is LaunchState.FAILED
        else:
            assert f"'{name}' keeps running in {ZONE}" in error
            assert f"launch logs {name} -f to follow it, launch down {name} to end it" in error
            assert cloud.fake.all_vms[0].gone.wait(60)
            assert cloud.state(name).state is LaunchState.DONE


@pytest.mark.world
def test_ctrl_c_before_anything_is_submitted(launch: Launch, clouds: Clouds, monkeypatch: pytest.MonkeyPatch) -> None:
    with clouds() as cloud:
        monkeypatch.setattr(ComputeEngine, "prepare", lambda *_: signal.raise_signal(signal.SIGINT))
        hint = "hint: nothing was submitted; run the same command again\n"
        assert launch(world_of(cloud), *GCP).error(130).endswith(f"error: interrupted by Ctrl-C\n{hint}")
        assert cloud.fake.all_vms == []


@pytest.mark.slow
@pytest.mark.world
def test_a_launcher_that_is_killed_is_picked_up_by_another(launch: Launch, clouds: Clouds) -> None:
    with clouds() as cloud:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "launcher", *GCP]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            assert cloud.vm.started.wait(60)
        finally:
            process.kill()
        assert process.wait() == -signal.SIGKILL
        (vm,) = cloud.fake.all_vms
        world = world_of(cloud)
        assert launch(world, "logs", vm.name, "-f", *AT_HOME).output().endswith("uploaded\n")
        told = launch(world, "status", vm.name, "--format", "json", *AT_HOME).json()
        assert (told["state"], told["vm"], len(told["runs"])) == ("done", None, 1)
        assert cloud.fake.instances == []
