"""What an audit says of other people's files: the named cause, and silence where nothing is wrong."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.audit import RULES, Severity, audit
from analysis.importing import UserFacts, import_file
from analysis.loading import model_work
from tests.analysis.importing.outcomes import Files, printed
from tests.analysis.readers.ncu.ncu_files import COUNTS, DRAM, FADD, FFMA, FMUL, TIME, save, wide
from tests.analysis.roofline.points_told import told
from tests.analysis.sentence_runs import Golden
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


def at(step_s: float, count: int = 100, **labels: Any) -> str:
    return log([(step_s, step_s)] * count, stamps=".6f", **labels)


STEADY = [(0.2, 0.2)] * 100
RATES: Files = {
    "clean, 30 rows": (log(STEADY[:30]), {}),
    "a slow first row is warm-up": (log([(3.0, 3.0), *STEADY[:29]]), {}),
    "an epoch's end": (log([*STEADY[:50], (0.2, 6.2), *STEADY[:49]]), {}),
    "two gaps, of which the timer saw one": (
        log([*STEADY[:1], (4.0, 4.0), *STEADY[:50], (0.2, 6.2), *STEADY[:49]]),
        {},
    ),
    "a timer that sees half": (log([(0.1, 0.2)] * 100), {}),
    "a timer that sees half, and a gap": (log([*[(0.1, 0.2)] * 50, (0.1, 6.2), *[(0.1, 0.2)] * 49]), {}),
    "stamps in whole seconds": (log([(0.21, 0.21)] * 30, stamps=".0f"), {}),
    # 64 x 10.648 GFLOP in 20 ms are 34.07 TFLOP/s.
    "fp32 that is tf32": (at(0.02), {"gpu": "NVIDIA L4", "precision": "fp32"}),
    "more than training reaches in fp32": (at(0.03), {"gpu": "NVIDIA L4", "precision": "fp32"}),
    "fp32 below its peak": (at(0.04), {"gpu": "NVIDIA L4", "precision": "fp32"}),
    "fp32 where tf32 is no faster": (at(0.012), {"gpu": "RTX 4090", "precision": "fp32"}),
    "fp32 without tf32": (at(0.06), {"gpu": V100, "precision": "fp32"}),
    "another GPU, or another model": (at(0.005), {"gpu": "NVIDIA L4", "precision": "amp"}),
    "above every peak": (at(0.002), {"gpu": "NVIDIA L4"}),
    "a CPU's log labelled cuda": (at(6.4, 30, device="cuda:0"), {}),
    "a CPU's log labelled A100": (at(6.4, 30), {"gpu": "NVIDIA A100-SXM4-40GB"}),
    "a CPU's log": (at(6.4, 30, device="cpu"), {}),
    "a CPU's log without a label": (at(6.4, 30), {}),
    # A run may use few of its cores.
    "a CPU whose peak is known": (at(6.4, 30, device="cpu"), {"gpu": "Intel i9-14900HX"}),
    "a slow GPU": (at(0.6, 30, device="cuda:0"), {"gpu": "Tesla T4"}),
}
ABOUT_RATES = ("mean of rates", "fp32 that is tf32", "above a roof", "too slow for its label")


def test_rates_of_a_log(folder: Path, golden: Golden) -> None:
    golden("audit_rates.txt", printed(RATES, folder, rules=ABOUT_RATES))


# --- labels


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("vit_b_16_log.csv", "vit_b_16", []),
        ("vit_b_16_b64.csv", "vit_b_16", []),
        ("swin_v2_b.csv", "swin_v2_b", []),
        ("b200__eager.csv", "resnet50", []),
        ("resnet_b2000.csv", "resnet50", ["the file 'resnet_b2000.csv' names batch size 2000, the run has 64"]),
        ("vit_b_16_b128.csv", "vit_b_16", ["the file 'vit_b_16_b128.csv' names batch size 128, the run has 64"]),
        ("resnet50-bs32.csv", "resnet50", ["the file 'resnet50-bs32.csv' names batch size 32, the run has 64"]),
    ],
)
def test_a_letter_of_a_model_is_no_batch_size(folder: Path, name: str, model: str, expected: list[str]) -> None:
    import_text(folder, log(STEADY[:30], model=model), name)
    assert [figure for _, figure in found(folder, "labels disagree")] == expected


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
OF_64_PIXELS = model_work.table()["resnet18", 64].train_flop_per_image
WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
NAMED = ("volta_fp16_s884gemm", "wgrad")


def of_resnet18(
    text: str, batch_size: int = 1, profile_steps: int | None = 1, **more: Any
) -> tuple[str, dict[str, Any]]:
    return text, {"model": "resnet18", "batch_size": batch_size, "profile_steps": profile_steps} | more


PROFILES: Files = {
    "as the model says": of_resnet18(profile(flop=4 * STEP), 4),
    "as it says, in two steps": of_resnet18(profile(flop=8 * STEP), 4, 2),
    "of another model": of_resnet18(profile(flop=62.8e9)),
    "of another model, without steps": of_resnet18(profile(flop=62.8e9), 1, None),
    "one image given as 64 x 4 steps": of_resnet18(profile(flop=STEP), 64, 4),
    "smaller images": of_resnet18(profile(flop=8 * OF_64_PIXELS), 8),
    "smaller images, as somebody said": of_resnet18(profile(flop=8 * OF_64_PIXELS), 8, image_size=64),
    "a forward pass": of_resnet18(profile(flop=2 * RESNET18.forward_flop_per_image, names=["sgemm"]), 2),
    "tensor operations missing": of_resnet18(profile(flop=0.1 * STEP, names=NAMED)),
    # Half of the FLOP are those of tiles of 2 x 2, which stand for 2.25 times as many: 0.81 x.
    "Winograd convolutions": of_resnet18(profile(flop=0.5 * STEP, names=[WINOGRAD, "wgrad"])),
    # Two thirds of the FLOP are those of tiles of 4 x 4, of which the product is in a kernel of its own: 1.08 x.
    "Winograd convolutions in three kernels": of_resnet18(
        profile(flop=0.36 * STEP, names=["winogradForwardData4x4", "volta_sgemm_128x64_nn", "wgrad"])
    ),
    "convolutions by FFT": of_resnet18(profile(flop=0.1 * STEP, names=["fft2d_r2c_32x32", "wgrad"])),
    "fewer than Winograd saves": of_resnet18(profile(flop=0.3 * STEP, names=[WINOGRAD, "wgrad"])),
    # Batch norm computes, and the formulas leave it out.
    "many FLOP beside the products": of_resnet18(
        profile(flop=1.6 * STEP, names=["sgemm", "wgrad", "cudnn::bn_bw_1C11_singleread"])
    ),
    "an unknown model": of_resnet18(profile(flop=1e9), 4, model="my_net"),
    # What is counted.
    "all of it": of_resnet18(profile(flop=STEP), precision="fp32"),
    "tensor cores by name": of_resnet18(profile(flop=STEP, names=NAMED), precision="amp"),
    "without counters": of_resnet18(profile(flop=STEP, names=NAMED, counts=(TIME,)), precision="amp"),
    "ffma alone": of_resnet18(profile(flop=STEP, counts=(TIME, FFMA, DRAM)), precision="fp32"),
    "amp, and nothing counts tensor cores": of_resnet18(profile(flop=STEP), precision="amp"),
}
ABOUT_PROFILES = ("counted FLOP against model", "tensor FLOP missing", "incomplete profile")


def test_counts_of_a_profile(folder: Path, golden: Golden) -> None:
    golden("audit_profiles.txt", printed(PROFILES, folder, rules=ABOUT_PROFILES))


# Seconds of a step of 681.5 GFLOP, GPU and precision: fp32 may be TF32, and names no limit that needs to know.
LIMITS = {
    "H200, most of fp32": (0.0124, "NVIDIA H200", "fp32"),
    "A100, above fp32": (0.03, "NVIDIA A100-SXM4-40GB", "fp32"),
    "H200, slower": (0.03, "NVIDIA H200", "fp32"),
    "V100": (0.07, V100, "fp32"),
    "RTX 4090": (0.012, "RTX 4090", "fp32"),
    "A100, labelled tf32": (0.006, "NVIDIA A100-SXM4-40GB", "tf32"),
    "V100, labelled tf32": (0.07, V100, "tf32"),
}


def test_limits_of_a_log(tmp_path: Path, golden: Golden) -> None:
    lines: list[str] = []
    for name, (step_s, gpu, precision) in LIMITS.items():
        (folder := tmp_path / name / "in").mkdir(parents=True)
        import_text(folder.parent, at(step_s), gpu=gpu, precision=precision)
        results = analysis.load(folder.parent / "out")
        (run,) = results.runs.astype(object).where(results.runs.notna(), None).to_dict("records")
        lines += [f"## {name}", f"run: {run['bound']}: {run['bound_why']}", *told(results)]
    golden("limits.txt", "\n".join([*lines, ""]))
