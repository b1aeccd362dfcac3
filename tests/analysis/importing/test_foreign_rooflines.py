"""Points of what others measured: profiles alone, logs of known models, and what is only a lower bound."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.figures import Figure
from analysis.importing import UserFacts, import_file
from analysis.report.evidence import gather
from analysis.roofline.points import points, shifts
from tests.analysis.in_process import Analyze
from tests.analysis.readers.ncu.ncu_files import COUNTS, save, wide
from tests.analysis.roofline.points_told import told
from tests.analysis.sentence_runs import Golden

STEP = ("sgemm_128", "wgrad_alg0_engine")
# 2 x 4.2e9 + 1e9 + 1e9 FLOP in 8 ms, twice; 1.3 GB: a step of resnet18 of 2 images has 21.3 GFLOP.
ROW = ["8000000", "1000000000", "1000000000", "4200000000", "650000000"]
RESNET18 = {"model": "resnet18", "batch_size": 2}


def profile(folder: Path, *, names: tuple[str, ...] = STEP, rows: list[list[str]] | None = None, **given: Any) -> Path:
    """Import a profile, by default of one step; returns the results folder."""
    text = wide(COUNTS, rows or [ROW] * len(names), names=names, capability="7.0")
    path = save(folder, text, f"{len(list(folder.iterdir()))}.csv")
    import_file(path, UserFacts(**{**RESNET18, **given}), output=folder / "out")
    return folder / "out"


def log(folder: Path, *, step_ms: float = 50.0, **given: Any) -> Path:
    """Import a log of 30 steady iterations that end one after the other."""
    rows = "".join(f"cuda,{step_ms},{1763159640 + step_ms / 1000 * step:.3f}\n" for step in range(30))
    path = save(folder, f"device,iter_time_ms,timestamp\n{rows}", f"{len(list(folder.iterdir()))}.csv")
    import_file(path, UserFacts(**{**RESNET18, "batch_size": 32, **given}), output=folder / "out")
    return folder / "out"


def rows(results: Path) -> list[dict[str, Any]]:
    table = points(analysis.load(results)).astype(object)
    return [
        {str(name): value for name, value in row.items()} for row in table.where(table.notna(), None).to_dict("records")
    ]


NOWHERE = {
    "no precision": {"gpu": "Tesla V100-SXM2-16GB"},
    "no GPU": {"precision": "fp32"},
    "a GPU without a known peak": {"gpu": "NVIDIA GeForce GTX 1060", "precision": "fp32"},
    "neither": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("given", NOWHERE.values(), ids=NOWHERE)
@pytest.mark.parametrize("kind", ["profiles", "logs", "both"])
def test_without_a_roof_there_are_still_points(
    tmp_path: Path, analyze: Analyze, given: dict[str, str], kind: str
) -> None:
    if kind != "logs":
        profile(tmp_path, **given)
        profile(tmp_path, batch_size=4, names=(*STEP, *STEP), **given)
    if kind != "profiles":
        log(tmp_path, batch_size=64, **given)
    printed = {}
    for form in ("table", "json", "csv"):
        code, printed[form], err = analyze("roofline", tmp_path / "out", "--format", form)
        assert (code, err) == (0, "")
    points = rows(tmp_path / "out")
    assert len(points) == {"profiles": 2, "logs": 1, "both": 3}[kind]
    assert all(point["flop_per_s"] > 0 and point["intensity_flop_per_byte"] > 0 for point in points)
    assert all(point["roof"] is None and point["bound"] is None and "no roof:" in point["note"] for point in points)
    assert len(json.loads(printed["json"])) == len(printed["csv"].splitlines()) - 1 == len(points)


def test_an_unknown_model_has_no_point_and_that_is_said(tmp_path: Path, analyze: Analyze) -> None:
    log(tmp_path)
    log(tmp_path, model="my_net", step_ms=51.0)
    code, _, err = analyze("roofline", tmp_path / "out")
    assert (code, err) == (0, "note       1 run without FLOP and bytes: no point on a roofline\n")


# --- points and lower bounds


TENSOR = ("volta_fp16_s884gemm", "wgrad_alg0_engine")
V100 = {"gpu": "Tesla V100-SXM2-16GB", "precision": "fp32"}
RATES = "model,gpu,precision,batch_size,imgs_per_sec\nresnet18,Tesla T4,fp32,32,500\nresnet50,Tesla T4,fp32,32,100\n"


def with_time(folder: Path) -> None:
    profile(folder, profile_steps=1)
    log(folder, batch_size=2)


# 16 FLOP/byte x 900 GB/s are less than 15.7 TFLOP/s; 32 x 10.648 GFLOP in 50 ms are 6.81 TFLOP/s.
MAKES: dict[str, Callable[[Path], object]] = {
    "a whole profile": lambda folder: profile(folder, names=STEP * 2, **V100),
    "a profile of two steps": lambda folder: profile(folder, names=STEP * 2, **V100, profile_steps=2),
    "a profile and a timed run": with_time,
    "a log of a known model": lambda folder: log(folder, gpu="Tesla T4", precision="fp32"),
    "a table of rates": lambda folder: import_file(save(folder, RATES), UserFacts(), output=folder / "out"),
    "tensor FLOP missing": lambda folder: profile(folder, **V100, names=TENSOR),
    "forward alone": lambda folder: profile(folder, **V100, names=("sgemm_128",) * 9),
    "nine kernels of a ViT": lambda folder: profile(
        folder, **V100, model="vit_b_16", profile_steps=1, names=("sgemm_128",) * 8 + STEP[1:]
    ),
    "blanked cells": lambda folder: profile(folder, rows=[ROW, [*ROW[:3], "n/a", ROW[4]]]),
}


def test_points_of_what_others_measured(golden: Golden, tmp_path: Path) -> None:
    lines: list[str] = []
    for number, (name, fill) in enumerate(MAKES.items()):
        (folder := tmp_path / str(number)).mkdir()
        fill(folder)
        lines += [f"## {name}", *told(analysis.load(folder / "out"))]
    golden("points.txt", "\n".join([*lines, ""]))


def test_lower_bounds_are_compared_with_nothing(tmp_path: Path) -> None:
    for batch_size in (2, 4):
        results = profile(tmp_path, names=TENSOR * batch_size, batch_size=batch_size)
    assert shifts(points(analysis.load(results))).empty
    for batch_size in (2, 4):
        profile(tmp_path, names=STEP * batch_size, batch_size=batch_size, model="resnet34")
    assert len(shifts(points(analysis.load(results)))) == 1


def test_figures_mark_lower_bounds_and_rank_them_last(tmp_path: Path) -> None:
    profile(tmp_path, gpu="Tesla V100-SXM2-16GB", precision="fp32", names=TENSOR, profile_steps=1)
    results = profile(
        tmp_path, gpu="Tesla V100-SXM2-16GB", precision="fp32", names=STEP * 2, profile_steps=2, batch_size=1
    )
    figures = {drawn.name: drawn for drawn in gather(analysis.load(results)).drawn if isinstance(drawn, Figure)}
    (roofline_of_steps,) = (figure for name, figure in figures.items() if name.startswith("roofline_"))
    assert (
        "Pale points: rates of a profile's kernels over their own time, not over a step's time."
        in roofline_of_steps.caption
    )
    assert "≥ marks a lower bound" in roofline_of_steps.caption
    first, second = roofline_of_steps.text.split("; ")
    assert "at least" not in first
    assert "at least" in second
    assert '"≥"' in json.dumps(roofline_of_steps.chart.to_dict(), ensure_ascii=False)
