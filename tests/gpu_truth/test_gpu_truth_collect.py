"""The collector on this machine's CPU, with stand-ins for a GPU, and after it was killed."""

import json
import logging
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_truth import collect, parts
from benchmarks.gpu_truth.bench import Bench, OutOfTimeError, PartFailedError
from benchmarks.gpu_truth.parts import PARTS, EvidencePart, PartNeed
from tests.gpu_truth.stage import gpu_bench
from workload import cli
from workload.contract.errors import ExitCode, UsageError

ROOT = Path(__file__).parents[2]


def document(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "parts" / f"{name}.json").read_text())
    return found


def part(
    name: str, work: Callable[[Bench], dict[str, Any]], *, about_s: int = 10, needs: tuple[PartNeed, ...] = ()
) -> EvidencePart:
    return EvidencePart(name=name, what="a test", about_s=about_s, collect=work, needs=frozenset(needs))


def answer(_: Bench) -> dict[str, Any]:
    return {"x": 1}


def fail(_: Bench) -> dict[str, Any]:
    raise PartFailedError("the reason")


def break_down(_: Bench) -> dict[str, Any]:
    raise KeyError("a bug")


def overrun(_: Bench) -> dict[str, Any]:
    raise OutOfTimeError


# --- without processes


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def bench_of(folder: Path, clock: Clock, *, seconds: float = 100, gpu: dict[str, Any] | None = None) -> Bench:
    return Bench(
        scratch=folder / "scratch.tmp",
        now_s=clock,
        end_s=clock() + seconds,
        facts={"gpu": gpu, "obstacle": "none here"},
    )


@pytest.mark.parametrize(
    ("made", "status", "reason"),
    [
        (part("a", answer), "done", None),
        (part("a", fail), "failed", "the reason"),
        (part("a", break_down), "failed", "KeyError: 'a bug'"),
        (part("a", overrun), "failed", "it did not end within 0 s"),
        (part("a", answer, needs=(PartNeed.GPU,)), "skipped", "it needs an NVIDIA GPU: none here"),
        (part("a", answer, needs=(PartNeed.NCU,)), "skipped", "it needs Nsight Compute, and no ncu was found"),
    ],
)
def test_what_becomes_of_a_part(made: EvidencePart, status: str, reason: str | None, tmp_path: Path) -> None:
    code = collect.collect(tmp_path, bench_of(tmp_path, Clock()), parts=[made])
    written = document(tmp_path, "a")
    assert (written["status"], written["reason"]) == (status, reason)
    assert written["evidence"] == ({"x": 1} if status == "done" else {})
    assert code == (ExitCode.DONE if status == "done" else ExitCode.NOTHING_TO_DO)
    assert ("break_down" in (written["trace"] or "")) == (made.collect is break_down), "a bug keeps its trace"


def test_it_stops_between_parts_says_what_is_left_and_goes_on(tmp_path: Path, logged: list[logging.LogRecord]) -> None:
    clock, ran = Clock(), []

    def work(bench: Bench) -> dict[str, Any]:
        ran.append(bench.scratch.name)
        clock.now_s += 40
        return {}

    three = [part(name, work, about_s=40) for name in ("a", "b", "c")]
    collect.collect(tmp_path, bench_of(tmp_path, clock), parts=three)
    assert ran == ["a", "b"], "80 of 100 s are over, and c takes 40"
    assert "left         c; the same command continues with them" in [record.getMessage() for record in logged]
    assert "parts        2 done, 0 skipped, 0 failed, 1 left, in 80 s" in [record.getMessage() for record in logged]
    collect.collect(tmp_path, bench_of(tmp_path, clock), parts=three)
    assert ran == ["a", "b", "c"]
    assert any(line.startswith("all parts are complete") for line in [record.getMessage() for record in logged])
    collect.collect(tmp_path, bench_of(tmp_path, clock), parts=three, again=True, only=["b"])
    assert ran == ["a", "b", "c", "b"]


def test_a_part_that_the_end_of_the_call_cut_off_is_left(tmp_path: Path) -> None:
    two = [part("a", answer), part("b", overrun)]
    collect.collect(tmp_path, bench_of(tmp_path, Clock()), parts=two)
    assert not (tmp_path / "parts" / "b.json").exists()
    collect.collect(tmp_path, bench_of(tmp_path, Clock()), parts=two)
    assert document(tmp_path, "b")["status"] == "failed", "it had the whole of a call"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": "another"}'])
def test_a_damaged_part_is_collected_anew(damage: str, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.json").write_text(damage)
    collect.collect(tmp_path, bench_of(tmp_path, Clock()), parts=[part("a", answer)])
    assert document(tmp_path, "a")["evidence"] == {"x": 1}


def test_skipped_parts_are_tried_again_on_a_machine_that_has_what_they_need(tmp_path: Path) -> None:
    made = [part("a", answer, needs=(PartNeed.GPU,))]
    collect.collect(tmp_path, bench_of(tmp_path, Clock()), parts=made)
    assert document(tmp_path, "a")["status"] == "skipped"
    collect.collect(tmp_path, bench_of(tmp_path, Clock(), gpu={"name": "NVIDIA L4"}), parts=made)
    assert document(tmp_path, "a")["status"] == "done"


def test_a_folder_holds_one_gpu(tmp_path: Path) -> None:
    machine = [part("machine", lambda bench: {"gpu": bench.gpu})]
    collect.collect(tmp_path, bench_of(tmp_path, Clock(), gpu={"name": "NVIDIA L4"}), parts=machine)
    with pytest.raises(UsageError) as caught:
        collect.collect(tmp_path, bench_of(tmp_path, Clock(), gpu={"name": "Tesla T4"}), parts=machine)
    assert str(caught.value) == f"'{tmp_path}' has results of NVIDIA L4, but this GPU is Tesla T4"


def test_the_archive_is_bounded_and_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MEMBER_LIMIT_BYTES", 1000)
    large = part("large", lambda _: {"text": "x" * 2000})
    collect.collect(tmp_path, bench_of(tmp_path, Clock()), parts=[part("a", answer), large])
    with tarfile.open(tmp_path / collect.ARCHIVE) as packed:
        members = packed.getmembers()
        left_out = packed.extractfile("left-out.json")
        assert left_out is not None
        assert json.load(left_out) == {"too large": ["large.json"]}
    assert [member.name for member in members] == ["parts/a.json", "left-out.json"]
    assert {(member.uname, member.uid) for member in members} == {("", 0)}


def test_the_limit_of_a_call_is_strict_and_nine_minutes_suffice_for_any_part() -> None:
    assert parts.PART_LIMIT_S <= 540
    assert max(made.about_s for made in PARTS) <= 540
    assert sum(made.about_s for made in PARTS) <= cli.GPU_TRUTH_S
    assert len({made.name for made in PARTS}) == len(PARTS)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--part", "x"], "there is no part 'x'", "--part takes machine, compiler, metrics"),
        (["--max-seconds", "nan"], "--max-seconds must be positive; got 'nan'", "--max-seconds 540"),
        (["--max-seconds", "0"], "--max-seconds must be positive; got '0'", "--max-seconds 540"),
    ],
)
def test_wrong_options(
    words: list[str], message: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gpu-truth", "-o", str(tmp_path), *words]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"error: {message}\n" in said
    assert f"hint: {hint}" in said


def test_published_rows_are_sourced_and_of_this_gpu() -> None:
    rows = parts.published("NVIDIA H100 80GB HBM3", "resnet50", "amp")
    assert [row["images_per_s"] for row in rows] == [2616, 2791]
    assert all(row["source"] and row["tier"] in "AB" for row in rows)
    assert parts.published("NVIDIA H100 80GB HBM3", "resnet50", "fp32") == []
    assert parts.published(None, "resnet50", "amp") == []


# --- with processes


# The refusals are left to those who run docs/gpu-truth.md: three trainers more.
ON_CPU = ("machine", "compiler", "counters", "loops")


@pytest.mark.world
@pytest.mark.night(part="trainer")
def test_on_this_machines_cpu(tmp_path: Path) -> None:
    folder = tmp_path / "truth"
    words = [sys.executable, "-m", "workload", "gpu-truth", "-o", str(folder), "--quick"]
    words += [word for name in ON_CPU for word in ("--part", name)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=without_ncu())
    assert done.returncode == ExitCode.DONE, done.stderr
    assert done.stdout == f"{folder / collect.ARCHIVE}\n"
    states = {name: document(folder, name)["status"] for name in ON_CPU}
    assert states == {"machine": "done", "compiler": "done", "counters": "skipped", "loops": "done"}
    said = done.stderr.splitlines()
    assert any(line.startswith("skipped      counters: it needs an NVIDIA GPU: torch") for line in said)
    assert said[-2].startswith(f"parts        3 done, 1 skipped, 0 failed, {len(PARTS) - 4} left, in ")
    assert said[-1].startswith("left         metrics, ceilings, profile-amp, ")
    assert not (folder / collect.SCRATCH).exists()
    targets = document(folder, "compiler")["evidence"]["targets"]
    assert targets["90"]["constants"]["bytes"] > 1000, "NVRTC compiles without a GPU"
    assert len(document(folder, "loops")["evidence"]["ratios"]) == 4


@pytest.mark.world
@pytest.mark.slow
def test_a_child_that_breaks_down_costs_its_part_and_is_quoted(tmp_path: Path) -> None:
    child = [sys.executable, "-c", "import sys; print('before'); sys.exit('RuntimeError: no kernel image')"]
    broken = part("a", lambda bench: bench.answer(tmp_path / "none.json", bench.run(child, limit_s=60)))
    assert collect.collect(tmp_path, Bench(scratch=tmp_path / "scratch.tmp"), parts=[broken]) == 3
    written = document(tmp_path, "a")
    assert written["reason"] == "none: it ended with exit code 1: RuntimeError: no kernel image"
    assert "before" in written["trace"]


@pytest.mark.world
@pytest.mark.slow
def test_a_load_is_rows_of_seconds_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu_truth import probes

    monkeypatch.setattr(probes, "_edge", lambda _: 64)
    found = probes.loads("0.1", "0")
    assert set(found["loads"]) == {"fp32", "copy"}
    load = found["loads"]["fp32"]
    assert load["work"] == 2 * 64**3
    assert all(row["call_s"] > 0 and 0 <= row["t_s"] < 0.1 for row in load["rows"])


@pytest.mark.world
@pytest.mark.slow
def test_the_projects_tests_run_with_pytest_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each says that there is no GPU, also where there is one.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bench = Bench(scratch=tmp_path)
    found = parts._tests(bench)
    assert found["exit_code"] == 0, found["said"]
    assert "Error" not in found["said"]


def without_ncu() -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}


KILLED = """
import sys
from pathlib import Path
from benchmarks.gpu_truth import collect
from benchmarks.gpu_truth.bench import Bench
from benchmarks.gpu_truth.parts import EvidencePart

folder, seconds = Path(sys.argv[1]), sys.argv[2]
child = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
work = lambda bench: {"code": bench.run(child, limit_s=100).returncode}
first = EvidencePart(name="a", what="", about_s=1, collect=lambda _: {})
parts = [first, EvidencePart(name="b", what="", about_s=1, collect=work)]
sys.exit(collect.collect(folder, Bench(scratch=folder / "scratch.tmp"), parts=parts))
"""


@pytest.mark.world
@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    collector = subprocess.Popen([*words, "60"], cwd=ROOT)
    scratch = tmp_path / "scratch.tmp" / "b" / "log.txt"
    while not scratch.is_file() and collector.poll() is None:
        time.sleep(0.02)
    collector.kill()
    collector.wait()
    before = document(tmp_path, "a")
    assert not (tmp_path / "parts" / "b.json").exists()
    assert subprocess.run([*words, "0"], cwd=ROOT, check=False, capture_output=True).returncode == ExitCode.DONE
    assert document(tmp_path, "a") == before, "it is not collected twice"
    assert document(tmp_path, "b")["evidence"] == {"code": 0}
    assert not scratch.parent.exists()


@pytest.mark.world
@pytest.mark.slow
def test_every_part_runs_against_stand_ins_for_a_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "truth"
    bench = gpu_bench(tmp_path / "machine")
    own = [made for made in PARTS if made.name != "tests"]
    assert collect.collect(folder, bench, parts=own) == ExitCode.DONE
    states = {made.name: document(folder, made.name) for made in own}
    assert {name: each["reason"] for name, each in states.items() if each["status"] != "done"} == {}
    counters = states["counters"]["evidence"]
    pipe, constants = parts.PIPE, parts.CONSTANTS
    by_range = {launch["range"]: launch["values"] for launch in counters["launches"]}
    assert by_range["softmax"][pipe] - by_range["softmax"][constants] == 0
    assert by_range["single"]["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"] == 1600
    assert "backward" in by_range
    assert counters["missing"] == [name for name in parts.L2_NAMES if name != "lts__t_bytes.sum"]
    known = states["metrics"]["evidence"]["ncu"][0]
    assert known["version"] == "2024.1.1.0"
    assert known["missing"]["8.9"] == ["l1tex__t_bytes.sum"]
    runs = states["resnet50"]["evidence"]["runs"]
    assert runs["amp"]["published"][0]["images_per_s"] == 382.52
    assert runs["amp"]["record"] == {"status": "completed", "timing": {"images_per_s": 100.0, "measured_s": 4.0}}
    failures = states["failures"]["evidence"]["cases"]
    assert [failures[name]["exit_code"] for name in ("a little too large", "much too large", "compile")] == [7, 7, 0]
    interrupt = states["interrupt"]["evidence"]
    assert (interrupt["exit_code"], interrupt["profile"], interrupt["left_over"]) == (
        130,
        {"status": "interrupted"},
        [],
    )
