"""`launch gcp`, `status`, `logs`, `down` and `reap` as they are typed."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from launcher.__main__ import main
from launcher.backends.gcp import backend, gpus, options, skus
from launcher.backends.gcp.backend import ComputeEngine
from launcher.backends.gcp.catalog import Current
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.skus import PriceList
from launcher.docker_engine import EngineEvent, Image
from launcher.images import build as building
from launcher.images import contents
from launcher.jobs import commands
from launcher.jobs.commands import Ports
from launcher.jobs.launches import LaunchState
from launcher.jobs.progress import LaunchProgress
from launcher.jobs.session import Event as GcpEvent
from launcher.jobs.session import EventKind
from launcher.protocol.records import LaunchPhase, log_object, request_object, result_object, status_object
from tests.launcher.backends.gcp.canned_cloud import IMAGE, SETTINGS, ZONE, Cloud, Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.launcher.backends.gcp.price_list import SKUS
from tests.workload.storage.gcs_server import BUCKET
from workload.contract import bundle
from workload.contract.errors import ToolError

ROOT = Path(__file__).parents[4]
AT_HOME = ("--project", "my-project", "--bucket", f"gs://{BUCKET}")
NAME = re.compile(r"rooflaunch-t4-\d{8}-\d{6}-[0-9a-f]{6}")

Launch = Callable[..., int]

NO_T5 = "error: gpu must be one of t4, l4, v100, a100, a100-80gb, h100, h200; got 't5'\nhint: --gpu t4\n"
NO_MODEL = (
    "error: unknown model 'resnet81': it must be a torchvision classifier\n"
    "hint: did you mean resnet18 or resnet152 or resnet101? `python -m workload models` lists all\n"
)
NO_DRY_RUN = "error: --request needs --dry-run\nhint: --dry-run --request\n"
NOBODY_LEFT = (
    "error: with --detach no command is left to start a preempted VM again; got --rerun-preempted 2\nhint: "
    "one of the two\n"
)


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is part of an image's name, and asks git."""
    monkeypatch.setattr(contents, "current_commit", lambda: "")


def forbidden(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        pytest.fail(f"it must not ask for {what}")

    return refuse


@dataclass(frozen=True, kw_only=True)
class World:
    """What a command meets: a terminal, a clock, and what the backend reaches out to."""

    compute: Callable[[str], Compute]
    bucket: Callable[[str], Any]
    engine: Callable[[], Any]
    default_project: Callable[[], str | None]
    now: Callable[[], float]
    sleep: Callable[[float], None]
    is_terminal: Callable[[], bool]
    confirm: Callable[[str, bool], bool]
    prices: Callable[[str | None], Current] = lambda _: Current()
    busy: Callable[[], AbstractContextManager[None]] = nullcontext

    def backend(self) -> ComputeEngine:
        return ComputeEngine(
            compute=self.compute,
            bucket=self.bucket,
            engine=self.engine,
            default_project=self.default_project,
            prices=self.prices,
            sleep=self.sleep,
        )

    def ports(self) -> Ports:
        return Ports(
            backend=lambda name: {"gcp": self.backend()}[name],
            now=self.now,
            sleep=self.sleep,
            is_terminal=self.is_terminal,
            confirm=self.confirm,
        )


NOWHERE = World(
    compute=forbidden("Compute Engine"),
    bucket=forbidden("the bucket"),
    engine=forbidden("Docker"),
    default_project=forbidden("credentials"),
    now=lambda: 1795262400.0,
    sleep=forbidden("time"),
    is_terminal=lambda: False,
    confirm=forbidden("an answer"),
)


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launch:
    """`launch(world, *words)`, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(world: World, *words: str) -> int:
        monkeypatch.setattr(commands, "real_ports", world.ports)
        monkeypatch.setattr(backend, "backend", world.backend())
        monkeypatch.setattr(sys, "argv", ["launch", *words])
        with world.busy():
            return main()

    return run


def no_docker() -> NoReturn:
    raise ToolError("no Docker engine: /var/run/docker.sock does not exist", hint="start Docker")


def world_of(cloud: Cloud, **changes: Any) -> World:
    plain = World(
        compute=lambda _: cloud.compute,
        bucket=lambda _: cloud.bucket,
        engine=no_docker,
        default_project=lambda: "my-project",
        now=cloud.clock.now,
        sleep=cloud.clock.sleep,
        is_terminal=lambda: False,
        confirm=forbidden("an answer"),
        busy=cloud.clock.busy,
    )
    return replace(plain, **changes)


NOTHING_LEFT = "no machine or disk of a launch is stopped or past its limit in my-project\n"
GCP = ("gcp", "--gpu", "t4", "--zone", ZONE, "--image", IMAGE, *AT_HOME)


# The plan and the options: nothing outside is asked.


def test_the_dry_run_asks_nobody(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(NOWHERE, "gcp", "--gpu", "t4", "--zone", ZONE, "--dry-run", "--project", "my-project") == 0
    text = capsys.readouterr().out
    image = r"^image +us-central1-docker.pkg.dev/my-project/rooflaunch/trainer:cuda-[0-9a-f]{12}"
    assert re.search(image, text, re.MULTILINE)
    assert launch(NOWHERE, *GCP, "--dry-run", "--format", "json", "--repeats", "3") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["insert"]["name"] == plan["name"]
    assert plan["name"].startswith("rooflaunch-t4-20261121-120000-")
    assert plan["zones"][0] == ZONE


def todays(*, asked: list[str | None]) -> Callable[[str | None], Current]:
    def prices(project: str | None) -> Current:
        asked.append(project)
        parts = skus.all_parts(gpus.load().values())
        return Current(prices=PriceList(skus=tuple(skus.wanted(SKUS, parts)), read="2026-11-21"))

    return prices


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("gcp", "--gpu", "t4", "--zone", ZONE, "--dry-run", "--project", "my-project"), [None]),
        (("gcp", "--gpu", "t4", "--zone", ZONE, "--dry-run", "--usd-per-h", "1"), [None]),
        (("gpus", "--wide"), [None]),
        (("gpus", "--wide", "--live", "--project", "my-project"), ["my-project"]),
    ],
)
def test_todays_prices_are_asked_for_on_request_alone(
    words: tuple[str, ...], asked: list[str | None], launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str | None] = []
    assert launch(replace(NOWHERE, prices=todays(asked=told)), *words) == 0
    assert told == asked
    assert ("2026-11-21" in capsys.readouterr().out) is True


def test_a_list_that_cannot_be_read_is_a_warning(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    world = replace(NOWHERE, prices=lambda _: Current(why="it is not enabled", hint="gcloud services enable it"))
    assert launch(world, "gpus", "--live", "--project", "my-project") == 0
    said = capsys.readouterr()
    assert (
        said.err == "warning: prices are from the built-in table: it is not enabled\nhint: gcloud services enable it\n"
    )
    assert "2026-07" in said.out


def test_a_plan_says_why_it_has_the_prices_of_a_table(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    world = replace(NOWHERE, prices=lambda _: Current(why="it is not enabled"))
    assert launch(world, "gcp", "--gpu", "t4", "--zone", ZONE, "--dry-run") == 0
    assert "\nnote       prices are from the built-in table: it is not enabled\n" in capsys.readouterr().out


def test_a_price_needs_no_project(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(NOWHERE, "gcp", "--gpu", "t4", "--zone", ZONE, "--dry-run") == 0
    text = capsys.readouterr().out
    assert re.search(r"^price +0\.540 USD per hour in us-central1", text, re.MULTILINE)
    assert re.search(r"^bucket +gs://PROJECT-rooflaunch/runs/$", text, re.MULTILINE)
    assert text.endswith("note       no project is set: PROJECT stands for your project; name it with --project\n")


def test_the_request_is_shown_where_it_is_asked_for(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(NOWHERE, "gcp", "--gpu", "t4", "--dry-run", *AT_HOME) == 0
    assert "instances.insert" not in capsys.readouterr().out
    assert launch(NOWHERE, "gcp", "--gpu", "t4", "--dry-run", "--request", *AT_HOME) == 0
    assert "\n\nrequest    instances.insert in us-central1-a; " in capsys.readouterr().out


def test_a_cpu_run_needs_the_cpu_image(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(NOWHERE, "gcp", "--gpu", "t4", "--cpu", "--dry-run", "--project", "my-project") == 0
    assert "/rooflaunch/trainer:cpu-" in capsys.readouterr().out


@pytest.mark.world
def test_the_dry_run_loads_no_module_of_google() -> None:
    words = ["launch", "gcp", "--gpu", "t4", "--dry-run", "--project", "my-project"]
    code = (
        f"import sys; sys.argv = {words}; from launcher.__main__ import main; main(); "
        "print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "launcher" in loaded
    assert not loaded & {"google", "docker", "torch", "pandas", "requests", "rich"}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("gcp", "--gpu", "t5", "--dry-run", *AT_HOME), NO_T5),
        (("gcp", "--gpu", "t5"), NO_T5),
        (("gcp", "--gpu", "t4", "--model", "resnet81"), NO_MODEL),
        (("gcp", "--gpu", "t4", "--request"), NO_DRY_RUN),
        ((*GCP, "--detach", "--rerun-preempted", "2", "--spot"), NOBODY_LEFT),
        (("gcp", *AT_HOME), "error: Missing option '--gpu'.\nhint: launch gcp --help\n"),
        (
            ("down", *AT_HOME),
            "error: launch down takes either launches or --all\nhint: launch down RUN, or --all\n",
        ),
        (
            ("down", "--all", "abc", *AT_HOME),
            "error: launch down takes either launches or --all\nhint: launch down RUN, or --all\n",
        ),
        (
            ("doctor", "docker", "--project", "my-project"),
            "error: --project and --bucket are for launch doctor gcp\nhint: launch doctor gcp --project PROJECT\n",
        ),
    ],
    ids=[
        "gpu",
        "gpu before project",
        "model before project",
        "request",
        "detach",
        "no gpu",
        "down nothing",
        "down both",
        "doctor",
    ],
)
def test_a_bad_option_is_told_before_anything_is_asked(
    launch: Launch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], error: str
) -> None:
    assert launch(NOWHERE, *words) == 2
    assert capsys.readouterr().err == error


@pytest.mark.parametrize("command", ["gcp", "status", "logs", "down", "reap", "doctor"])
def test_every_help_has_examples(launch: Launch, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert launch(NOWHERE, command, "--help") == 0
    text = capsys.readouterr().out
    assert f"  Examples:\n    launch {command}" in text
    assert "--project" in text
    assert "--bucket" in text


def test_zones_are_completed_for_the_gpu_that_is_typed() -> None:
    context: Any = SimpleNamespace(params={"gpu": "v100"})
    assert options.zone_names(context)[0] == "asia-east1-c"
    assert ZONE in options.zone_names(context)
    everywhere: Any = SimpleNamespace(params={})
    assert len(options.zone_names(everywhere)) > len(options.zone_names(context))
    assert options.gpu_names()[:3] == ["t4", "l4", "v100"]


# Whole commands.


@pytest.mark.world
def test_one_command_ends_with_the_bundle_and_the_table(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with clouds() as cloud:
        assert launch(world_of(cloud), *GCP, "-o", "home") == 0
        said = capsys.readouterr()
        (folder,) = (tmp_path / "home").iterdir()
        assert bundle.read(folder).document["status"] == "completed"
        assert said.out.splitlines()[0] == "resnet18, batch 32, fp32, on cuda: Tesla T4"
        table = dict(re.findall(r"^  (VM|cost|bundle|images/s) +(.*)$", said.out, re.MULTILINE))
        assert table["images/s"] == "250  (one run: no interval)"
        assert table["VM"] == f"n1-standard-4 in {ZONE}"
        moment = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"
        cost = rf"0\.0\d\d USD from {moment} to {moment}, at 0\.5599 USD per hour as of 20\S+; without traffic and tax"
        assert re.fullmatch(cost, table["cost"])
        phases = re.findall(r"^ *\+\d+ s  (\w[\w ]*)$", said.err, re.MULTILINE)
        assert phases == [phase.replace("_", " ") for phase in LaunchPhase if not phase.startswith("profile")]
        assert "insert" not in said.err, "the request is for --dry-run"
        assert cloud.fake.instances == []


@pytest.mark.world
def test_json_has_the_whole_story(launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds(fault=Fault.FAILS) as cloud:
        assert launch(world_of(cloud), *GCP, "--format", "json") == 6
        said = capsys.readouterr()
        told = json.loads(said.out)
        assert told["exit_code"] == 6
        assert [run["status"] for run in told["runs"]] == ["failed"]
        assert told["calls"]["compute.instances.insert"] == 1
        assert (told["zone"], told["attempts"], told["detached"]) == (ZONE, 1, False)
        assert said.err.endswith(f"error: '{told['name']}': the loss is nan\nhint: a lower learning rate\n")


@pytest.mark.world
def test_a_renamed_image_family_is_told_and_does_not_stop_a_launch(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    family = ("ubuntu-os-accelerator-images", "ubuntu-accelerator-2204-amd64-with-nvidia-580")
    with clouds() as cloud:
        cloud.fake.renamed.add(family)
        assert launch(world_of(cloud), *GCP, "--secure-boot") == 0
        body = cloud.fake.bodies[0]
        newest = "ubuntu-accelerator-2404-amd64-with-nvidia-580-v20261101"
        source = f"projects/{family[0]}/global/images/{newest}"
        assert body["disks"][0]["initializeParams"]["sourceImage"] == source
        assert body["shieldedInstanceConfig"]["enableSecureBoot"] is True
        told = capsys.readouterr().err
        assert f"note       VM image family {family[1]} no longer exists in project {family[0]}\n" in told
        assert f"note       the VM boots {newest} of {family[0]} instead\n" in told
        assert launch(world_of(cloud), *GCP, "--vm-image", "my-project/none") == 2
        assert "error: --vm-image: there is no image family 'none' in project 'my-project'" in capsys.readouterr().err


@pytest.mark.world
def test_no_capacity_is_exit_code_5_with_what_was_tried(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds() as cloud:
        cloud.fake.stockout(ZONE)
        assert launch(world_of(cloud), *GCP, "--no-fallback") == 5
        assert f"  {ZONE}: ZONE_RESOURCE_POOL_EXHAUSTED" in capsys.readouterr().err


@pytest.mark.world
def test_detached_then_status_logs_and_down(launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds(fault=Fault.STOPS_BEATING) as cloud:
        world = world_of(cloud)
        assert launch(world, *GCP, "--detach") == 0
        name = NAME.findall(capsys.readouterr().out)[0]
        assert cloud.vm.started.wait(60)

        assert launch(world, "status", *AT_HOME) == 0
        line = next(each for each in capsys.readouterr().out.splitlines() if each.startswith(name))
        assert line.split()[:4] == [name, "t4", ZONE, "running"]
        assert launch(world, "status", name[-6:], *AT_HOME) == 0
        assert f"next       launch down {name}" in capsys.readouterr().out
        assert launch(world, "status", name, "--format", "json", *AT_HOME) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["name"], told["state"], told["vm"], told["zone"]) == (name, "running", "RUNNING", ZONE)

        assert launch(world, "logs", name, *AT_HOME) == 0
        assert "rooflaunch: phase booted" in capsys.readouterr().out
        assert launch(world, "logs", name, "--format", "json", *AT_HOME) == 0
        piece = json.loads(capsys.readouterr().out.splitlines()[0])
        assert (piece["launch"], piece["source"]) == (name, "serial port")

        assert launch(world, "down", name[-6:], *AT_HOME) == 0
        assert capsys.readouterr().out == f"VM {name} in {ZONE} is gone\n"
        assert cloud.fake.instances == []
        assert launch(world, "down", name, *AT_HOME) == 0
        assert capsys.readouterr().err == f"'{name}' has no VM: it is gone already\n"
        assert launch(world, "status", name, "--format", "json", *AT_HOME) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["state"], told["why"]) == ("failed", "its VM was removed by `launch down`")


@pytest.mark.world
def test_logs_follow_to_the_end(launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds() as cloud:
        world = world_of(cloud)
        assert launch(world, *GCP, "--detach") == 0
        name = NAME.findall(capsys.readouterr().out)[0]
        assert launch(world, "logs", name, "-f", *AT_HOME) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[2] for line in lines if line.startswith("rooflaunch: phase")] == [
            phase for phase in LaunchPhase if phase is not LaunchPhase.REQUESTED and not phase.startswith("profile")
        ]
        assert lines[-1] == "uploaded", "what only the log has comes last, and nothing twice"
        assert launch(world, "logs", name, "--format", "json", *AT_HOME) == 0
        assert json.loads(capsys.readouterr().out)["source"] == "startup.log"
        run_id = cloud.result(name).runs[0]
        assert launch(world, "logs", run_id, *AT_HOME) == 0
        assert "rooflaunch: phase booted" in capsys.readouterr().out


@pytest.mark.world
def test_a_log_cannot_drive_the_terminal(launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        cloud.run(plan)
        cloud.bucket.write(log_object(plan.name), b"one\r\n\x1b[2J\x1b]0;title\x07two\tthree\n\xff\n")
        assert launch(world_of(cloud), "logs", plan.name, *AT_HOME) == 0
        assert capsys.readouterr().out == "one\n[2J]0;titletwo\tthree\n\ufffd\n"


@pytest.mark.world
def test_no_record_of_others_is_a_traceback_in_any_command(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request of nonsense, a status of three megabytes, and a result with escape codes and an option for a run."""
    with clouds(fault=Fault.SILENT) as cloud:
        plan = cloud.plan()
        cloud.run(plan, detach=True)
        name, world = plan.name, world_of(cloud)
        first, hostile = {"schema_version": 1, "name": name, "limit_s": 1e308}, {"schema_version": 1, "runs": ["-rf"]}
        hostile |= {"exit_code": 0, "zone": ZONE, "phases": {}, "ended_at": "\x1b[2J"}
        records = {
            request_object(name): (json.dumps(first).encode(), "request of a launch: 'launched_at' is missing"),
            status_object(name): (b" " * 3_000_000, f"'launches/{name}/status.json' in bucket"),
            result_object(name): (json.dumps(hostile).encode(), "result of a launch: runs must be a list of run ids"),
        }
        for record, (content, why) in records.items():
            cloud.bucket.write(record, content)
            assert launch(world, "status", *AT_HOME) == 0
            (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith(name))
            assert " unreadable " in line
            assert launch(world, "status", name, "--format", "json", *AT_HOME) == 0
            told = json.loads(capsys.readouterr().out)
            assert why in told["why"]
            assert told["why"].isprintable()
            assert launch(world, "logs", name, *AT_HOME) == 0
            assert launch(world, "reap", "--dry-run", *AT_HOME) == 0
            capsys.readouterr()
        assert launch(world, "down", name, *AT_HOME) == 0
        assert capsys.readouterr().out == f"VM {name} in {ZONE} is gone\n"
        assert launch(world, "logs", name, *AT_HOME) == 3
        assert capsys.readouterr().err.startswith(f"error: '{name}' left no log; it is unreadable: not a readable ")


@pytest.mark.world
@pytest.mark.parametrize("word", ["ffffff", "$(reboot)", "x" * 4096, "a\nb"], ids=["hex", "shell", "long", "lines"])
@pytest.mark.parametrize("command", ["status", "logs", "down"])
def test_an_unknown_launch_is_nothing_to_do(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str], command: str, word: str
) -> None:
    with clouds() as cloud:
        assert launch(world_of(cloud), command, word, *AT_HOME) == 3
        error = capsys.readouterr().err
        assert error.startswith("error: no launch and no run of one is named '")
        assert error.endswith("'\nhint: launch status --all\n")
        assert len(error) < 300


@pytest.mark.world
def test_down_all_asks_on_a_terminal_and_refuses_without(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        names = sorted(plan.name for plan in (cloud.plan(), cloud.plan()) if cloud.run(plan, detach=True))
        assert launch(world_of(cloud), "down", "--all", *AT_HOME) == 2
        assert capsys.readouterr().err.endswith(
            "error: --all deletes 2 VMs, but there is no terminal to ask\nhint: --all --yes\n"
        )
        asked: list[tuple[str, bool]] = []

        def answer(question: str, default: bool) -> bool:
            asked.append((question, default))
            return len(asked) > 1

        world = world_of(cloud, is_terminal=lambda: True, confirm=answer)
        assert launch(world, "down", "--all", *AT_HOME) == 130
        assert len(cloud.fake.instances) == 2
        assert launch(world, "down", "--all", *AT_HOME) == 0
        assert asked == [("Delete these 2 VMs in my-project?", False)] * 2
        assert cloud.fake.instances == []
        assert capsys.readouterr().out == "".join(f"VM {name} in {ZONE} is gone\n" for name in names)
        assert launch(world_of(cloud), "down", "--all", "--yes", "--format", "json", *AT_HOME) == 0
        assert json.loads(capsys.readouterr().out) == []


@pytest.mark.world
def test_down_that_is_not_confirmed_is_exit_code_4(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds(fault=Fault.SILENT, scale=500) as cloud:
        plan = cloud.plan()
        cloud.run(plan, detach=True)
        cloud.fake.delete_fails(1000)
        assert launch(world_of(cloud), "down", plan.name, *AT_HOME) == 4
        assert f"not confirmed to be gone: VM {plan.name}" in capsys.readouterr().err


@pytest.mark.world
def test_down_works_without_the_bucket(launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        plan = cloud.plan()
        cloud.run(plan, detach=True)

        def no_bucket(_: str) -> NoReturn:
            raise ToolError("bucket 'b' cannot be reached", hint="")

        assert launch(world_of(cloud, bucket=no_bucket), "down", plan.name, *AT_HOME) == 0
        assert capsys.readouterr().err == "warning: bucket 'b' cannot be reached\n"
        assert cloud.fake.instances == []


@pytest.mark.world
def test_reap(launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds() as cloud:
        world = world_of(cloud)
        assert launch(world, "reap", *AT_HOME) == 0
        assert capsys.readouterr().out == NOTHING_LEFT
        name = "rooflaunch-l4-20260101-000000-abcdef"
        cloud.fake.add_vm(name, project="my-project", labels={"rooflaunch": "launch"}, age_s=3600 + 7300)
        assert launch(world, "reap", "--dry-run", *AT_HOME) == 0
        # Two hours and a little, by a clock that runs fast.
        why = re.fullmatch(rf"VM {name} in {ZONE}: its limit was 2 h \d\d min ago\n", capsys.readouterr().out)
        assert why
        assert launch(world, "reap", "--dry-run", "--format", "json", *AT_HOME) == 0
        assert json.loads(capsys.readouterr().out)[0]["name"] == name
        assert len(cloud.fake.instances) == 1
        assert launch(world, "reap", *AT_HOME) == 0
        assert capsys.readouterr().out == f"VM {name} in {ZONE} is gone\n"
        assert cloud.fake.instances == []


OFF_S = pytest.mark.parametrize("off_s", [-7200, 7200], ids=["two hours slow", "two hours fast"])


@pytest.mark.world
@OFF_S
def test_a_launch_goes_by_the_clouds_clock(
    off_s: float, launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds() as cloud:
        world = world_of(cloud, now=lambda: cloud.clock.now() + off_s)
        began_s = cloud.clock.now()
        assert launch(world, *GCP, "--format", "json") == 0
        told = capsys.readouterr()
        [run] = json.loads(told.out)["runs"]
        assert run["status"] == "completed"
        requested_s = datetime.fromisoformat(json.loads(told.out)["phases"]["requested"]).timestamp()
        assert began_s - 2 <= requested_s <= cloud.clock.now()
        assert "+0 s  requested\n" in told.err
        assert not re.search(r"\+\d+ h", told.err), "no phase comes hours after the start"
        assert launch(world, "status", *AT_HOME, "--format", "json") == 0
        [shown] = [each for each in json.loads(capsys.readouterr().out) if each["runs"] == [run["run_id"]]]
        assert shown["state"] == "done"


@pytest.mark.world
@OFF_S
def test_a_clock_that_is_off_ends_no_healthy_vm(
    off_s: float, launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds(fault=Fault.NO_HEARTBEAT) as cloud:
        world = world_of(cloud, now=lambda: cloud.clock.now() + off_s)
        assert launch(world, *GCP, "--detach", "--max-run-time", "90m", "--format", "json") == 0
        name = json.loads(capsys.readouterr().out)["name"]
        for somebody in (world, world_of(cloud), world_of(cloud, now=lambda: cloud.clock.now() - off_s)):
            assert launch(somebody, "reap", *AT_HOME) == 0
            assert capsys.readouterr().out == NOTHING_LEFT
            assert launch(somebody, "status", name, *AT_HOME, "--format", "json") == 0
            shown = json.loads(capsys.readouterr().out)
            assert (shown["state"], shown["vm"]) == ("starting", "RUNNING")
            assert 0 <= shown["usd"] < 0.3
        assert [each.name for each in cloud.fake.instances] == [name]


OUTAGES = pytest.mark.parametrize("told", ["unreachables", "scope", "warning", "fails"])


@pytest.mark.slow
@pytest.mark.world
@OUTAGES
def test_in_an_outage_nothing_is_said_to_be_gone(
    told: str, launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        world, plan = world_of(cloud), cloud.plan()
        cloud.run(plan, detach=True)
        cloud.fake.outage(ZONE, told)
        somewhere = "some zone" if told == "fails" else ZONE
        unlisted = f"error: not known to be gone: anything in {somewhere}, which does not answer\n"
        hint = "hint: run the same command again; launch status\n"
        assert launch(world, "down", plan.name, *AT_HOME) == 4
        error = f"error: not known to be gone: VM {plan.name} in {ZONE}: the zone does not answer\n"
        assert capsys.readouterr() == ("", error + hint)
        for words in (("down", "--all"), ("reap",), ("reap", "--dry-run")):
            assert launch(world, *words, *AT_HOME) == 4
            assert capsys.readouterr() == ("", unlisted + hint)
        assert launch(world, "down", "--all", "--format", "json", *AT_HOME) == 4
        assert capsys.readouterr() == ("[]\n", unlisted + hint)
        assert launch(world, "down", "f00ba2", *AT_HOME) == 4
        assert capsys.readouterr().err.startswith(f"error: whether 'f00ba2' has a VM is not known: {somewhere} does")
        assert launch(world, "status", plan.name, "--format", "json", *AT_HOME) == 0
        assert json.loads(capsys.readouterr().out)["state"] == LaunchState.UNKNOWN
        assert launch(world, "status", *AT_HOME) == 0
        shown = capsys.readouterr()
        assert (
            shown.err == f"warning: no answer from {somewhere}: a VM there that is missing in the bucket is not shown\n"
        )
        (line,) = (each for each in shown.out.splitlines() if each.startswith(plan.name))
        assert f" {LaunchState.UNKNOWN} " in line
        assert "whether its VM exists is not known: no answer from " in line
        assert [vm.name for vm in cloud.fake.instances] == [plan.name]
        cloud.fake.outage_ends()
        assert launch(world, "down", plan.name, *AT_HOME) == 0
        assert capsys.readouterr().out == f"VM {plan.name} in {ZONE} is gone\n"


@pytest.mark.world
@OUTAGES
def test_a_zone_that_only_the_list_lacks_is_asked_by_itself(
    told: str, launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        world, plan = world_of(cloud), cloud.plan()
        cloud.run(plan, detach=True)
        cloud.fake.outage(ZONE, told, direct=False)
        assert launch(world, "down", plan.name, *AT_HOME) == 0
        assert capsys.readouterr().out == f"VM {plan.name} in {ZONE} is gone\n"
        assert launch(world, "down", plan.name, *AT_HOME) == 0
        assert capsys.readouterr().err == f"'{plan.name}' has no VM: it is gone already\n"


@pytest.mark.world
def test_a_stopped_vm_is_warned_of_and_reaped_at_once(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        world, plan = world_of(cloud), cloud.plan()
        cloud.run(plan, detach=True)
        cloud.fake.stop(plan.name)
        for words in (("status",), ("status", plan.name)):
            assert launch(world, *words, *AT_HOME) == 0
            told = capsys.readouterr()
            warning = (
                f"warning: a VM is stopped, and the cloud does not delete stopped VMs: {plan.name}\nhint: launch reap\n"
            )
            assert told.err == warning
            assert "stale" in told.out
        why = f"VM {plan.name} in {ZONE}: it is TERMINATED, and the cloud never deletes a stopped VM\n"
        assert launch(world, "reap", "--dry-run", *AT_HOME) == 0
        assert capsys.readouterr().out == why
        assert launch(world, "reap", *AT_HOME) == 0
        assert capsys.readouterr().out == f"VM {plan.name} in {ZONE} is gone\n"
        assert (cloud.fake.instances, cloud.fake.disks) == ([], [])
        assert launch(world, "status", plan.name, *AT_HOME) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.world
def test_a_vm_that_is_about_to_start_again_is_let_be(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        world, plan = world_of(cloud), cloud.plan()
        cloud.run(plan, detach=True)
        cloud.fake.stop(plan.name, age_s=60)
        assert launch(world, "status", plan.name, *AT_HOME) == 0
        told = capsys.readouterr()
        assert "its VM is TERMINATED, and the cloud may start it again, to save its results" in told.out
        assert told.err == ""
        assert launch(world, "reap", *AT_HOME) == 0
        assert capsys.readouterr().out == NOTHING_LEFT
        assert [vm.name for vm in cloud.fake.instances] == [plan.name]
        cloud.fake.stop(plan.name, age_s=16 * 60)
        assert launch(world, "reap", *AT_HOME) == 0
        assert capsys.readouterr().out == f"VM {plan.name} in {ZONE} is gone\n"


@pytest.mark.world
def test_status_without_any_launch(launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds() as cloud:
        empty: Any = SimpleNamespace(
            kind="bucket", folders=lambda _: [], locate=lambda name: f"gs://empty-bucket/{name}"
        )
        assert launch(world_of(cloud, bucket=lambda _: empty), "status", *AT_HOME) == 0
        assert capsys.readouterr().err == "no launch in gs://empty-bucket, and no VM of one in my-project\n"
        cloud.fake.outage(ZONE)
        assert launch(world_of(cloud, bucket=lambda _: empty), "status", *AT_HOME) == 0
        warning = f"warning: no answer from {ZONE}: a VM there that is missing in the bucket is not shown\n"
        assert capsys.readouterr() == ("", warning)


@pytest.mark.world
def test_the_doctor_looks_at_the_project_that_is_named(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds():
        assert launch(NOWHERE, "doctor", "gcp", *AT_HOME, "--format", "json") in (0, 4)
        found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
        assert found["project"]["found"] == "my-project (option); Compute Engine answers"
        assert {each["part"] for each in found.values()} == {"gcp"}


# Ctrl-C.


def interrupt_when_it_trains(cloud: Cloud) -> None:
    def press() -> None:
        assert cloud.vm.started.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


@pytest.mark.world
@pytest.mark.parametrize(
    ("terminal", "keep", "left"),
    [(False, None, True), (True, True, True), (True, False, False)],
    ids=["no terminal", "keep", "delete"],
)
def test_ctrl_c_while_following(
    launch: Launch,
    clouds: Clouds,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
    keep: bool | None,
    left: bool,
) -> None:
    asked: list[tuple[str, bool]] = []

    def answer(question: str, default: bool) -> bool:
        asked.append((question, default))
        assert keep is not None
        return keep

    durations = dict.fromkeys(LaunchPhase, 4.0) | {LaunchPhase.RUN_ENDED: 60.0}
    with clouds(durations=durations) as cloud:
        interrupt_when_it_trains(cloud)
        world = world_of(cloud, is_terminal=lambda: terminal, confirm=answer)
        assert launch(world, *GCP) == 130
        error = capsys.readouterr().err
        name = NAME.findall(error)[0]
        assert asked == ([(f"\nKeep '{name}' running?", True)] if terminal else [])
        if left:
            assert f"'{name}' keeps running in {ZONE}" in error
            assert f"launch logs {name} -f to follow it, launch down {name} to end it" in error
            assert cloud.fake.all_vms[0].gone.wait(60)
            assert cloud.state(name).state is LaunchState.DONE
        else:
            assert error.endswith(f"error: interrupted; '{name}' is deleted\nhint: launch again\n")
            assert cloud.fake.instances == []
            assert cloud.state(name).state is LaunchState.FAILED


@pytest.mark.world
def test_ctrl_c_before_anything_is_submitted(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with clouds() as cloud:
        monkeypatch.setattr(ComputeEngine, "prepare", lambda *_: signal.raise_signal(signal.SIGINT))
        assert launch(world_of(cloud), *GCP) == 130
        hint = "hint: nothing was submitted; run the same command again\n"
        assert capsys.readouterr().err.endswith(f"error: interrupted by Ctrl-C\n{hint}")
        assert cloud.fake.all_vms == []


def processes(cloud: Cloud, *words: str) -> list[str]:
    """The command line of a launcher that is a process of its own, with the endpoints of `cloud` in its environment."""
    assert os.environ["ROOFLAUNCH_COMPUTE_ENDPOINT"] == cloud.fake.url
    return [sys.executable, "-m", "launcher", *words]


@pytest.mark.slow
@pytest.mark.world
def test_a_launcher_that_is_killed_is_picked_up_by_another(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds() as cloud:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(processes(cloud, *GCP), env=environment, stderr=subprocess.DEVNULL)
        try:
            assert cloud.vm.started.wait(60)
        finally:
            process.kill()
        assert process.wait(60) == -signal.SIGKILL
        (vm,) = cloud.fake.all_vms
        world = world_of(cloud)
        assert launch(world, "logs", vm.name, "-f", *AT_HOME) == 0
        assert capsys.readouterr().out.endswith("uploaded\n")
        assert launch(world, "status", vm.name, "--format", "json", *AT_HOME) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["state"], told["vm"], len(told["runs"])) == ("done", None, 1)
        assert cloud.fake.instances == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_a_phase_and_on_a_terminal_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    events = [
        GcpEvent(kind=EventKind.PHASE, text="image_pulled", at_s=1090.0),
        GcpEvent(kind=EventKind.PROGRESS, text="step 7 of 110, " + "long " * 20),
        GcpEvent(kind=EventKind.NOTE, text="the cloud answers again"),
    ]
    shown = []
    for stream in (io.StringIO(), Terminal()):
        clock = [1000.0]
        progress = LaunchProgress(stream, lambda clock=clock: clock[0])  # type: ignore[misc]
        for clock[0], event in zip(
            (1010.0, 1020.0, 1100.0, 1129.0, 1130.0), (*events, events[1], events[1]), strict=True
        ):
            if clock[0] <= 1100.0 or not stream.isatty():
                progress(event)
        shown.append(stream.getvalue())
    assert shown[0].splitlines() == [
        "     +90 s  image pulled",
        "    +100 s  the cloud answers again",
        f"    +2 min  step 7 of 110, {'long ' * 20}",
    ]
    live = "     +20 s  step 7 of 110, long long long"
    assert shown[1] == (
        f"\r\033[K     +90 s  image pulled\n\r\033[K{live[:39]}\r\033[K    +100 s  the cloud answers again\n"
    )


# The image.


class Docker:
    """The part of an engine that `launch gcp` asks; holds one image, and pushes it."""

    def __init__(self, *, holds: bool, denied: str = "") -> None:
        recipe = contents.make_recipe(contents.require_flavour("cuda"))
        labels = {contents.FLAVOUR_LABEL: "cuda", contents.INPUTS_LABEL: recipe.inputs}
        plain: dict[str, Any] = {"id": "sha256:1", "reference": "", "size_bytes": 1, "created": "", "labels": labels}
        own = Image(tags=("rooflaunch:cuda-ffffffffffff",), architecture="arm64", **plain)
        for_vms = Image(tags=("rooflaunch:cuda-0123456789ab",), architecture="amd64", **plain)
        self.held = [own, for_vms] if holds else [own]
        self.architecture = "arm64"
        self.denied = denied
        self.tagged: list[tuple[str, str]] = []

    def image(self, name: str) -> Image | None:
        assert name.startswith("debian:") or "/" in name or ":" in name
        return None

    def images(self, labels: dict[str, str]) -> list[Image]:
        return [each for each in self.held if each.labels == labels]

    def tag(self, image: str, name: str) -> None:
        self.tagged.append((image, name))

    def push(self, name: str) -> list[EngineEvent]:
        assert name == self.tagged[-1][1]
        return (
            [EngineEvent(error=self.denied)]
            if self.denied
            else [EngineEvent(text="pushed"), EngineEvent(digest="sha256:" + "a" * 64)]
        )

    def registry_digest(self, name: str) -> str:
        assert name == "host:5000/trainer:cuda"
        return "sha256:" + "b" * 64


def reference(world: World, image: str | None, repository: str = SETTINGS.repository) -> str:
    return backend.by_digest(world.engine, image) if image else backend.pushed_image(world.engine(), "cuda", repository)


@dataclass
class Registry:
    """The part of an engine that asks a registry what it has an image for."""

    platforms: frozenset[str]

    def registry_platforms(self, name: str) -> frozenset[str]:
        assert name == IMAGE
        return self.platforms


UNCHECKED = "whether the image is one for linux/amd64 is not checked: "


@pytest.mark.parametrize(
    ("platforms", "notes"),
    [
        ({"linux/amd64"}, ()),
        ({"linux/amd64", "linux/arm64"}, ()),
        (set(), (f"{UNCHECKED}its registry does not say",)),
    ],
)
def test_an_image_of_the_vms_architecture(platforms: set[str], notes: tuple[str, ...]) -> None:
    engine: Any = Registry(frozenset(platforms))
    assert backend._architecture_notes(lambda: engine, IMAGE) == notes


@pytest.mark.world
def test_an_image_that_no_vm_runs_is_refused_before_one_is_rented(
    launch: Launch, clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    engine: Any = Registry(frozenset({"linux/arm64"}))
    with clouds() as cloud:
        assert launch(world_of(cloud, engine=lambda: engine), *GCP) == 2
        assert capsys.readouterr().err == (
            f"error: '{IMAGE}' is an image for linux/arm64; the VMs are linux/amd64\nhint: --image with an "
            "image for linux/amd64, as `launch build --push` makes it\n"
        )
        assert cloud.fake.all_vms == []
        assert launch(world_of(cloud), *GCP) == 0
        assert f"note       {UNCHECKED}no Docker engine: " in capsys.readouterr().err


def with_docker(docker: Docker) -> World:
    engine: Any = docker
    return replace(NOWHERE, engine=lambda: engine)


def test_the_image_for_this_code_is_pushed_and_run_by_digest() -> None:
    docker = Docker(holds=True)
    assert reference(with_docker(docker), None) == f"{SETTINGS.repository}@sha256:{'a' * 64}"
    assert docker.tagged == [("sha256:1", f"{SETTINGS.repository}:cuda-0123456789ab")]


def test_an_image_that_is_not_there_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker(holds=False)
    made, asked = Docker(holds=True).held[1], []

    def build(_: object, recipe: contents.Recipe) -> building.Built:
        asked.append(recipe.platform)
        return building.held(recipe, made)

    monkeypatch.setattr("launcher.images.build.build", build)
    assert reference(with_docker(docker), None) == f"{SETTINGS.repository}@sha256:{'a' * 64}"
    assert asked == ["linux/amd64"], "the image of this machine is none for a VM"


@pytest.mark.parametrize(
    ("repository", "hint"),
    [
        (
            SETTINGS.repository,
            "gcloud auth configure-docker us-central1-docker.pkg.dev, then run the same command again",
        ),
        ("host:5000/trainer", "docker login, then launch build --push again"),
    ],
    ids=["artifact registry", "another"],
)
def test_a_push_that_is_denied_says_how_to_log_in(repository: str, hint: str) -> None:
    with pytest.raises(ToolError) as raised:
        reference(with_docker(Docker(holds=True, denied="denied: no")), None, repository)
    assert raised.value.report() == (
        f"error: '{repository}:cuda-0123456789ab' was not pushed: denied: no\nhint: {hint}"
    )


def test_a_tag_is_looked_up_and_a_digest_taken_as_it_is() -> None:
    assert reference(NOWHERE, IMAGE) == IMAGE
    docker = with_docker(Docker(holds=False))
    assert reference(docker, "host:5000/trainer:cuda") == f"host:5000/trainer@sha256:{'b' * 64}"
    with pytest.raises(ToolError) as raised:
        reference(replace(NOWHERE, engine=no_docker), "host:5000/trainer:cuda")
    assert raised.value.report() == (
        "error: --image needs a digest, but the digest of the tag 'host:5000/trainer:cuda' cannot be found: "
        "no Docker engine: /var/run/docker.sock does not exist\nhint: --image HOST/NAME@sha256:…, as "
        "`launch build --push` prints it"
    )
