"""What `launch slurm` is asked for, and the script that comes of it. No Slurm is asked."""

import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from launcher.backends.slurm.backend import backend
from launcher.backends.slurm.options import Options, Software, Where, time_s, time_text
from launcher.backends.slurm.plan import Cluster, NodeSoftware, SlurmPlan, check_script, job_script, make_plan
from launcher.protocol.backend import Job
from launcher.protocol.records import Request, Task
from tests.launcher.told import Golden, told
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, resolve

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


def test_times_are_read_as_sbatch_reads_them() -> None:
    times = {"30": 1800, "1:30": 90, "1:00:00": 3600, "1-12": 129600, "1-0:30": 88200, "2-01:02:03": 176523, "1": 60}
    for text, seconds in {**times, "120-0": 10368000}.items():
        assert time_s(text) == time_s(time_text(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "0", "0:59", "1h", "120-00:00:01", "1:2:3:4", "-5", "infinite", "1:00:00\n"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="--time must be a time as sbatch reads it") as raised:
        time_s(text)
    assert raised.value.hint == "--time 1:00:00"


BAD: dict[str, tuple[Options, dict[str, object]]] = {
    "two words": (Options(partition="a b"), {}),
    "an option": (Options(account="--wrap"), {}),
    "a line": (Options(qos="a\n#SBATCH"), {}),
    "shell": (Options(constraint="$(id)"), {}),
    "gres": (Options(gres="gpu:-1"), {}),
    "extra": (Options(sbatch=("-p gpu",)), {}),
    "extra line": (Options(sbatch=("--mem=1\nrm",)), {}),
    "ours": (Options(sbatch=("--array=1-3",)), {}),
    "cpu and gpu": (Options(gres="gpu:1"), {"device": Device.CPU}),
    "mps": (Options(), {"device": Device.MPS}),
    "no image": (Options(container=Software.PYXIS), {}),
    "an image for nothing": (Options(container=Software.NONE, image="a/b:c"), {}),
    "two pythons": (Options(python="python3", image="a/b:c"), {}),
    "no name": (Options(image="-rf"), {}),
    "python": (Options(python="-c"), {}),
    "fewer GPUs than devices": (Options(gres="gpu:a100:1"), {"devices": 2}),
    "price": (Options(usd_per_h=-1), {}),
    "nodes": (Options(sbatch=("--nodes=2",)), {}),
    "several machines in a container": (Options(image="a/b:c"), {"machines": 2}),
}


def test_options_that_cannot_be(golden: Golden) -> None:
    cases = {name: partial(plan, options, **given) for name, (options, given) in BAD.items()}
    golden("refused.txt", told(cases))


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


@pytest.fixture
def compared(golden: Golden) -> Golden:
    """Compare a script with the committed file; bash can read it."""

    def compare(name: str, script: str) -> None:
        golden(name, script)
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)

    return compare


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
def test_the_script_is_the_committed_one(name: str, case: tuple[Options, NodeSoftware, str], compared: Golden) -> None:
    options, node, gres = case
    plans = [plan(options, token=token) for token in ("abcdef", "123456")]
    compared(name, job_script(requests(plans), options, node, gres=gres))


@pytest.mark.world
def test_a_job_of_several_devices_asks_for_gpus_and_cpus(compared: Golden) -> None:
    two = plan(device=Device.CUDA, devices=2)
    compared("devices.sh", two.sent_text())
    assert "asks for   the default partition, gpu:2, --cpus-per-task=2\n" in two.text()
    assert "2 GPUs if the partition has any, --cpus-per-task=2\n" in plan(devices=2).text()
    more = plan(Options(gres="gpu:4", sbatch=("--cpus-per-gpu=8",)), devices=2)
    assert "asks for   the default partition, gpu:4, --cpus-per-gpu=8\n" in more.text()
    assert "no GPU, --cpus-per-task=2\n" in plan(device=Device.CPU, devices=2).text()


def test_job_of_several_machines_asks_for_nodes() -> None:
    one, two = (plan(Options(usd_per_h=0.5), device=Device.CPU, machines=number) for number in (1, 2))
    own = [line for line in two.sent_text().splitlines() if line not in one.sent_text().splitlines()]
    # The last line is the request.
    assert own[:-1] == ["#SBATCH --nodes=2", "#SBATCH --ntasks=2", "#SBATCH --ntasks-per-node=1"]
    title = "resnet18, the device's default batch, fp32, 2 machines"
    assert f"plan       {title}, on cpu; one run\n" in two.text(999)
    assert "asks for   the default partition, no GPU, 2 nodes\n" in two.text()
    assert "cost       1 USD per hour, as you said" in two.text(), "two nodes cost twice as much"


@pytest.mark.world
def test_the_check_of_a_node_is_the_committed_one(compared: Golden) -> None:
    options = replace(ASKED, image="/shared/it.sif")
    node = replace(NODE, container=Software.APPTAINER, image="/shared/it.sif")
    compared("check_image.sh", check_script("check-1", options, node, gres="gpu:1"))
    held = replace(options, sbatch=("--hold", "--begin=now+1hour", "--dependency=afterok:1"))
    assert check_script("check-1", held, node, gres="gpu:1") == check_script("check-1", options, node, gres="gpu:1")
    compared("check_python.sh", check_script("check-1", Options(), NODE, gres=""))


def test_the_plan_is_shown(golden: Golden) -> None:
    plans = [plan(replace(ASKED, usd_per_h=0.5), batch_size=8, repeats=3), plan(device=Device.CUDA)]
    texts = [one.text(1000) for one in (*plans, plan(device=Device.CPU), plan(Options(requeue=False)))]
    # A plan promises no other start than its partition gives.
    draft = plan()
    for mode in ("REQUEUE", "CANCEL", "OFF"):
        options = {**draft.request.options, "preempted": mode}
        lines = replace(draft, request=replace(draft.request, options=options)).text(1000).splitlines()
        texts += [f"{mode}: {line}" for line in lines if line.startswith("ends")]
    golden("plans.txt", "\n\n".join(texts) + "\n")


def test_the_record_is_readable() -> None:
    request = plan(replace(ASKED, image="/shared/it.sif")).request
    assert Request.from_bytes(request.to_bytes()).name == "rooflaunch-slurm-20261121-120000-abcdef"
    options = {"account": "lab", "qos": "short", "container": "auto", "requeue": True, "exclusive": True, "gres": []}
    told = Request.from_bytes(request.to_bytes()).options
    assert told == {**options, "partition": ["gpu"], "constraint": ["t4", "l4"]}


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
