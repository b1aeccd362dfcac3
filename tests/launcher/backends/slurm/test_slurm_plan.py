"""What `launch slurm` is asked for, and the script that comes of it. No Slurm is asked."""

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from launcher.backends.slurm.backend import backend
from launcher.backends.slurm.options import Options, Software, Where, time_s, time_text
from launcher.backends.slurm.plan import RESTARTS, Cluster, NodeSoftware, SlurmPlan, check_script, job_script, make_plan
from launcher.protocol.backend import Job
from launcher.protocol.records import Request, Task
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, resolve

SCRIPTS = Path(__file__).parent / "scripts"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CLUSTER = Cluster(login=None, root="/home/me/.rooflaunch")
NODE = NodeSoftware(
    root=CLUSTER.root,
    code="0123456789abcdef",
    guest="guests/slurm-x.py",
    container=Software.NONE,
    python="python3",
)


def plan(options: Options | None = None, token: str = "abcdef", task: Task | None = None, **given: object) -> SlurmPlan:
    resolved = resolve({"model": "resnet18", **given}, {}, None)
    return make_plan(resolved, options or Options(), CLUSTER, NODE, now=NOW, token=token, task=task)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("1:00:00", 3600),
        ("1-12", 129600),
        ("1-0:30", 88200),
        ("2-01:02:03", 176523),
        ("1", 60),
        ("120-0", 10368000),
    ],
)
def test_times_are_read_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert time_s(text) == seconds
    assert time_s(time_text(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "0", "0:59", "1h", "120-00:00:01", "1:2:3:4", "-5", "infinite", "1:00:00\n"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="--time must be a time as sbatch reads it") as raised:
        time_s(text)
    assert raised.value.hint == "--time 1:00:00"


BAD: Mapping[str, tuple[Options, dict[str, object], str, str]] = {
    "two words": (
        Options(partition="a b"),
        {},
        "--partition must be one word, as sbatch takes it; got 'a b'",
        "--partition NAME",
    ),
    "an option": (
        Options(account="--wrap"),
        {},
        "--account must be one word, as sbatch takes it; got '--wrap'",
        "--account NAME",
    ),
    "a line": (
        Options(qos="a\n#SBATCH"),
        {},
        "--qos must be one word, as sbatch takes it; got 'a\\n#SBATCH'",
        "--qos NAME",
    ),
    "shell": (
        Options(constraint="$(id)"),
        {},
        "--constraint must be one word, as sbatch takes it; got '$(id)'",
        "--constraint NAME",
    ),
    "gres": (Options(gres="gpu:-1"), {}, "--gres must be like gpu:1 or gpu:a100:2; got 'gpu:-1'", "--gres gpu:1"),
    "extra": (
        Options(sbatch=("-p gpu",)),
        {},
        "--sbatch takes one long option of sbatch; got '-p gpu'",
        "--sbatch OPTION, repeated for each option",
    ),
    "extra line": (
        Options(sbatch=("--mem=1\nrm",)),
        {},
        "--sbatch takes one long option of sbatch; got '--mem=1\\nrm'",
        "--sbatch OPTION, repeated for each option",
    ),
    "ours": (
        Options(sbatch=("--array=1-3",)),
        {},
        "--array is set by launch slurm itself; got '--array=1-3'",
        "leave it out",
    ),
    "cpu and gpu": (
        Options(gres="gpu:1"),
        {"device": Device.CPU},
        "--cpu needs no GPU; got --gres gpu:1",
        "one of the two",
    ),
    "mps": (Options(), {"device": Device.MPS}, "no node of a cluster has Apple's GPU; got --mps", "--cuda, or --cpu"),
    "no image": (
        Options(container=Software.PYXIS),
        {},
        "--container pyxis needs an image",
        "--image HOST/NAME@sha256:… or a .sif or .sqsh file",
    ),
    "an image for nothing": (
        Options(container=Software.NONE, image="a/b:c"),
        {},
        "--image is for a container; got --container none with a/b:c",
        "leave it out",
    ),
    "two pythons": (
        Options(python="python3", image="a/b:c"),
        {},
        "--python is for runs without an image, which has its own Python; got --python python3 with --image",
        "one of the two",
    ),
    "no name": (
        Options(image="-rf"),
        {},
        "'-rf' is neither an image's name nor the full path of a file",
        "--image ~/my.sif",
    ),
    "python": (Options(python="-c"), {}, "'-c' is not the path of a program", "--python ~/torch/bin/python"),
    "fewer GPUs than devices": (
        Options(gres="gpu:a100:1"),
        {"devices": 2},
        "each device needs a GPU; got --devices 2 with --gres gpu:a100:1",
        "--gres gpu:a100:2, or leave --gres out",
    ),
    "price": (Options(usd_per_h=-1), {}, "--usd-per-h must be a price in USD; got -1", "--usd-per-h 0.80"),
}


@pytest.mark.parametrize(("options", "given", "message", "hint"), BAD.values(), ids=BAD)
def test_options_that_cannot_be(options: Options, given: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan(options, **given)
    assert (str(raised.value), raised.value.hint) == (message, hint)


@pytest.mark.parametrize("folder", ["", "results", "/", "~", "~/", "~me/x", "/a/../b", "/a\nb"])
def test_folders_that_nobody_can_mean(folder: str) -> None:
    if not folder:
        assert backend.settings(Where(folder=None)).root.endswith("/.rooflaunch")
        return
    with pytest.raises(UsageError, match="--folder must be a full path"):
        backend.settings(Where(folder=folder))


def test_where_jobs_are_submitted() -> None:
    assert backend.settings(Where(folder="/scratch/me/")) == Cluster(login=None, root="/scratch/me")
    far = backend.settings(Where(host="me@login.cluster"))
    assert (far.place, far.root) == ("me@login.cluster", "~/.rooflaunch")
    with pytest.raises(UsageError, match="--port needs --host; got only --port 22"):
        backend.settings(Where(port=22))


def compared(name: str, script: str) -> None:
    """With the committed file; bash can read it."""
    path = SCRIPTS / name
    assert script == path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)


def requests(plans: list[SlurmPlan]) -> list[Request]:
    return [one.request for one in plans]


ASKED = Options(
    partition="gpu", account="lab", qos="short", constraint="t4|l4", exclusive=True, time_s=5400, at_a_time=4,
    sbatch=("--mem=16G", "--mail-type=END"),
)  # fmt: skip
SOFTWARE = {
    "python.sh": (Options(), NODE, ""),
    "apptainer.sh": (
        replace(ASKED, image="~/rooflaunch.sif"),
        replace(NODE, container=Software.APPTAINER, image="~/rooflaunch.sif", with_gpu=True),
        "gpu:1",
    ),
    "apptainer_registry.sh": (
        Options(requeue=False),
        replace(NODE, container=Software.APPTAINER, image="ghcr.io/me/it@sha256:ab", apptainer="/usr/bin/singularity"),
        "",
    ),
    "pyxis.sh": (
        Options(partition="gpu"),
        replace(NODE, root="~/.rooflaunch", container=Software.PYXIS, image="ghcr.io#me/it:1", with_gpu=True),
        "gpu:a100:1",
    ),
}


@pytest.mark.parametrize(("name", "case"), SOFTWARE.items(), ids=SOFTWARE)
@pytest.mark.world
def test_the_script_is_the_committed_one(name: str, case: tuple[Options, NodeSoftware, str]) -> None:
    options, node, gres = case
    plans = [plan(options, token=token) for token in ("abcdef", "123456")]
    compared(name, job_script(requests(plans), options, node, gres=gres))


@pytest.mark.world
def test_a_job_of_several_devices_asks_for_gpus_and_cpus() -> None:
    two = plan(device=Device.CUDA, devices=2)
    compared("devices.sh", two.sent_text())
    assert "asks for   the default partition, gpu:2, --cpus-per-task=2\n" in two.text()
    assert "2 GPUs if the partition has any, --cpus-per-task=2\n" in plan(devices=2).text()
    more = plan(Options(gres="gpu:4", sbatch=("--cpus-per-gpu=8",)), devices=2)
    assert "asks for   the default partition, gpu:4, --cpus-per-gpu=8\n" in more.text()
    assert "no GPU, --cpus-per-task=2\n" in plan(device=Device.CPU, devices=2).text()


@pytest.mark.world
def test_the_check_of_a_node_is_the_committed_one() -> None:
    options = replace(ASKED, image="/shared/it.sif")
    node = replace(NODE, container=Software.APPTAINER, image="/shared/it.sif")
    compared("check_image.sh", check_script("check-1", options, node, gres="gpu:1"))
    held = replace(options, sbatch=("--hold", "--begin=now+1hour", "--dependency=afterok:1"))
    assert check_script("check-1", held, node, gres="gpu:1") == check_script("check-1", options, node, gres="gpu:1")
    compared("check_python.sh", check_script("check-1", Options(), NODE, gres=""))


def test_the_plan_is_shown() -> None:
    shown = plan(replace(ASKED, usd_per_h=0.5), batch_size=8, repeats=3).text()
    assert (
        shown.splitlines()[0]
        == "plan       resnet18, batch 8, fp32, on the best device found; 3 runs, each in its own process"
    )
    asked = "partition gpu, a GPU if the partition has any, account lab, qos short, constraint t4|l4, the whole node"
    assert f"asks for   {asked}, --mem=16G, --mail-type=END" in shown
    assert "limit      90 min (1:30:00), enforced by Slurm" in shown
    assert "cost       0.5 USD per hour, as you said" in shown
    assert "asks for   the default partition, gpu:1" in plan(device=Device.CUDA).text()
    assert "asks for   the default partition, no GPU" in plan(device=Device.CPU).text()


@pytest.mark.parametrize(
    ("mode", "requeue", "ends"),
    [
        ("REQUEUE", True, "missing runs are started again after a preemption or a node's failure"),
        ("CANCEL", True, "missing runs are started again after a node's failure"),
        ("OFF", True, "missing runs are started again after a node's failure"),
        (
            "",
            True,
            f"missing runs are started again after {RESTARTS['']}",
        ),
        ("REQUEUE", False, "not started again after a preemption"),
    ],
)
def test_a_plan_promises_no_other_start_than_its_partition_gives(mode: str, requeue: bool, ends: str) -> None:
    draft = plan(Options(requeue=requeue))
    told = {**draft.request.options, **({"preempted": mode} if mode else {})}
    shown = replace(draft, request=replace(draft.request, options=told)).text(1000)
    assert f"ends       {ends}" in shown.splitlines()


def test_the_record_is_readable() -> None:
    request = plan(replace(ASKED, image="/shared/it.sif")).request
    assert Request.from_bytes(request.to_bytes()).name == "rooflaunch-slurm-20261121-120000-abcdef"
    assert Request.from_bytes(request.to_bytes()).options == {
        "account": "lab",
        "qos": "short",
        "container": "auto",
        "requeue": True,
        "exclusive": True,
        "partition": ["gpu"],
        "constraint": ["t4", "l4"],
        "gres": [],
    }


@pytest.mark.world
def test_nobody_is_asked_for_a_draft() -> None:
    job = Job(resolved=resolve({}, {}, None), token="abcdef")
    draft = backend.plan(job, Options(), backend.settings(Where(host="nowhere.invalid")), now=NOW, offline=True)
    assert "nowhere.invalid, which was not contacted yet" in draft.text()
    assert '\nroot="$HOME"/.rooflaunch array=' in draft.sent_text()
    assert "#SBATCH --output=.rooflaunch/arrays/rooflaunch-slurm-20261121-120000-abcdef/%a.log" in draft.sent_text()


def test_the_shared_folder_is_made_where_it_is_missing(tmp_path: Path) -> None:
    cluster = Cluster(login=None, root=str(tmp_path / "new" / "rooflaunch"))
    for _ in ("first launch", "second launch"):
        assert str(backend.store(cluster)) == f"folder '{cluster.root}'"
    assert Path(cluster.root).stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(ToolError) as caught:
        backend.store(replace(cluster, root=str(tmp_path / "file" / "rooflaunch")))
    assert caught.value.report() == (
        f"error: '{tmp_path}/file/rooflaunch' cannot be made: Not a directory\nhint: --folder FOLDER, with a "
        "folder that the nodes share"
    )
