"""Real runs of the trainer with tiny configurations, and their bundles."""

import errno
import gc
import json
import logging
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count as counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from tests.waiting import until
from tests.workload.fake_cuda import FakeCuda
from tests.workload.script_stage import trainer
from workload import cli
from workload.contract import bundle
from workload.contract.allocations import Kind
from workload.contract.errors import ExitCode
from workload.contract.record import Record, Spec, Status, Timing
from workload.contract.record_sections import DeviceFacts, Environment, HostFacts
from workload.contract.spec import Device, Resolved, RunSpec
from workload.contract.trainer import Context
from workload.measure import energy, telemetry
from workload.model import models
from workload.run import train
from workload.run.life import Life

pytestmark = [pytest.mark.world, pytest.mark.slow]
AT_NIGHT = pytest.mark.night(part="trainer")

TINY = ["--model", "resnet18", "--device", "cpu", "--image-size", "32", "--batch-size", "2", "--warmup", "1"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str, ceilings: bool = False) -> tuple[int, Path]:
    """The exit code and the newest bundle of `train` with small defaults, in this process."""
    given = [*TINY, "-o", "out", *([] if ceilings else ["--no-ceilings"]), *words]
    code = cli.main(["train", *given])
    folders = [path for path in Path("out").iterdir() if path.is_dir()] if Path("out").exists() else []
    return code, max(folders, key=lambda path: path.stat().st_ctime_ns, default=Path("none"))


def record_of(folder: Path) -> dict[str, Any]:
    return dict(bundle.read(folder).document)


IDLE = "the run got 1.0 of 2 CPUs"


def test_completed_run_holds_together(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    running, prepare = list[str](), Life.prepare

    def note(life: Life) -> None:
        running.extend(thread.name for thread in threading.enumerate())
        prepare(life)

    monkeypatch.setattr(Life, "prepare", note)
    code, folder = run("--iterations", "12")
    captured = capsys.readouterr()
    assert code == ExitCode.DONE
    assert captured.out == f"{folder}\n", "stdout is the bundle's folder and nothing else"
    assert running, "facts of the host are collected by a thread, which must not disturb the steps"
    assert "environment" not in running
    assert gc.get_freeze_count() == 0, "as before the run"
    found = bundle.read(folder)
    files = {"run.json", "allocations.csv", "steps.csv", "telemetry.csv", "log.txt"}
    assert files == {file.name for file in found.files}
    memory = found.record.step_memory
    assert memory is not None
    assert sum(getattr(memory, f"{kind}_bytes") for kind in Kind) == memory.peak_bytes > 0
    record, steps = found.document, found.steps()
    assert (record["status"], record["error"], record["run_id"]) == ("completed", None, folder.name)
    assert [row["phase"] for row in steps] == ["warmup"] + ["measured"] * 12
    timing = record["timing"]
    assert (timing["images"], timing["skipped_steps"]) == (24, None), "only AMP skips steps"
    assert timing["images_per_s"] == pytest.approx(24 / timing["measured_s"])
    measured = [float(row["step_s"]) + float(row["data_s"]) for row in steps[1:]]
    assert sum(measured) / timing["measured_s"] == pytest.approx(timing["explained_fraction"], abs=1e-3)
    assert timing["explained_fraction"] == pytest.approx(1, abs=0.02)
    for row in steps:
        parts = sum(float(row[name]) for name in ("forward_s", "backward_s", "optimizer_s"))
        assert parts == pytest.approx(float(row["step_s"]), abs=1e-6)
    assert list(timing["phases"]) == ["start", "prepare", "environment", "setup", "warmup", "measured", "finish", "end"]
    assert list(timing["phases"].values()) == sorted(timing["phases"].values())
    assert float(steps[0]["ended_at_s"]) > timing["phases"]["warmup"]
    assert timing["phases"]["measured"] < float(steps[-1]["ended_at_s"]) < timing["phases"]["end"]
    assert record["usage"]["max_rss_bytes"] > 100e6
    assert record["environment"]["place"] == "local-cpu"
    assert record["environment"]["host"]["hostname"]
    assert torch.get_float32_matmul_precision() == "highest", "fp32 is fp32"
    assert not torch.backends.cudnn.allow_tf32


def test_energy_is_that_of_the_measured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that takes 50 W all the time."""
    counter = energy.Counter(read_j=lambda: 50 * time.perf_counter())
    monkeypatch.setattr(energy, "rapl_counters", lambda _: [counter])
    _, folder = run("--iterations", "12")
    found, measured_s = record_of(folder)["energy"], record_of(folder)["timing"]["measured_s"]
    joules = pytest.approx(50 * measured_s, rel=0.02)
    assert found == {"joules": joules, "source": "rapl", "seconds": measured_s, "idle_w": None}


@dataclass
class Bar:
    """A progress bar that keeps what it is told to expect."""

    totals: list[int] = field(default_factory=list)

    def expect(self, total: int) -> None:
        self.totals.append(total)


@pytest.mark.parametrize(
    ("count", "least_s", "step_s", "steps"),
    [
        (100, 3.0, 0.005, 600),  # resnet18 at batch 32 on an H100
        (100, 3.0, 0.03, 100),  # the count alone takes 3 s
        (20, 0.0, 0.005, 20),
        (1, 3.0, 5.0, 1),
        (1, 3.0, 2.0, 2),
        (0, 0.0, 1.0, 0),
    ],
)
def test_a_measured_region_has_a_least_duration(
    count: int, least_s: float, step_s: float, steps: int, logged: list[logging.LogRecord]
) -> None:
    bar, now_s, taken = Bar(), [0.0], 0
    for _ in train.at_least(count, least_s, bar, now=lambda: round(now_s[0], 6)):  # type: ignore[arg-type]
        now_s[0] += step_s
        taken += 1
    assert taken == steps
    said = [f"measured   {count} step{'' if count == 1 else 's'} took less than {least_s:g} s: adding "]
    assert [record.getMessage().partition("more")[0] for record in logged] == (said if steps > count else [])
    assert bar.totals[-1:] == ([steps] if steps > count else [])
    assert all(total >= count for total in bar.totals)


def test_ranks_wait_for_queued_steps_before_more_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host queues 5 steps of 0.4 s in no time."""
    cuda, asked = FakeCuda(monkeypatch), list[float]()
    group = SimpleNamespace(device=Device.CUDA, more_steps=lambda _, taken_s, __: asked.append(taken_s))
    list(train.at_least(5, 2.0, Bar(), group, now=lambda: 2.0 * len(cuda.waits)))  # type: ignore[arg-type]
    assert asked == [2.0]


def test_group_of_ranks_is_told_the_gpu_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch).current = 1
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    joined: list[Any] = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **given: joined.append(given["device_id"]))
    train.Group.join(Device.CUDA)
    train.Group.join(Device.CPU)
    assert joined == [torch.device("cuda:1"), None]


def test_steps_are_added_and_counted(
    images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of three batches advances a fake clock by 0.3 s."""
    ticks = counter()
    monkeypatch.setattr(train, "at_least", partial(train.at_least, now=lambda: 0.3 * next(ticks)))
    data = ["--dataset", str(images), "--workers", "0", "--grad-accumulation", "3", "--precision", "bf16"]
    code, folder = run("--iterations", "1", "--min-seconds", "0.5", *data)
    record = record_of(folder)
    measured = [row for row in bundle.read(folder).steps() if row["phase"] == "measured"]
    assert code == ExitCode.DONE
    assert record["timing"]["step_s"]["n"] == len(measured) == 2
    assert record["timing"]["images"] == 2 * 3 * 2
    assert (record["spec"]["iterations"], record["spec"]["min_seconds"]) == (1, 0.5)
    said = capsys.readouterr().err
    assert "measured   1 step took less than 0.5 s: adding more steps (--min-seconds)" in said
    assert "measured   2/2 steps" in said


def test_steps_that_amp_skipped_are_recorded_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second and third loss are infinite, the others small: of 1 warm-up step none, of 4 measured steps two."""
    plain, taken = models.loss, iter(range(100))
    scale = {1: float("inf"), 2: float("inf")}

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        is_counted = isinstance(output, FakeTensor)
        return plain(output, labels) * (1.0 if is_counted else scale.get(next(taken), 1e-4))

    monkeypatch.setattr(models, "loss", loss)
    code, folder = run("--iterations", "4", "--precision", "amp", "--model", "squeezenet1_1")
    record = record_of(folder)
    assert (code, record["timing"]["skipped_steps"]) == (ExitCode.DONE, {"warmup": 0, "measured": 2})
    note = "AMP skipped 2 of 4 measured steps: a gradient overflowed in fp16, and the optimizer was skipped"
    assert note in record["notes"]
    assert f"note       {note}" in capsys.readouterr().err


@AT_NIGHT
@pytest.mark.parametrize(
    "words",
    [
        ["--channels-last", "--deterministic", "--optimizer", "adamw"],
        ["--model", "mobilenet_v2"],
        ["--model", "mobilenet_v3_small"],
        ["--model", "vgg16"],
        ["--model", "vit_b_16"],
        ["--model", "googlenet", "--image-size", "64"],
        ["--warmup", "0"],
    ],
    ids=" ".join,
)
def test_options_run(words: list[str]) -> None:
    code, folder = run("--iterations", "2", *words)
    assert code == ExitCode.DONE
    record = record_of(folder)
    assert record["timing"]["images"] == 4
    assert record["complexity"]["train_flop_per_step"] > record["complexity"]["forward_mac_per_image"] * 2 * 2 * 2


@pytest.mark.parametrize(
    ("device", "used", "waited", "note"),
    [
        ("cpu", 1.0, None, f"{IDLE}: other processes used the CPUs, or one thread did most of the work"),
        ("cpu", 1.0, 0.0, f"{IDLE} and did not wait for more: one thread did most of the work"),
        # Then the verdict says so.
        ("cpu", 1.0, 1.0, None),
        ("cpu", 1.6, 0.4, None),
        ("cpu", None, None, None),
        ("cuda", 0.1, 0.0, None),
    ],
)
def test_a_run_that_kept_few_threads_busy_says_why(
    device: str, used: float | None, waited: float | None, note: str | None
) -> None:
    record = Record(
        run_id="run-1",
        status=Status.COMPLETED,
        spec=Spec(model="resnet18", batch_size=4, device=device),
        environment=Environment(device=DeviceFacts(threads=2)),
        timing=Timing(cpus_used=used, cpus_waited=waited),
    )
    notes = train._idle_cpus(record)
    assert [text.partition("; load average")[0] for text in notes] == ([note] if note else [])


def test_more_threads_than_cpus_wait_for_each_other_not_for_other_processes() -> None:
    record = Record(
        run_id="run-1",
        status=Status.COMPLETED,
        spec=Spec(model="resnet18", batch_size=4, device="cpu"),
        environment=Environment(device=DeviceFacts(threads=4), host=HostFacts(cpus_allowed=2)),
        timing=Timing(cpus_used=0.8, cpus_waited=0.5),
    )
    assert train._idle_cpus(record) == [
        "the run got 0.8 of 4 CPUs: it has more threads than CPUs, and they wait for each other"
    ]


@pytest.mark.usefixtures("without_doubt")
def test_ceilings_come_first_and_are_reused_unless_fresh_ones_are_requested() -> None:
    lines: tuple[list[str], ...] = ([], [], ["--fresh-ceilings"])
    measured, reused, fresh = (record_of(run("--iterations", "1", *words, ceilings=True)[1]) for words in lines)
    assert measured["ceilings"]["age_s"] == fresh["ceilings"]["age_s"] == 0
    assert reused["ceilings"]["age_s"] > 0
    assert measured["ceilings"]["flop_per_s"] == reused["ceilings"]["flop_per_s"]
    assert list(measured["timing"]["phases"]).index("ceilings") < list(measured["timing"]["phases"]).index("warmup")
    complexity, rate = measured["complexity"], measured["ceilings"]["flop_per_s"]["fp32"]
    ceiling = rate.get("sustained") or rate["median"]
    assert complexity["theoretical_step_s"] == pytest.approx(complexity["train_flop_per_step"] / ceiling)
    assert measured["bound"]["bound"] in {"input", "overhead", "compute", "memory", "neither", None}


@AT_NIGHT
@pytest.mark.usefixtures("without_doubt")
def test_the_device_cools_down_after_the_ceilings_and_before_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    readings, slept = iter([40.0, 47.0, 44.0, 61.0]), list[float]()
    monkeypatch.setattr("workload.run.life.thermometer_of", lambda _: lambda: next(readings))
    monkeypatch.setitem(telemetry.settle.__kwdefaults__ or {}, "sleep", slept.append)
    record = record_of(run("--iterations", "1", "--context", '{"settles": true}', ceilings=True)[1])
    settled = {"target_c": 40.0, "before_c": 47.0, "after_c": 44.0, "is_reached": True}
    assert record["settling"].items() >= settled.items()
    assert slept == [telemetry.LOOK_EVERY_S]
    phases = list(record["timing"]["phases"])
    assert phases.index("ceilings") < phases.index("settle") < phases.index("setup") < phases.index("warmup")
    # The first run of a block in a sweep measures new ceilings, the others take them.
    told = '{"settles": true, "settle_to_c": 60.0, "kept_ceilings": "none"}'
    later = record_of(run("--iterations", "1", "--context", told, ceilings=True)[1])
    assert later["ceilings"]["age_s"] == 0
    settled = {"target_c": 60.0, "before_c": 61.0, "after_c": 61.0, "waited_s": 0.0, "is_reached": True}
    assert later["settling"] == settled
    plain = record_of(run("--iterations", "1", "--context", '{"kept_ceilings": "block"}', ceilings=True)[1])
    assert (plain["settling"], plain["ceilings"]["age_s"] > 0) == (None, True)


@AT_NIGHT
@pytest.mark.usefixtures("without_doubt")
def test_a_run_above_its_ceiling_measures_again_and_the_next_run_uses_that() -> None:
    run("--iterations", "1", ceilings=True)
    cache = Path("out", ".ceilings.json")
    poisoned = json.loads(cache.read_text())
    for name in ("median", "best", "min", "p5", "p95"):
        poisoned["ceilings"]["flop_per_s"]["fp32"][name] = 1e6
    cache.write_text(json.dumps(poisoned))
    _, folder = run("--iterations", "1", ceilings=True)
    record = record_of(folder)
    assert record["ceilings"]["age_s"] == 0
    assert record["ceilings"]["flop_per_s"]["fp32"]["median"] != 1e6
    assert "this machine's ceilings are measured again" in (folder / "log.txt").read_text()
    said = [note for note in record["notes"] if "the ceilings were measured again after the run" in note]
    assert len(said) == 1
    assert "of the fp32 ceiling measured before the run, 1 MFLOP/s" in said[0]
    phases = list(record["timing"]["phases"])
    assert phases.index("measured") < phases.index("ceilings_again") < phases.index("finish")
    _, after = run("--iterations", "1", ceilings=True)
    assert record_of(after)["ceilings"]["flop_per_s"] == record["ceilings"]["flop_per_s"]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--model", "resnet19"], "unknown model 'resnet19'", "resnet18"),
        (["--batch-size", "0"], "batch size must be a positive integer; got '0'", "--batch-size 32"),
        (["--precision", "tf32"], "precision tf32 needs an NVIDIA GPU", "--precision fp32"),
        (["--dataset", "absent"], "data set 'absent' is neither a folder nor one of", "FOLDER/<class>/<image>.jpg"),
        (["--context", "x"], "--context is only for launchers", "leave --context out"),
        (["-o", "/proc/out"], "output folder '/proc/out' cannot be written", "-o FOLDER"),
        (["--model", "vit_b_16", "--image-size", "33"], "vit_b_16", "--image-size"),
        pytest.param(
            ["--device", "cuda"],
            f"no CUDA device: torch {torch.__version__}",
            "--cpu runs without a GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_leave_nothing(words: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(*words)
    error = capsys.readouterr().err.strip().splitlines()
    assert code == ExitCode.USAGE
    assert len(error) == 2, error
    assert error[0].startswith("error: ")
    assert message in error[0]
    assert error[1].startswith("hint: ")
    assert hint in error[1]
    assert not list(Path().rglob("run.json"))


def test_environment_and_config_of_the_folder_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rooflaunch.toml").write_text("iterations = 2\nseed = 5\n")
    monkeypatch.setenv("ROOFLAUNCH_SEED", "6")
    _, folder = run()
    record = record_of(folder)
    assert (record["spec"]["iterations"], record["spec"]["seed"]) == (2, 6)
    assert record["spec_origin"]["iterations"] == "rooflaunch.toml"
    assert record["spec_origin"]["seed"] == "environment"
    _, told = run("--iterations", "1", "--context", '{"spec_origin": {"model": "rooflaunch.toml"}}')
    record = record_of(told)
    assert record["spec"]["seed"] == 0, "a launcher has settled everything"
    assert record["spec_origin"]["model"] == "rooflaunch.toml"


def test_out_of_memory_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    code, folder = run("--batch-size", "1000000", "--image-size", "1024")
    assert code == ExitCode.OUT_OF_MEMORY
    record = record_of(folder)
    assert record["status"] == "out_of_memory"
    assert record["error"] == "resnet18 at batch size 1000000 in fp32 does not fit into the cpu's memory"
    assert "hint: --batch-size 500000" in capsys.readouterr().err
    assert record["complexity"]["train_flop_per_step"] > 0


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (RuntimeError("cuDNN error: x\nmore"), ExitCode.RUN_FAILED, "failed"),
        (torch.OutOfMemoryError("y"), ExitCode.OUT_OF_MEMORY, "out_of_memory"),
        (OSError(errno.EMFILE, "Too many open files"), ExitCode.RUN_FAILED, "failed"),
    ],
)
def test_step_that_fails_keeps_what_was_measured(
    error: Exception, code: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(4, error, monkeypatch)
    found, folder = run("--iterations", "9")
    assert found == code
    record = record_of(folder)
    assert record["status"] == status
    assert len(bundle.read(folder).steps()) == 4
    assert record["timing"]["images"] == 6
    assert "Traceback" in (folder / "log.txt").read_text()


def test_the_time_of_a_step_that_was_broken_off_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of an unfinished step do not count, so its time must not count either."""
    plain, taken, unfinished_s = models.loss, counter(), 0.5

    def loss(*given: torch.Tensor) -> torch.Tensor:
        if next(taken) == 4:
            time.sleep(unfinished_s)
            raise RuntimeError("broken off")
        return plain(*given)

    monkeypatch.setattr(models, "loss", loss)
    code, folder = run("--iterations", "9")
    assert code == ExitCode.RUN_FAILED
    timing, steps = bundle.read(folder).record.timing, bundle.read(folder).steps()
    measured = [row for row in steps if row["phase"] == "measured"]
    ended_s, began_s = float(measured[-1]["ended_at_s"]), (timing.phases or {})["measured"] or 0.0
    assert timing.images == 2 * len(measured) > 0
    assert timing.measured_s == pytest.approx(ended_s - began_s, abs=1e-6)
    assert timing.images_per_s == pytest.approx(timing.images / (ended_s - began_s))


@pytest.fixture
def any_algorithm() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("any_algorithm")
def test_an_operation_that_is_never_deterministic_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`put_` has no deterministic version on a CPU; on a GPU the backward pass of adaptive pooling has none."""

    def loss(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))
        return output.sum()

    monkeypatch.setattr(models, "loss", loss)
    code, folder = run("--iterations", "1", "--deterministic")
    said = f"resnet18 uses put_, but torch {torch.__version__} has no deterministic version of it"
    assert (code, record_of(folder)["error"]) == (ExitCode.RUN_FAILED, said)
    shown = capsys.readouterr().err
    hint = (
        "leave --deterministic out, or use a model without that operation; alexnet and vgg use adaptive "
        "pooling, resnets and mobilenets do not on a GPU"
    )
    assert shown.splitlines()[-2:] == [f"error: {said}", f"hint: {hint}"]
    assert "Traceback" not in shown


def test_bug_of_ours_keeps_its_traceback_and_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(2, ValueError("a bug"), monkeypatch)
    with pytest.raises(ValueError, match="a bug"):
        run("--iterations", "9")
    (folder,) = (path for path in Path("out").iterdir() if path.is_dir())
    assert record_of(folder)["status"] == "failed"


def fail_at(step: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = train.TrainingStep.__call__, iter(range(10_000))

    def failing(self: train.TrainingStep, *arguments: Any) -> torch.Tensor:
        if next(calls) == step:
            raise error
        return plain(self, *arguments)

    monkeypatch.setattr(train.TrainingStep, "__call__", failing)


def start(*words: str, file_limit_bytes: int | None = None) -> subprocess.Popen[str]:
    process = trainer(Path(), "train", *TINY, "-o", "out", "--no-ceilings", *words)
    if file_limit_bytes:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (file_limit_bytes, file_limit_bytes))
    return process


def wait_for_steps(process: subprocess.Popen[str], count: int) -> Path:
    folder = Path(process.stdout.readline().strip())
    until(
        lambda: (folder / "steps.csv").exists() and len(bundle.read_steps(folder)) >= count,
        f"no {count} steps",
    )
    return folder


@pytest.mark.parametrize(
    ("number", "said"),
    [
        pytest.param(signal.SIGINT, "interrupted by Ctrl-C", id="SIGINT"),
        pytest.param(signal.SIGTERM, "interrupted by SIGTERM", id="SIGTERM", marks=AT_NIGHT),
        pytest.param(signal.SIGHUP, "interrupted: the terminal was closed", id="SIGHUP", marks=AT_NIGHT),
    ],
)
def test_signal_leaves_an_interrupted_bundle(number: signal.Signals, said: str) -> None:
    with start("--iterations", "100000") as process:
        folder = wait_for_steps(process, 5)
        process.send_signal(number)
        process.send_signal(signal.SIGTERM)  # as a launcher passes on what the terminal has sent to both
        _, error = process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert f"error: {said}" in error
    assert "Traceback" not in error
    record = record_of(folder)
    assert (record["status"], record["error"]) == ("interrupted", said)
    steps = bundle.read(folder).steps()
    assert record["timing"]["images"] == 2 * (len(steps) - 1) >= 8


def test_signal_while_sealing_does_not_lose_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = bundle.seal

    def seal(folder: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        plain(folder)

    monkeypatch.setattr(bundle, "seal", seal)
    code, folder = run("--iterations", "1")
    assert code == ExitCode.DONE
    assert record_of(folder)["status"] == "completed"


def test_kill_leaves_readable_steps_and_no_manifest() -> None:
    with start("--iterations", "100000") as process:
        folder = wait_for_steps(process, 5)
        process.kill()
        process.communicate()
    assert len(bundle.read_steps(folder)) >= 5
    with pytest.raises(bundle.BundleError, match="incomplete"):
        bundle.read(folder)
    assert json.loads((folder / "run.json").read_text())["status"] == "running"


@AT_NIGHT
def test_disk_that_fills_up_is_said() -> None:
    with start("--iterations", "1000", file_limit_bytes=8192) as process:
        _, error = process.communicate()
    assert process.returncode == ExitCode.RUN_FAILED
    last = error.strip().splitlines()[-2:]
    assert last[0].startswith("error: File too large while writing 'out/")
    assert last[0].endswith("': the bundle is incomplete")
    assert last[1].startswith("hint: free some space")
    (folder,) = Path("out").glob("[!.]*")
    assert not (folder / "MANIFEST.json").exists()


@AT_NIGHT
def test_repeats_are_processes_of_their_own() -> None:
    with start("--iterations", "2", "--repeats", "2") as process:
        output, error = process.communicate()
    assert process.returncode == 0, error
    records = [record_of(Path(line)) for line in output.splitlines()]
    assert [record["repeat"] for record in records] == [{"index": 1, "of": 2}, {"index": 2, "of": 2}]
    assert [record["spec"]["repeats"] for record in records] == [1, 1]
    assert records[0]["spec_origin"]["iterations"] == "option"


def test_trainer_without_its_packages_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")

    monkeypatch.setattr(train, "prepare", lacking)
    assert run()[0] == ExitCode.TOOL
    assert capsys.readouterr().err == (
        "error: the trainer needs the package torchvision\nhint: pip install 'rooflaunch[trainer]'\n"
    )


@pytest.mark.usefixtures("without_doubt")
def test_the_command_ceilings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ceilings", "--device", "cpu", "--precision", "fp32", "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["flop_per_s"]["fp32"]["median"] > 0
    assert printed["bytes_per_s"]["copy"]["median"] > 0


def test_a_rank_uses_its_own_gpu_before_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting takes memory of the present GPU."""
    calls: list[object] = []
    monkeypatch.setattr(train.device, "choose", lambda _: Device.CUDA)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(train.complexity, "read_kept", lambda *_: calls.append("count") or "counted")
    resolved = Resolved(spec=RunSpec(model="alexnet", image_size=64), origin={})
    train.prepare(resolved, Context(), Path("out"), rank=1)
    assert calls == [1, "count"]
