"""Recomputes three published tables with our own functions: `python -m docs.published_tables DATA` prints the page.

DATA is a folder with `iterations/` and `ncu/`, the public files that the tables rest on.
"""

import csv
import io
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

import analysis
from analysis.commands import kernels
from analysis.importing import UserFacts, import_file
from analysis.kernels.breakdown import breakdown
from analysis.readers import ncu
from analysis.readers.ncu import families
from analysis.roofline.lower_bound import counted_over_model, model_warning
from analysis.roofline.roofs import Roof, intensity
from docs import published_items
from docs.published_items import table
from workload.contract import peaks
from workload.contract.text import percent
from workload.contract.verdict import RoofKind

NEXT = "\nNext: [is it true on your GPU?](gpu-truth.md)"
FIGURES = Path(__file__).with_name("published_tables.toml")
# What a step's FLOP are to the MACs of its forward pass, about: 2 FLOP each, and backward is two forward passes.
STEP_OVER_MAC = 6
IMAGENET_EDGE = 224
# What the author of table C took for a launch's identity.
KEYS = ["name", "block", "grid"]
# How he read units: 1 Kbyte = 1024 byte.
BINARY = {"byte": 1, "Kbyte": 2**10, "Mbyte": 2**20, "Gbyte": 2**30}


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A figure as printed: the real one lies within half a unit of its last digit."""

    text: str

    @property
    def value(self) -> float:
        return float(self.text)

    @property
    def ends(self) -> tuple[float, float]:
        exponent = Decimal(self.text).as_tuple().exponent
        assert isinstance(exponent, int)
        half = 0.5 * 10.0**exponent
        return self.value - half, self.value + half

    def follows(self, dividend: "Printed", divisor: "Printed", *, scale: float = 1.0) -> bool:
        """Whether dividend / divisor x scale can give this, all three being rounded."""
        low, high = dividend.ends[0] / divisor.ends[1] * scale, dividend.ends[1] / divisor.ends[0] * scale
        return low <= self.ends[1] and self.ends[0] <= high


@cache
def figures() -> Mapping[str, Any]:
    """Everything that is published."""
    return tomllib.loads(FIGURES.read_text(encoding="utf-8"))


def train_flop(model: str, *, batch_size: int, image_size: int = IMAGENET_EDGE, forward: bool = False) -> float:
    """FLOP of a step; of other image sizes by the area, which is what convolutions cost."""
    per_image = figures()["model"][model]["forward_gflop" if forward else "train_gflop"] * 1e9
    return float(per_image * (image_size / IMAGENET_EDGE) ** 2 * batch_size)


# --- A


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """A run of table A: as published, from its own log, and right. Fractions of peak; None without a log.

    `right_low` and `right_high`: with 2 FLOP per multiply-accumulate, of the highest and the lowest peak of the device;
    from images over wall time where there is a log, otherwise from the published rate of the timed part, which is too
    high.
    """

    gpu: str
    model: str
    batch_size: int
    published: Printed
    images_per_s: Printed
    reproduced: float | None
    mean_of_rates: float | None
    wall_images_per_s: float | None
    right_low: float
    right_high: float


def table_a(data: Path) -> list[Efficiency]:
    """Every run of table A."""
    return [_efficiency(row, data) for row in figures()["a"]["run"]]


def _efficiency(row: Mapping[str, Any], data: Path) -> Efficiency:
    said = figures()["a"]
    gpu, model = row["gpu"], row["model"]
    said_flop, said_peak = said["train_gflop"][model] * 1e9, said["peak_tflop_per_s"][gpu] * 1e12
    peak = peaks.find(said["device"][gpu], precision="fp32")
    assert peak
    published = Printed(text=row["percent"])
    log = _log(data / "iterations" / row["log"]) if "log" in row else None
    # Without a log: what the published percentage means in images per second of timed steps.
    rate = log["images_per_s"] if log else published.value / 100 * said_peak / said_flop
    right = rate * train_flop(model, batch_size=1)
    return Efficiency(
        gpu=gpu,
        model=model,
        batch_size=row["batch_size"],
        published=published,
        images_per_s=Printed(text=row["images_per_s"]),
        reproduced=log["timed_images_per_s"] * said_flop / said_peak if log else None,
        mean_of_rates=log["claimed_images_per_s"] if log else None,
        wall_images_per_s=log["images_per_s"] if log else None,
        right_low=right / peak.flop_per_s,
        right_high=right / (peak.flop_per_s_low or peak.flop_per_s),
    )


@cache
def _log(path: Path) -> Mapping[str, float]:
    """As `analyze import` and `analysis.load` read it; `timed_images_per_s` is the batch by the mean iteration time."""
    with tempfile.TemporaryDirectory() as folder:
        import_file(path, UserFacts(), output=Path(folder))
        results = analysis.load(folder)
        run = results.runs.iloc[0]
        times = results.steps["step_s"]
        return {
            "images_per_s": float(run["images_per_s"]),
            "claimed_images_per_s": float(run["claimed_images_per_s"]),
            "timed_images_per_s": float(run["batch_size"] / times.mean()),
        }


def average(rows: Sequence[Efficiency], gpu: str) -> float:
    """The published percentages of a device, averaged."""
    return fmean(row.published.value for row in rows if row.gpu == gpu)


# --- B


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row of table B. `counted_flop` of a step; `over_model`: by 6 x what the report calls the step's FLOP."""

    model: str
    gpu: str
    intensity: float
    published: Printed
    agrees: bool
    counted_flop: float
    over_model: float | None
    warning: str | None
    estimate_s: float
    estimate: Printed


def table_b() -> list[Measured]:
    """Every row of table B, recomputed from its own cells."""
    return [_measured(row) for row in figures()["b"]["row"]]


def _measured(row: Mapping[str, Any]) -> Measured:
    said = figures()["b"]
    rate, bandwidth, step_s = (Printed(text=row[name]) for name in ("gflop_per_s", "gb_per_s", "step_s"))
    counted = rate.value * 1e9 * step_s.value
    published = Printed(text=row["intensity"])
    found = intensity(rate.value, bandwidth.value)
    peak = peaks.find(said["device"][row["gpu"]], precision="fp32")
    assert peak
    assert found is not None
    mac = said["step_gflop"][row["model"]] * 1e9
    ratio = counted_over_model(counted, STEP_OVER_MAC * mac)
    return Measured(
        model=row["model"],
        gpu=row["gpu"],
        intensity=found,
        published=published,
        agrees=published.follows(rate, bandwidth),
        counted_flop=counted,
        over_model=ratio,
        warning=model_warning(ratio),
        estimate_s=mac / peak.flop_per_s,
        estimate=Printed(text=row["estimate"]),
    )


# --- C


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """A row of table C. `over_step` and `over_forward`: counted FLOP by those of a training step and of forward."""

    id: str
    gflop_per_s: float
    published_gflop_per_s: Printed
    rate_agrees: bool
    intensity: float
    published_intensity: Printed
    intensity_agrees: bool
    over_step: float | None
    over_forward: float | None
    warning: str | None


def table_c() -> list[Profiled]:
    """Every row of table C, recomputed from its own cells."""
    return [_profiled(row) for row in figures()["c"]["row"]]


def _profiled(row: Mapping[str, Any]) -> Profiled:
    flop, moved, time = (Printed(text=row[name]) for name in ("gflop", "gb", "ms"))
    rate, ratio = Printed(text=row["gflop_per_s"]), Printed(text=row["intensity"])
    found = intensity(flop.value, moved.value)
    assert found is not None
    size, edge = row["batch_size"], figures()["c"]["image_size"]
    step, forward = (train_flop(row["model"], batch_size=size, image_size=edge, forward=each) for each in (False, True))
    over_step = counted_over_model(flop.value * 1e9, step)
    return Profiled(
        id=row["id"],
        gflop_per_s=flop.value / time.value * 1e3,
        published_gflop_per_s=rate,
        rate_agrees=rate.follows(flop, time, scale=1e3),
        intensity=found,
        published_intensity=ratio,
        intensity_agrees=ratio.follows(flop, moved),
        over_step=over_step,
        over_forward=counted_over_model(flop.value * 1e9, forward),
        warning=model_warning(over_step),
    )


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Row A-1 from the file that its author published: ours, and his by the two mistakes that explain them."""

    gflop_per_s: float
    intensity: float
    binary_intensity: float
    dram_percent: float
    joined_dram_percent: float
    sm_percent: float
    joined_sm_percent: float
    launches: int
    keys: int
    joined_rows: int
    backward_kernels: int


def row_a1(data: Path) -> Exact:
    """From `ncu/l4_resnet18_long_nvtx.csv`."""
    path = _profile(data)
    launches = ncu.read(path).kernels
    whole = breakdown(launches, ()).iloc[0]
    binary = intensity(whole["flop"], _binary_bytes(path))
    assert binary is not None
    return Exact(
        gflop_per_s=whole["flop_per_s"] / 1e9,
        intensity=whole["intensity_flop_per_byte"],
        binary_intensity=binary,
        dram_percent=whole["dram_percent"],
        joined_dram_percent=_weighted(_joined(launches, "dram_percent"), "dram_percent"),
        sm_percent=whole["sm_percent"],
        joined_sm_percent=_weighted(_joined(launches, "sm_percent"), "sm_percent"),
        launches=len(launches),
        keys=len(launches.drop_duplicates(KEYS)),
        joined_rows=len(_joined(launches, "sm_percent")),
        backward_kernels=sum(families.is_backward(str(name)) for name in launches["name"]),
    )


def _profile(data: Path) -> Path:
    return data / "ncu" / str(next(row["profile"] for row in figures()["c"]["row"] if "profile" in row))


def _binary_bytes(path: Path) -> float:
    """DRAM bytes, had ncu's prefixes been powers of 1024."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(line for line in lines if line.startswith('"')))
    names = ("dram__bytes_read.sum", "dram__bytes_write.sum")
    return sum(
        float(row["Metric Value"].replace(",", "")) * BINARY[row["Metric Unit"]]
        for row in rows
        if row["Metric Name"] in names
    )


def _joined(launches: pd.DataFrame, column: str) -> pd.DataFrame:
    """Times and percentages, joined on what is not unique: launches that share a key multiply."""
    plain = launches.astype(dict.fromkeys(KEYS, str))
    return plain[[*KEYS, "duration_s"]].merge(plain[[*KEYS, column]], on=KEYS)


def _weighted(pairs: pd.DataFrame, column: str) -> float:
    return float((pairs["duration_s"] * pairs[column]).sum() / pairs["duration_s"].sum())


# --- complexity


def claimed(claim: Mapping[str, Any]) -> tuple[float, str, bool]:
    """The figure that explains a claim about a model, the right one, and whether the printed digits follow."""
    model, batch, source = claim["model"], claim.get("batch_size", 1), claim["from"]
    counts = figures()["complexity"][model]
    unit, right = claim.get("unit", 1e9), ""
    if source == "intensity":
        moved = counts["parameters"] * (4 + 2 * batch)
        found = 3 * counts["fvcore_mac"] * batch / moved
        right = " to ".join(f"{counts['train_flop'] * batch / end:.3g}" for end in counts["bytes"][str(batch)][::-1])
    else:
        found = (source if isinstance(source, float) else counts[source]) * claim.get("times", 1) * batch / unit
        ours = figures()["complexity_cifar10"][model] if "32 x 32" in claim["what"] else counts
        if source != "parameters":
            is_forward = claim["what"].startswith(("forward", "operations"))
            right = f"{(2 * ours['mac'] if is_forward else ours['train_flop']) * batch / unit:.4g}"
    low, high = Printed(text=claim.get("digits", claim["printed"])).ends
    return found, right, low <= found <= high


# --- the page

HEAD = """\
# Three published tables, recomputed

Three student reports on training speed, recomputed figure by figure. [What published reports get
wrong](published-mistakes.md) sums this page up. The published figures are in `docs/published_tables.toml`.
A script writes this page (DATA is a folder with the public files in `iterations/` and `ncu/`):

    python -m docs.published_tables DATA > docs/published-tables.md
    analyze import DATA/iterations/*.csv -o results; analyze roofline results
    analyze kernels DATA/ncu/l4_resnet18_long_nvtx.csv

The columns "follows" say whether the printed figure can be calculated from the other printed figures,
if each of them was rounded to its last digit.
"""
A = """\
## A. Efficiency with two meanings of FLOP, and a desktop's peak

The published efficiency is: images per *timed* second x 3 x **MACs** of the forward pass / peak. But this
peak counts a fused multiply-add as 2 operations, and for the laptop it is the peak of a desktop card, 48.7
TFLOP/s. Right is: images per second of **wall time** x training FLOP / the device's own peak (the laptop's:
20.0 to 33.9 TFLOP/s, depending on its power limit). If the log of a run is not public, only the published
rate of the timed part is known, which gives an upper limit.
"""
B = """\
## B. A point without its tensor cores, and milliseconds called seconds

Intensity = GFLOP/s / GB/s. FLOP of a step = GFLOP/s x s. `x model` divides these by 6 x the figure that the
report calls the FLOP of a step. That figure is really the MACs of the forward pass (ResNet50: 270 / 64 =
4.2 GMAC per image; fvcore counts 4.11).
"""
C = "## C. Powers of 1024, a join of many to many, and a step without its backward pass\n"


def page(data: Path) -> str:
    """The whole page as Markdown."""
    return "\n".join(
        [HEAD, *_page_a(data), *_page_b(), *_page_c(data), *_page_complexity(), *published_items.section(), NEXT]
    )


def _page_complexity() -> Iterator[str]:
    yield figures()["complexity_text"]["before"]
    rows = [(claim, *claimed(claim)) for claim in figures()["claim"]]
    yield from table(
        ("report", "model", "figure", "batch", "published", "explained by", "gives", "follows", "right"),
        [
            (
                *(str(claim.get(name, "")) for name in ("report", "model", "what", "batch_size", "printed")),
                figures()["complexity_text"]["source"].get(str(claim["from"]), "its own figures"),
                f"{found:.4g}",
                _yes(agrees),
                right,
            )
            for claim, found, right, agrees in rows
        ],
    )
    yield figures()["complexity_text"]["after"]


def _page_a(data: Path) -> Iterator[str]:
    rows = table_a(data)
    yield A
    yield from table(
        ("GPU", "model", "batch", "published img/s", "wall img/s", "published %", "reproduced %", "right %"),
        [
            (
                row.gpu,
                row.model,
                str(row.batch_size),
                row.images_per_s.text,
                "" if row.wall_images_per_s is None else f"{row.wall_images_per_s:.1f}",
                row.published.text,
                "" if row.reproduced is None else f"{100 * row.reproduced:.2f}",
                _right(row),
            )
            for row in rows
        ],
    )
    yield ""
    for gpu, printed in figures()["a"]["average_percent"].items():
        right = [row for row in rows if row.gpu == gpu]
        low, high = (100 * fmean(getattr(row, name) for row in right) for name in ("right_low", "right_high"))
        text = f"{low:.1f} %" if low == high else f"{low:.1f} to {high:.1f} %, by the power limit"
        yield f"- {gpu}: published average {printed} %, reproduced {average(rows, gpu):.2f} %; right is at most {text}."
    yield ""
    yield from _rates(rows)


def _right(row: Efficiency) -> str:
    low, high = 100 * row.right_low, 100 * row.right_high
    text = f"{low:.1f}" if low == high else f"{low:.1f} to {high:.1f}"
    return text if row.wall_images_per_s is not None else f"at most {text}"


def _rates(rows: Sequence[Efficiency]) -> Iterator[str]:
    yield "The published images/s are means of rates, in which fast iterations have too much weight:\n"
    for row in rows:
        if row.mean_of_rates is not None and row.wall_images_per_s is not None:
            factor = row.mean_of_rates / row.wall_images_per_s
            yield (
                f"- {row.gpu} {row.model} b{row.batch_size}: mean of rates {row.mean_of_rates:.1f}, images over wall "
                f"time {row.wall_images_per_s:.1f}: {factor:.2f} x too high."
            )
    yield ""


def _page_b() -> Iterator[str]:
    rows = table_b()
    yield B
    yield from table(
        ("model", "GPU", "published FLOP/byte", "recomputed", "follows", "GFLOP per step", "x model", "finding"),
        [
            (
                row.model,
                row.gpu,
                row.published.text,
                f"{row.intensity:.4g}",
                _yes(row.agrees),
                f"{row.counted_flop / 1e9:.1f}",
                "" if row.over_model is None else f"{row.over_model:.2f}",
                row.warning or "",
            )
            for row in rows
        ],
    )
    yield ""
    batch_size = figures()["b"]["batch_size"]
    flop = train_flop("resnet50", batch_size=batch_size)
    held = {row.gpu: row for row in rows if row.model == "ResNet50"}
    l4 = held["L4"]
    others = " and ".join(f"{held[gpu].counted_flop / 1e9:.0f} on the {gpu}" for gpu in ("T4", "V100"))
    yield (
        f"ResNet50 on the L4: 204.8 GFLOP/s x 0.9508 s = {l4.counted_flop / 1e9:.1f} GFLOP per step. The same step "
        f"has {others}, and {flop / 1e9:.0f} by formulas: the L4's count is "
        f"{counted_over_model(l4.counted_flop, flop):.3f} x that. An L4 runs fp32 convolutions on tensor cores, "
        "because TF32 is PyTorch's default there, and the counters in the report do not include tensor cores. So the "
        "point is a lower bound, and does not show a slow machine. Two of the L4's intensities do not follow from the "
        "figures beside them, and its MobileNet has twice the FLOP of the other GPUs. So something else in that column "
        "is wrong too, but the report has too few figures to find out what."
    )
    yield ""
    yield from _estimates(rows, flop)


def _estimates(rows: Sequence[Measured], flop: float) -> Iterator[str]:
    yield 'The "theoretical training time" is printed in "seconds", but is in milliseconds:\n'
    yield from table(
        ("model", "GPU", 'published, "s"', "recomputed, s"),
        [(row.model, row.gpu, row.estimate.text, f"{row.estimate_s:.5f}") for row in rows],
    )
    yield ""
    peak = peaks.find("Tesla T4", precision="fp32")
    assert peak
    measured_s = float(figures()["b"]["row"][0]["step_s"])
    yield (
        f"If the FLOP of a step are used instead of the MACs of the forward pass, ResNet50 on a T4 takes at least "
        f"{flop / peak.flop_per_s:.3f} s. It was measured to take {measured_s:g} s, which is "
        f"{percent(flop / peak.flop_per_s / measured_s)} of the peak."
    )
    yield ""


def _page_c(data: Path) -> Iterator[str]:
    rows, exact = table_c(), row_a1(data)
    said = next(row for row in figures()["c"]["row"] if "profile" in row)
    yield C
    yield from table(
        ("id", "GFLOP/s", "recomputed", "follows", "FLOP/byte", "recomputed", "follows", "x forward", "x step"),
        [
            (
                row.id,
                row.published_gflop_per_s.text,
                f"{row.gflop_per_s:.1f}",
                _yes(row.rate_agrees),
                row.published_intensity.text,
                f"{row.intensity:.3f}",
                _yes(row.intensity_agrees),
                f"{row.over_forward:.2f}",
                f"{row.over_step:.2f}",
            )
            for row in rows
        ],
    )
    yield ""
    yield "Row A-1, computed from its published profile:\n"
    joined, mbyte = "join, see below", "1 Mbyte taken as 2^20 byte"
    figures_a1 = [
        ("GFLOP/s", said["gflop_per_s"], "", f"{exact.gflop_per_s:.3f}", "none"),
        ("FLOP/byte", "6.623475", f"{exact.binary_intensity:.6f}", f"{exact.intensity:.3f}", mbyte),
        ("DRAM %", said["dram_percent"], f"{exact.joined_dram_percent:.3f}", f"{exact.dram_percent:.2f}", joined),
        ("SM %", said["sm_percent"], f"{exact.joined_sm_percent:.3f}", f"{exact.sm_percent:.3f}", joined),
    ]  # fmt: skip
    yield from table(("", "published", "computed with the mistake", "right", "the mistake"), figures_a1)
    yield ""
    yield (
        f"The author joined the table of percentages with the table of times on kernel name, block and grid. The "
        f"{exact.launches} kernel launches have only {exact.keys} different keys, so each launch was joined with the "
        f"percentages of all launches with the same key: {exact.joined_rows} rows. The right key is process and ID."
    )
    yield ""
    yield (
        f"The profile covers a push/pop NVTX range. This misses the backward pass, because another thread runs it:"
        f" {exact.backward_kernels} of the {exact.launches} kernels belong to a backward pass. The counted FLOP are"
        f" {rows[0].over_forward:.2f} x the FLOP of the forward pass, but {rows[0].over_step:.2f} x those of a step."
    )
    yield ""
    yield from _roof_of_c(exact)
    yield "The output of `analyze kernels` for the file:\n"
    yield from (f"    {line}" for line in _command(_profile(data)).splitlines())


def _roof_of_c(exact: Exact) -> Iterator[str]:
    peak = peaks.find("NVIDIA L4", precision="fp32")
    assert peak
    roof = Roof(kind=RoofKind.PEAK, flop_per_s=peak.flop_per_s, bytes_per_s=peak.bytes_per_s)
    limit = roof.at(exact.intensity)
    yield (
        f"At {exact.intensity:.2f} FLOP/byte the L4's roof is {limit / 1e12:.2f} TFLOP/s (ridge at {roof.ridge:.0f}); "
        f"{exact.gflop_per_s:.0f} GFLOP/s are {percent(exact.gflop_per_s * 1e9 / limit, decimals=1)} of it."
    )
    yield ""


def _command(path: Path) -> str:
    text = io.StringIO()
    with redirect_stdout(text):
        kernels.kernels(paths=[path])
    return text.getvalue()


def _yes(agrees: bool) -> str:
    return "yes" if agrees else "**no**"


if __name__ == "__main__":
    print(page(Path(sys.argv[1])))
