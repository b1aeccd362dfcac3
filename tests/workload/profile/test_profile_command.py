import sys
from pathlib import Path

import pytest

from workload.contract.record import Record, Spec, Status, StepSeconds, Timing
from workload.contract.spec import Device, Precision, Profile, RunSpec
from workload.profile import command
from workload.profile.command import Mode, Replay, estimate_kernels, estimate_range
from workload.profile.metrics import MetricSet

METRICS = MetricSet(roles={"dram__bytes.sum": "dram_bytes", "gpu__time_duration.sum": "time_s"}, missing=(), passes=1)
NCU, REPORT = Path("/opt/ncu"), Path("a b/profile.ncu-rep")


def test_kernel_replay() -> None:
    words = command.profile(NCU, REPORT, METRICS, ["python", "-c", "1"], plain_suffixes=True)
    assert words == [
        "/opt/ncu",
        *("--profile-from-start", "off", "--target-processes", "all", "--replay-mode", "kernel"),
        *("--clock-control", "none", "--cache-control", "all", "--nvtx", "--disable-extra-suffixes"),
        *("--metrics", "dram__bytes.sum,gpu__time_duration.sum", "-f", "-o", "a b/profile.ncu-rep"),
        *("python", "-c", "1"),
    ]
    assert command.quoted(words, under_ncu=True).startswith("LC_ALL=C /opt/ncu --profile-from-start off")
    assert "'a b/profile.ncu-rep'" in command.quoted(words, under_ncu=False)


def test_range_replay_has_no_start_option_and_old_ncu_no_suffix_option() -> None:
    words = command.profile(NCU, Path("50%.ncu-rep"), METRICS, ["x"], replay=Replay.RANGE, plain_suffixes=False)
    assert "--profile-from-start" not in words, "ncu refuses it for ranges"
    assert "--disable-extra-suffixes" not in words
    assert words[words.index("--replay-mode") + 1] == "app-range"
    assert words[words.index("--cache-control") + 1] == "none"
    assert words[words.index("-o") + 1] == "50%%.ncu-rep", "ncu expands % in names"


def test_profiled_process_trains_the_spec_and_starts_no_profile_of_its_own() -> None:
    spec = RunSpec(
        device=Device.CUDA,
        precision=Precision.AMP,
        repeats=3,
        profile=Profile.NCU,
        profile_steps=4,
        profile_throughput=True,
        ncu_metrics="dram__bytes.sum",
    )
    words = command.profiled_process(spec, Mode.CALIBRATED, Path("r.json"), 77)
    assert words == [
        *(sys.executable, "-m", "workload", "profiled-step"),
        *("--mode", "calibrated", "--report", "r.json", "--owner", "77"),
        *("--device", "cuda", "--precision", "amp", "--profile-steps", "4"),
    ]


@pytest.mark.parametrize(
    ("kernels", "passes", "expected_s", "limit_s"),
    [
        # 10 s to start; 0.8 s a kernel in 3 passes; at most 2 s each, and 120 s + 5 starts.
        (600, 3, 10 + 480, 170 + 1200),
        (600, 6, 10 + 960, 170 + 2400),
        (600, None, 10 + 480, 170 + 1200),
        (None, 3, 10 + 1600, 170 + 4000),
    ],
)
def test_time_for_kernels(kernels: int | None, passes: int | None, expected_s: float, limit_s: float) -> None:
    found = estimate_kernels(kernels, passes, 10)
    assert (found.expected_s, found.limit_s) == (pytest.approx(expected_s), pytest.approx(limit_s))


@pytest.mark.parametrize(("passes", "expected_s", "limit_s"), [(1, 10, 170), (4, 40, 680), (None, 30, 510)])
def test_time_for_ranges(passes: int | None, expected_s: float, limit_s: float) -> None:
    found = estimate_range(passes, 10)
    assert (found.expected_s, found.limit_s) == (pytest.approx(expected_s), pytest.approx(limit_s))


@pytest.mark.parametrize(("step_s", "limit_s"), [(StepSeconds(median=0.5), 300 + 20 * 5), (None, 300 + 20 * 10)])
def test_time_for_a_trace(step_s: StepSeconds | None, limit_s: float) -> None:
    record = Record(
        run_id="run", status=Status.COMPLETED, spec=Spec(model="resnet18", batch_size=4), timing=Timing(step_s=step_s)
    )
    assert command.trace_limit_s(record, 10) == limit_s
