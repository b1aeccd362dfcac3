"""What an audit says of other people's files: the named cause, and silence where nothing is wrong."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.audit import RULES, Severity, audit
from analysis.importing import UserFacts, import_file
from analysis.loading import model_work
from tests.analysis.readers.ncu.ncu_files import COUNTS, DRAM, FADD, FFMA, FMUL, TIME, save, wide
from workload.contract import bundle

RESNET18 = model_work.table()["resnet18", 224]
V100 = "Tesla V100-SXM2-16GB"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def import_text(folder: Path, text: str, name: str = "", **given: Any) -> dict[str, Any]:
    """Run.json of the only run of a file."""
    path = save(folder / "in", text, name or f"{len(list((folder / 'in').iterdir()))}.csv")
    (made,) = import_file(path, UserFacts(**given), output=folder / "out")
    return dict(bundle.read(made).document)


def found(folder: Path, rule: str) -> list[tuple[Severity, str]]:
    findings = audit(analysis.load(folder / "out"), rules=[known for known in RULES if known.name == rule])
    return [(finding.severity, finding.figure) for finding in findings]


# --- a log's own rates


def log(steps: Sequence[tuple[float, float]], *, model: str = "resnet18", stamps: str = ".3f", **labels: Any) -> str:
    """Iterations of 64 images: what the timer says and how long after the one before they end, both in s."""
    names = ["model", "batch_size", *labels]
    lines = [",".join([*names, "iter_time_ms", "imgs_per_sec", "timestamp"])]
    at = 1763159640.0
    for step_s, interval_s in steps:
        at += interval_s
        cells = [model, "64", *labels.values(), f"{step_s * 1e3:.3f}", f"{64 / step_s:.3f}", format(at, stamps)]
        lines.append(",".join(map(str, cells)))
    return "\n".join([*lines, ""])


STEADY = [(0.2, 0.2)] * 100
# Iterations, and the severity and a part of what the audit says of their rates.
GAPS: dict[str, tuple[list[tuple[float, float]], Severity | None, str]] = {
    "clean, 30 rows": (STEADY[:30], None, ""),
    "a slow first row is warm-up": ([(3.0, 3.0), *STEADY[:29]], None, ""),
    "an epoch's end": (
        [*STEADY[:50], (0.2, 6.2), *STEADY[:49]],
        Severity.NOTE,
        "320 images/s by the log's rates, 245.6 by images over wall time: 1.30 x; 1 gap takes 24 % of the wall time",
    ),
    "two gaps, of which the timer saw one": (
        [*STEADY[:1], (4.0, 4.0), *STEADY[:50], (0.2, 6.2), *STEADY[:49]],
        Severity.NOTE,
        "1.47 x; 2 gaps take 34 % of the wall time (4 s up to step 1, 6.2 s up to step 52), without them 320",
    ),
    "a timer that sees half": ([(0.1, 0.2)] * 100, Severity.ERROR, "320 by images over wall time: 2.00 x"),
    "a timer that sees half, and a gap": (
        [*[(0.1, 0.2)] * 50, (0.1, 6.2), *[(0.1, 0.2)] * 49],
        Severity.ERROR,
        "2.61 x; 1 gap takes 24 % of the wall time (6.2 s up to step 50), which does not explain it",
    ),
}


@pytest.mark.parametrize(("steps", "severity", "figure"), GAPS.values(), ids=GAPS)
def test_a_gap_that_explains_the_rate_is_named(
    folder: Path, steps: list[tuple[float, float]], severity: Severity | None, figure: str
) -> None:
    import_text(folder, log(steps))
    findings = found(folder, "mean of rates")
    assert [finding for finding, _ in findings] == ([severity] if severity else [])
    assert all(figure in said for _, said in findings)


def test_stamps_in_whole_seconds_are_no_more_accurate_than_that(folder: Path) -> None:
    import_text(folder, log([(0.21, 0.21)] * 30, stamps=".0f"))
    assert found(folder, "mean of rates") == []


def test_the_first_row_is_no_part_of_the_claim(folder: Path) -> None:
    record = import_text(folder, log([(3.0, 3.0), *STEADY[:9]]))
    assert record["imported"]["claimed_measured_images_per_s"] == pytest.approx(320)


# --- labels


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("vit_b_16_log.csv", "vit_b_16", []),
        ("vit_b_16_b64.csv", "vit_b_16", []),
        ("ViT-B-32.csv", "vit_b_32", []),
        ("efficientnet_b4.csv", "efficientnet_b4", []),
        ("swin_v2_b.csv", "swin_v2_b", []),
        ("b200__eager.csv", "resnet50", []),
        ("resnet_b2000.csv", "resnet50", ["the file 'resnet_b2000.csv' names batch size 2000, the run has 64"]),
        (
            "vit_b_16_b128.csv",
            "vit_b_16",
            ["the file 'vit_b_16_b128.csv' names batch size 128, the run has 64"],
        ),
        ("resnet50-bs32.csv", "resnet50", ["the file 'resnet50-bs32.csv' names batch size 32, the run has 64"]),
    ],
)
def test_a_letter_of_a_model_is_no_batch_size(folder: Path, name: str, model: str, expected: list[str]) -> None:
    import_text(folder, log(STEADY[:30], model=model), name)
    assert [figure for _, figure in found(folder, "labels disagree")] == expected


@pytest.mark.parametrize(
    ("named", "given", "is_contradiction"),
    [("resnet", "resnet50", False), ("ResNet-50", "resnet50", False), ("resnet", "vgg16", True), ("mine", "net", True)],
)
def test_a_family_in_the_file_may_be_any_of_its_models(
    folder: Path, named: str, given: str, is_contradiction: bool
) -> None:
    import_text(folder, log(STEADY[:30], model=named), model=given)
    assert bool(found(folder, "labels disagree")) is is_contradiction


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"batch_size": 128}, []),
        ({"precision": "amp"}, []),
        ({}, ["stops after 30 rows; another log of resnet18 at batch size 64 in 'imported' has 100"]),
    ],
)
def test_another_batch_size_has_another_number_of_rows(
    folder: Path, other: dict[str, Any], expected: list[str]
) -> None:
    import_text(folder, log(STEADY))
    import_text(folder, log(STEADY[:30]), **other)
    assert [figure for _, figure in found(folder, "incomplete series")] == expected


# --- facts


def test_every_fact_that_is_missing_has_an_option(folder: Path) -> None:
    options: dict[str, Any] = {
        "gpu": V100,
        "precision": "fp32",
        "driver": "550.54",
        "torch": "2.4.0",
        "dataset": "imagenet",
        "image_size": 224,
    }
    record = import_text(folder, log(STEADY[:30]), **options)
    assert found(folder, "imported without facts") == []
    assert record["imported"]["given"] == options
    (run,) = analysis.load(folder / "out").runs.to_dict("records")
    assert {name: run[name] for name in ("driver_version", "torch", "dataset", "image_size")} == {
        "driver_version": "550.54",
        "torch": "2.4.0",
        "dataset": "imagenet",
        "image_size": 224,
    }
    import_text(folder, log(STEADY[:31]), **{**options, "driver": None})
    assert found(folder, "imported without facts") == [(Severity.NOTE, "the file does not say: driver")]


# --- against the model


def profile(*, flop: float, names: Sequence[str] = ("sgemm", "wgrad"), counts: Sequence[str] = tuple(COUNTS)) -> str:
    """A profile of so many FLOP in all, in fused multiply-adds."""
    each = {TIME: "5000000", FADD: "0", FMUL: "0", FFMA: f"{flop / 2 / len(names):.0f}", DRAM: "50000000"}
    rows = [[each[name] for name in counts]] * len(names)
    return wide({name: COUNTS[name] for name in counts}, rows, names=names, capability="7.0")


STEP = RESNET18.train_flop_per_image
AGAINST: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "as it says": (profile(flop=4 * STEP), {"batch_size": 4, "profile_steps": 1}, None),
    "as it says, in two steps": (profile(flop=8 * STEP), {"batch_size": 4, "profile_steps": 2}, None),
    "of another model": (
        profile(flop=62.8e9),
        {"batch_size": 1, "profile_steps": 1},
        (
            "62.8 GFLOP counted in 1 step, 10.65 GFLOP by the model in a step of resnet18 at batch size 1: 5.9 x;"
            " likely 6 steps (--profile-steps 6), or another batch size: the FLOP are those of 6 images, not of 1, or"
            " another model than resnet18"
        ),
    ),
    "of another model, without steps": (
        profile(flop=62.8e9),
        {"batch_size": 1},
        "62.8 GFLOP counted in the whole profile, 10.65 GFLOP by the model in a step of resnet18 at batch size 1",
    ),
    "one image given as 64 x 4 steps": (
        profile(flop=STEP),
        {"batch_size": 64, "profile_steps": 4},
        (
            "10.65 GFLOP counted in 4 steps, 681.5 GFLOP by the model in a step of resnet18 at batch size 64 x 4:"
            " 0.00391 x; likely another batch size: the FLOP are those of 1 image, not of 256, or a part of a step, or"
            " another model than resnet18"
        ),
    ),
    "smaller images": (
        profile(flop=8 * model_work.table()["resnet18", 64].train_flop_per_image),
        {"batch_size": 8, "profile_steps": 1},
        "likely images of 64 x 64 pixels (--image-size 64), or",
    ),
    "smaller images, as somebody said": (
        profile(flop=8 * model_work.table()["resnet18", 64].train_flop_per_image),
        {"batch_size": 8, "profile_steps": 1, "image_size": 64},
        None,
    ),
    "a forward pass": (
        profile(flop=2 * RESNET18.forward_flop_per_image, names=["sgemm"]),
        {"batch_size": 2, "profile_steps": 1},
        None,
    ),
    "tensor operations missing": (
        profile(flop=0.1 * STEP, names=["volta_fp16_s884gemm", "wgrad"]),
        {"batch_size": 1, "profile_steps": 1},
        None,
    ),
    # Half of the FLOP are those of tiles of 2 x 2, which stand for 2.25 times as many: 0.81 x.
    "Winograd convolutions": (
        profile(flop=0.5 * STEP, names=["volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "wgrad"]),
        {"batch_size": 1, "profile_steps": 1},
        None,
    ),
    # Two thirds of the FLOP are those of tiles of 4 x 4, of which the product is in a kernel of its own: 1.08 x.
    "Winograd convolutions in three kernels": (
        profile(flop=0.36 * STEP, names=["winogradForwardData4x4", "volta_sgemm_128x64_nn", "wgrad"]),
        {"batch_size": 1, "profile_steps": 1},
        None,
    ),
    "convolutions by FFT": (
        profile(flop=0.1 * STEP, names=["fft2d_r2c_32x32", "wgrad"]),
        {"batch_size": 1, "profile_steps": 1},
        None,
    ),
    "fewer than Winograd saves": (
        profile(flop=0.3 * STEP, names=["volta_scudnn_winograd_128x128_tile148t", "wgrad"]),
        {"batch_size": 1, "profile_steps": 1},
        "0.3 x; likely images of",
    ),
    # Batch norm computes, and the formulas leave it out.
    "many FLOP beside the products": (
        profile(flop=1.6 * STEP, names=["sgemm", "wgrad", "cudnn::bn_bw_1C11_singleread"]),
        {"batch_size": 1, "profile_steps": 1},
        None,
    ),
    "an unknown model": (profile(flop=1e9), {"batch_size": 4, "model": "my_net", "profile_steps": 1}, None),
}


@pytest.mark.parametrize(("text", "given", "expected"), AGAINST.values(), ids=AGAINST)
def test_a_profile_is_held_against_the_model_that_is_named(
    folder: Path, text: str, given: dict[str, Any], expected: str | None
) -> None:
    record = import_text(folder, text, **{"model": "resnet18", **given})
    figures = [figure for _, figure in found(folder, "counted FLOP against model")]
    if expected is None:
        assert figures == []
        (note,) = analysis.load(folder / "out").roofline()["note"]
        # A part of a step and uncounted tensor operations are notes of their own.
        is_incomplete = "s884" in text or "wgrad" not in text
        assert ("tensor operations or the backward pass are missing" in note) == is_incomplete
        return
    (figure,) = figures
    assert expected in figure
    assert figure in record["notes"], "the import says it, too"


ABOVE: dict[str, tuple[float, dict[str, Any], str, list[str]]] = {
    # 64 x 10.648 GFLOP in 20 ms are 34.07 TFLOP/s.
    "fp32 that is tf32": (
        0.02,
        {"gpu": "NVIDIA L4", "precision": "fp32"},
        "fp32 that is tf32",
        ["34.1 TFLOP/s, above the fp32 peak of L4, 30.3 TFLOP/s"],
    ),
    "more than training reaches in fp32": (
        0.03,
        {"gpu": "NVIDIA L4", "precision": "fp32"},
        "fp32 that is tf32",
        ["22.7 TFLOP/s, 75 % of the fp32 peak of L4, 30.3 TFLOP/s"],
    ),
    "fp32 below its peak": (0.04, {"gpu": "NVIDIA L4", "precision": "fp32"}, "fp32 that is tf32", []),
    "fp32 where tf32 is no faster": (0.012, {"gpu": "RTX 4090", "precision": "fp32"}, "fp32 that is tf32", []),
    "fp32 without tf32": (0.06, {"gpu": V100, "precision": "fp32"}, "fp32 that is tf32", []),
    "another GPU, or another model": (
        0.005,
        {"gpu": "NVIDIA L4", "precision": "amp"},
        "above a roof",
        ["112.6 % of the vendor's peak, 121 TFLOP/s"],
    ),
    "no precision": (
        0.002,
        {"gpu": "NVIDIA L4"},
        "above a roof",
        ["281.6 % of the highest peak of L4 in any precision, 121 TFLOP/s"],
    ),
}


@pytest.mark.parametrize(("step_s", "given", "rule", "expected"), ABOVE.values(), ids=ABOVE)
def test_a_log_is_held_against_the_peak_that_is_named(
    folder: Path, step_s: float, given: dict[str, Any], rule: str, expected: list[str]
) -> None:
    import_text(folder, log([(step_s, step_s)] * 100, stamps=".6f"), **given)
    assert [figure for _, figure in found(folder, rule)] == expected


# Seconds of a step of 681.5 GFLOP, GPU and precision; the limit and a part of its reason.
A100, PEAK = "NVIDIA A100-SXM4-40GB", "of the vendor's compute peak"
LIMITS: dict[str, tuple[float, str, str, str | None, str]] = {
    "H200, most of fp32": (0.0124, "NVIDIA H200", "fp32", None, f"82 % {PEAK} in fp32, or 11 % of that in TF32"),
    "A100, above fp32": (0.03, A100, "fp32", None, f"116 % {PEAK} in fp32, or 15 % of that in TF32"),
    "H200, slower": (0.03, "NVIDIA H200", "fp32", "neither", f"34 % {PEAK}"),
    "V100": (0.07, V100, "fp32", "compute", f"62 % {PEAK}"),
    "RTX 4090": (0.012, "RTX 4090", "fp32", "compute", f"69 % {PEAK}"),
    "A100, labelled tf32": (0.006, A100, "tf32", "compute", f"73 % {PEAK}"),
    "V100, labelled tf32": (0.07, V100, "tf32", None, "no ceiling was measured, and V100 SXM2 has no units for tf32"),
}


@pytest.mark.parametrize(("step_s", "gpu", "precision", "bound", "why"), LIMITS.values(), ids=LIMITS)
def test_label_fp32_names_no_limit_that_needs_tf32(
    folder: Path, step_s: float, gpu: str, precision: str, bound: str | None, why: str
) -> None:
    import_text(folder, log([(step_s, step_s)] * 100, stamps=".6f"), gpu=gpu, precision=precision)
    results = analysis.load(folder / "out")
    (row,) = results.runs.astype(object).where(results.runs.notna(), None).to_dict("records")
    (point,) = results.roofline().astype(object).to_dict("records")
    assert row["bound"] == bound
    assert row["bound_why"].startswith(why)
    assert point.get("bound") == bound


SLOW: dict[str, tuple[float, dict[str, Any], dict[str, str], list[str]]] = {
    "a CPU's log labelled cuda": (6.4, {}, {"device": "cuda:0"}, ["1.3 % of the fp32 peak of T4, the slowest GPU"]),
    "a CPU's log labelled A100": (6.4, {"gpu": "NVIDIA A100-SXM4-40GB"}, {}, ["0.5 % of the fp32 peak of A100 40 GB"]),
    "a CPU's log": (6.4, {}, {"device": "cpu"}, []),
    "a CPU's log without a label": (6.4, {}, {}, []),
    # A run may use few of its cores.
    "a CPU whose peak is known": (6.4, {"gpu": "Intel i9-14900HX"}, {"device": "cpu"}, []),
    "a slow GPU": (0.6, {"gpu": "Tesla T4"}, {"device": "cuda:0"}, []),
}


@pytest.mark.parametrize(("step_s", "given", "labels", "expected"), SLOW.values(), ids=SLOW)
def test_a_rate_that_is_no_gpus(
    folder: Path, step_s: float, given: dict[str, Any], labels: dict[str, str], expected: list[str]
) -> None:
    import_text(folder, log([(step_s, step_s)] * 30, **labels), **given)
    figures = [figure for _, figure in found(folder, "too slow for its label")]
    assert len(figures) == len(expected)
    for figure, part in zip(figures, expected, strict=True):
        assert figure.startswith("6.4 s for a step of 681.5 GFLOP: 106.5 GFLOP/s, ")
        assert part in figure


# --- what a profile counts


NAMED = ("volta_fp16_s884gemm", "wgrad")
ON_TENSOR_CORES = "1 launch on tensor cores, whose FLOP were not counted, for example"
COUNTED: dict[str, tuple[str, str | None, list[str], list[str]]] = {
    "all of it": (profile(flop=STEP), "fp32", [], []),
    "tensor cores by name": (
        profile(flop=STEP, names=NAMED),
        "amp",
        [f"counted FLOP are a lower bound: {ON_TENSOR_CORES} {NAMED[0]}"],
        [],
    ),
    "a profile without counters": (
        profile(flop=STEP, names=NAMED, counts=(TIME,)),
        "amp",
        [],
        ["FLOP and DRAM bytes are unavailable: they were not counted"],
    ),
    "ffma alone": (
        profile(flop=STEP, counts=(TIME, FFMA, DRAM)),
        "fp32",
        [],
        ["FLOP are unavailable: they were not counted"],
    ),
    "amp, and nothing counts tensor cores": (
        profile(flop=STEP),
        "amp",
        ["amp, but the file has no count of work on tensor cores"],
        [],
    ),
}


@pytest.mark.parametrize(("text", "precision", "missing", "unavailable"), COUNTED.values(), ids=COUNTED)
def test_only_what_is_counted_can_lack_tensor_operations(
    folder: Path, text: str, precision: str | None, missing: list[str], unavailable: list[str]
) -> None:
    import_text(folder, text, model="resnet18", batch_size=1, precision=precision, profile_steps=1)
    assert [figure for _, figure in found(folder, "tensor FLOP missing")] == missing
    assert [figure for _, figure in found(folder, "incomplete profile")] == unavailable


# --- one rule for steady


def drifting() -> Iterator[tuple[float, float]]:
    for number in range(100):
        step_s = 0.2 * (1 + 0.042 * number / 99)
        yield step_s, step_s


SHAPES = {
    "drift": list(drifting()),
    "shift": [*STEADY[:50], *[(0.21, 0.21)] * 50],
    "steady": STEADY,
    "slow first steps": [*[(0.3, 0.3)] * 6, *STEADY],
}


@pytest.mark.parametrize("steps", SHAPES.values(), ids=SHAPES)
def test_variance_and_audit_say_steady_by_one_rule(folder: Path, steps: list[tuple[float, float]]) -> None:
    noise = [1 + 0.0005 * ((7 * number) % 11 - 5) for number in range(len(steps))]
    series = [(step_s * wobble, interval_s * wobble) for (step_s, interval_s), wobble in zip(steps, noise, strict=True)]
    import_text(folder, log(series))
    results = analysis.load(folder / "out")
    (row,) = results.variance("within").to_dict("records")
    rules = {finding.rule for finding in audit(results)} & {"unsteady steps"}
    assert (row["steady"] is False or row["steady"] == 0) == bool(rules)
