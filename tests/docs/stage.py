"""Surroundings in which commands of our pages run: a checkout, a home folder, small runs, and stand-ins for clouds."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import Image

from analysis.importing import UserFacts, import_file
from benchmarks.synthetic_bundles import make
from launcher.backends.gcp.plan import Options, make_plan
from launcher.cli.sweep import MATRICES
from tests.docs.pages import ROOT
from tests.launcher.backends.gcp.canned_cloud import IMAGE, SETTINGS, ZONE, clouds_on
from tests.workload.storage.gcs_server import BUCKET, running
from workload.contract import allocations
from workload.contract.allocations import Allocation, Kind
from workload.contract.bundle import seal
from workload.contract.spec import resolve

# Token of a finished launch, as the pages write it.
TOKEN = "3fa9c1"
# Settings of runs that take hardly longer than importing torch.
SMALL = {"IMAGE_SIZE": "32", "WARMUP": "1", "ITERATIONS": "2"}
STANDINS = ("aws", "gcloud", "terraform")
# Files and folders of a checkout that commands of pages read. `infra` is copied, because a page writes a file into it.
LINKED = ("Makefile", "pyproject.toml", "constraints.txt", "benchmarks", "docker", "docs", "tests")
LOG = "env,device,model,batch_size,iter_idx,iter_time_ms,imgs_per_sec,timestamp\n" + "".join(
    f"envA,cuda:0,resnet50,64,{index},150,426.67,{1763159640 + 0.2 * index:.1f}\n" for index in range(11)
)
SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
NCU = f"""\
"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size","Device","CC",\
"device__attribute_display_name","gpu__time_duration.sum","dram__bytes.sum",\
"{SASS.format("fadd")}","{SASS.format("fmul")}","{SASS.format("ffma")}"
"","","","","","","","","","ns","byte","inst","inst","inst"
"0","1","python","add","(1, 1, 1)","(1, 1, 1)","0","7.5","Tesla T4","2000","4096","100","10","1000"
"1","1","python","mul","(1, 1, 1)","(1, 1, 1)","0","7.5","Tesla T4","1000","1024","0","50","0"
"""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Folder and environment in which the commands of a page run."""

    folder: Path
    environment: dict[str, str]

    def run(self, line: str, *, limit_s: float) -> subprocess.CompletedProcess[str]:
        """Run a line of a page in a new shell."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )


@contextmanager
def staged(home: Path, *, engine: bool = False) -> Iterator[Stage]:
    """Create the stage below `home`; the fake Compute Engine and bucket live as long as the stage.

    `engine`: this machine's Docker engine can be reached.
    """
    folder = home / "rooflaunch"
    folder.mkdir(parents=True)
    _checkout(folder)
    _home(home)
    _results(folder)
    no_engine = {"DOCKER_HOST": f"unix://{home}/no-engine.sock"}
    with running(home / "gcs.log") as server, pytest.MonkeyPatch.context() as patch:
        server.make_bucket(SETTINGS.bucket.replace(BUCKET, "my-project-rooflaunch"))
        with clouds_on(server, home, patch)() as cloud:
            options = Options(gpu="t4", zones=(ZONE,))
            now = datetime.fromtimestamp(cloud.clock.now(), UTC)
            cloud.run(make_plan(resolve({}, {}, None), options, SETTINGS, image=IMAGE, now=now, token=TOKEN))
            yield Stage(folder=folder, environment=_environment(home) | ({} if engine else no_engine))


def _checkout(folder: Path) -> None:
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    # A container of a script sees no more than the folder that its user is in.
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "infra", folder / "infra", ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    environment = folder / ".venv"
    environment.mkdir()
    for item in Path(sys.prefix).iterdir():
        if item.name != ".ready":
            (environment / item.name).symlink_to(item)
    # `make` sets up nothing where this is newer than pyproject.toml.
    (environment / ".ready").touch()


def _home(home: Path) -> None:
    for index in range(24):
        path = home / "photos" / ("cat", "dog")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((80, 60), 40 + index).convert("RGB").save(path)
    programs = home / "programs"
    programs.mkdir()
    for name in STANDINS:
        program = programs / name
        program.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("foreign.py")}" {name} "$@"\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)


def _results(folder: Path) -> None:
    """Make repeats in two precisions and two zones, an imported log, an imported profile, and files to import."""
    number = 0
    for precision, zone in (("fp32", "us-central1-a"), ("amp", "us-central1-a"), ("fp32", "us-central1-b")):
        for _ in range(3):
            number += 1
            place = {"environment__place": f"gcp-t4-{zone}", "environment__cloud__zone": zone}
            make(folder / "results", number, spec__precision=precision, **place)
    _add_memory(make(folder / "results", number + 2, step_memory={"peak_bytes": 10**9, "samples": 32}))
    for matrix in MATRICES.glob("*.toml"):
        shutil.copy(matrix, folder)
    (folder / "log.csv").write_text(LOG)
    (folder / "ncu.csv").write_text(NCU)
    profiled = folder / "profiled.csv"
    profiled.write_text(NCU.replace("4096", "8192"))
    import_file(profiled, UserFacts(model="resnet50", batch_size=64), output=folder / "results")
    make(folder.parent / "shared" / "experiment" / "runs", number + 1)


def _add_memory(run: Path) -> None:
    kept = Allocation(kind=Kind.ACTIVATIONS, size_bytes=10**9, bytes_per_sample=10**9 / 32, born=0, died=1)
    allocations.write(run / allocations.FILE, [kept])
    seal(run)


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "CLOUDSDK_"))}
    return {
        **kept,
        **{f"ROOFLAUNCH_{name}": value for name, value in SMALL.items()},
        "HOME": str(home),
        "PATH": f"{home / 'programs'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GOOGLE_CLOUD_PROJECT": "my-project",
        "ROOFLAUNCH_BUCKET": BUCKET,
    }
