"""Compares predicted with measured step times: `python -m docs.predictions DATA` prints the page.

DATA is a folder with `published_throughput.csv` and `ncu/`. With `--errors`, prints prediction_errors.toml instead.
"""

import csv
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from analysis.loading import model_work
from analysis.loading.gpu_names import gpus_named
from analysis.readers import ncu
from analysis.roofline.predictions import Errors, Tier, Unpredictable, Work, find_gpus, kind_of, roof_step_s
from docs.published_items import table
from workload.contract.errors import UsageError
from workload.contract.peaks_table import Gpu
from workload.contract.spec import Precision
from workload.contract.text import percent, signed_percent
from workload.contract.vocabulary import MODEL_RATIO_FROM

FIGURES = Path(__file__).with_name("published_tables.toml")
# Per cent of the measurements that are beyond each end of an interval.
BEYOND_PERCENT = 5
# Fewest values of which the outermost ones are 5 % and 95 % quantiles of the next: 1 / (n + 1) <= 5 %.
FEWEST = 19
# Precision in which published software computes, as a precision of ours: weights in fp16 use the same units as AMP.
PRECISIONS = {"fp16": "amp"}
IMAGE_SIZE = 224
KINDS = ("fp32", "tf32", "16-bit")


@dataclass(frozen=True, kw_only=True)
class Check:
    """A measured step on a GPU, and its time at the GPU's roofs."""

    what: str
    gpu: Gpu
    precision: str
    measured_s: float
    roof_s: tuple[float, float]
    tier: Tier = Tier.MODEL

    @property
    def chip(self) -> str:
        """Name of the chip, which several GPUs may have."""
        return next(iter(sorted(gpus_named(self.gpu.names[0]))))

    @property
    def error(self) -> float:
        """Error of the time at the roofs: the middle of its ends, compared with the measured time."""
        return sum(self.roof_s) / 2 / self.measured_s - 1


def published(data: Path) -> tuple[list[Check], Counter[str]]:
    """The rows of published_throughput.csv with tier A or B, and the number of skipped rows by reason."""
    with (data / "published_throughput.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if re.search(r"tier=[AB]\b", row["notes"])]
    checks, skipped = list[Check](), Counter[str]()
    for row in rows:
        try:
            checks.append(_published(row))
        except Unpredictable as reason:
            skipped[str(reason)] += 1
    return checks, skipped


def _published(row: Mapping[str, str]) -> Check:
    precision = PRECISIONS.get(row["precision"], row["precision"])
    try:
        (gpu,) = find_gpus([row["gpu"]])
    except UsageError as error:
        raise Unpredictable("no peaks of the GPU in peaks.toml", hint="") from error
    if not row["batch"]:
        raise Unpredictable("no batch size", hint="")
    if model_work.find(row["model"], IMAGE_SIZE) is None:
        raise Unpredictable("no torchvision model of this name", hint="")
    batch_size = int(row["batch"])
    total = _by_formula(row["model"], batch_size, precision)
    stack = re.search(r"stack=(\w+)", row["notes"])
    return Check(
        what=f"{row['model']} b{batch_size} {row['precision']} ({stack[1] if stack else ''})",
        gpu=gpu,
        precision=precision,
        measured_s=batch_size / float(row["img_per_s"]),
        roof_s=roof_step_s(total, gpu, precision),
    )


def _by_formula(model: str, batch_size: int, precision: str) -> Work:
    work = model_work.find(model, IMAGE_SIZE)
    assert work
    return Work.total(work.train_flop_per_image * batch_size, *work.bytes_per_step(batch_size, precision))


# --- errors


def errors_of(checks: Sequence[Check]) -> dict[str, Errors]:
    """Errors by kind of precision. `covered`: of this kind, with the quantiles of other chips."""
    return {kind: _quantiles(_alike(checks, kind), _covered(checks, kind)) for kind in KINDS}


def _covered(checks: Sequence[Check], kind: str, *, limited: bool = True) -> list[bool]:
    """Whether each measurement of a kind of precision lies in its interval without its chip.

    `limited`: whether the lower end is at most the time at the roofs.
    """
    inside = []
    for check in (check for check in checks if kind_of(check.precision) == kind):
        errors = without_chip(checks, check)
        is_above = limited or errors.low_p5 * check.roof_s[0] <= check.measured_s
        inside.append(_is_covered(check, errors) and is_above)
    return inside


def without_chip(checks: Sequence[Check], check: Check) -> Errors:
    """Errors for the precision of a measurement, from the measurements of other chips."""
    others = [other for other in checks if other.chip != check.chip]
    return _quantiles(_alike(others, kind_of(check.precision)), [False])


def _alike(checks: Sequence[Check], kind: str) -> Sequence[Check]:
    """Measurements of one kind of precision; all if they are too few."""
    alike = [check for check in checks if kind_of(check.precision) == kind]
    return alike if len(alike) >= FEWEST else checks


def _quantiles(checks: Sequence[Check], covered: Sequence[bool]) -> Errors:
    ratios = [sorted(check.measured_s / check.roof_s[end] for check in checks) for end in (0, 1)]
    # The rank of a conformal prediction interval: a further value of the same kind is as likely in each gap.
    rank = max(1, (len(checks) + 1) * BEYOND_PERCENT // 100)
    (low_p5, low_p95), (high_p5, high_p95) = ((values[rank - 1], values[-rank]) for values in ratios)
    return Errors(
        rows=len(checks),
        chips=len({check.chip for check in checks}),
        low_p5=low_p5,
        low_p95=low_p95,
        high_p5=high_p5,
        high_p95=high_p95,
        least_s=min(check.roof_s[1] for check in checks),
        checked=len(covered),
        covered=fmean(covered),
    )


def _is_covered(check: Check, errors: Errors) -> bool:
    low, high = errors.interval(check.roof_s, check.tier)
    return low <= check.measured_s <= high


def toml(errors: Mapping[str, Errors]) -> Iterator[str]:
    """Lines of prediction_errors.toml."""
    yield "# Measured time / time at the vendors' roofs, of published training steps: 5 % and 95 % quantiles, relative"
    yield "# to the least (low) and the most (high) time at the roofs. `covered`: share of the measurements of this"
    yield "# precision in intervals made without their chip. Written by docs/predictions.py; see docs/predictions.md."
    for name, row in errors.items():
        yield ""
        yield f"[{name}]"
        yield from (
            f"{key} = {value if isinstance(value, int) else f'{value:.4g}'}" for key, value in vars(row).items()
        )


# --- the reports and their profiles


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A step of a report: its GPU, its measured time, and its FLOP and bytes by counters."""

    report: str
    what: str
    gpu: Gpu
    measured_s: float
    work: Work


def counted() -> list[Counted]:
    """The nine steps of report B and the five of report C."""
    figures = tomllib.loads(FIGURES.read_text(encoding="utf-8"))
    b, c = figures["b"], figures["c"]
    devices = {name: find_gpus([device])[0] for name, device in b["device"].items()}
    rows = list[Counted]()
    for row in b["row"]:
        step_s, gflop_per_s, gb_per_s = (float(row[name]) for name in ("step_s", "gflop_per_s", "gb_per_s"))
        gflop, gb = gflop_per_s * step_s, gb_per_s * step_s
        rows.append(_counted("B", f"{row['model']} b{b['batch_size']}", devices[row["gpu"]], step_s, gflop, gb))
    for row in c["row"]:
        gflop, gb, ms = (float(row[name]) for name in ("gflop", "gb", "ms"))
        rows.append(
            _counted("C", f"{row['model']} b{row['batch_size']} forward", devices[row["gpu"]], ms / 1e3, gflop, gb)
        )
    return rows


def _counted(report: str, what: str, gpu: Gpu, measured_s: float, gflop: float, gb: float) -> Counted:
    work = Work.total(gflop * 1e9, gb * 1e9, gb * 1e9)
    return Counted(report=report, what=what, gpu=gpu, measured_s=measured_s, work=work)


def of_reports() -> Iterator[tuple[str, Check]]:
    """Each step of the reports from the counters of its own GPU and of the others, with the origin of its work.

    ResNet50 also by formula. Counters of an L4 lack the tensor operations of its ResNet50 and predict nothing.
    """
    rows = counted()
    for row in rows:
        for other in rows:
            if (other.report, other.what) == (row.report, row.what) and not _lacks_tensor(other):
                on = "the same GPU" if other.gpu == row.gpu else other.gpu.gpu
                yield f"counters on {on}", _check(row, other.work, Precision.FP32)
        if row.what.startswith("ResNet50"):
            # PyTorch's default for convolutions.
            precision = next((peak.precision for peak in row.gpu.peaks if peak.precision == "tf32"), "fp32")
            yield f"formulas, {precision}", _check(row, _by_formula("resnet50", 64, precision), precision)


def _lacks_tensor(row: Counted) -> bool:
    if not row.what.startswith("ResNet50"):
        return False
    return bool(row.work.flop.sum() < MODEL_RATIO_FROM * _by_formula("resnet50", 64, "fp32").flop.sum())


def _check(row: Counted, work: Work, precision: str) -> Check:
    roof_s = roof_step_s(work, row.gpu, precision)
    return Check(what=row.what, gpu=row.gpu, precision=precision, measured_s=row.measured_s, roof_s=roof_s)


def of_profiles(data: Path) -> Iterator[tuple[str, Check]]:
    """The two public profiles with counters of each kernel, on their own GPUs."""
    for name, what, gpu in (
        ("v100_resnet50_wide.csv", "resnet50 b1", "V100 SXM2"),
        ("l4_resnet18_long_nvtx.csv", "resnet18 b64 forward", "L4"),
    ):
        kernels = ncu.read(data / "ncu" / name).kernels
        flop, moved = (kernels[column].to_numpy(dtype=float) for column in ("flop", "dram_bytes"))
        work = Work(tier=Tier.KERNELS, flop=np.zeros(len(flop)), flop_fp32=flop, bytes_low=moved, bytes_high=moved)
        (target,) = find_gpus([gpu])
        yield (
            f"{len(kernels)} kernels",
            Check(
                what=what,
                gpu=target,
                precision="fp32",
                measured_s=float(kernels["duration_s"].sum()),
                roof_s=roof_step_s(work, target, "fp32"),
                tier=Tier.KERNELS,
            ),
        )


# --- the page


HEAD = """\
# Predicted step times, compared with measured ones

`analyze predict RESULTS --gpu l4` predicts the step time on a GPU that was not run, as an interval. This page says
how good the intervals are. A script writes it (DATA is a folder with `published_throughput.csv` and `ncu/`):

    python -m docs.predictions DATA > docs/predictions.md
    python -m docs.predictions DATA --errors > analysis/roofline/prediction_errors.toml

**The time at the roofs.** A kernel takes at least its FLOP / the peak FLOP/s, and at least its bytes / the peak
bytes/s. The sum over the kernels is the step's time at the roofs: the time of a perfect GPU program. If only the
totals of a step are known, the sum is between the longer of the two times and both times together.

**The interval.** Real steps take longer, by a factor that published measurements show. The interval reaches from the
time at the roofs x the 5 % quantile of this factor to that time x the 95 % quantile. The quantiles are of the same
kind of precision if it has at least {fewest} measurements, otherwise of all. The lower end is never above the time at
the roofs (*the limit*). A step that is shorter at the roofs than every published one has no prediction: gaps between
kernels decide how long it takes.

**Three tiers of evidence**: `kernels` (a profile), `operators` (a trace), `model` (totals by formula, for which runs
on a CPU are enough). The first two narrow the time at the roofs, but too few profiles are public for quantiles of
their own. The reports below are the only check of them.

**How the rule was chosen.** A first rule had the quantiles alone, and covered too little, above all in fp32. The
limit of the lower end came after this comparison, so `covered` does not check it independently.

`covered` is the share of the measurements that lie in intervals made without their chip. The quantiles aim at 90 %. A
chip that is left out can differ more than the others do.

Of the published rows that are graded A or B, {used} are used. Skipped: {skipped}. The longest time at the roofs
differs from the measured one by {most} on average, the shortest by {least}; `error`, that of the middle of both,
is {error} on average.
"""
REPORTS = """
## The reports

Report B has nine steps under Nsight Compute, and report C five forward passes. Their times are sums of kernel times,
without gaps. The FLOP and bytes are those that the reports counted: on the same GPU, which checks the roofs, or on
another GPU, as `analyze predict` would use them. The models of B other than ResNet50 are not torchvision's. The
counters of ResNet50 on the L4 lack its tensor operations, and predict nothing. The last two rows are public profiles,
kernel by kernel. None of these steps was used for the quantiles.
"""
PUBLISHED = """
## Published throughputs

Each interval is made without the measurements of its chip.
"""


def page(data: Path) -> Iterator[str]:
    """Parts of the page."""
    checks, skipped = published(data)
    errors = errors_of(checks)
    words = ", ".join(f"{number} ({reason})" for reason, number in skipped.most_common())
    least, most = (percent(fmean(abs(check.roof_s[end] / check.measured_s - 1) for check in checks)) for end in (0, 1))
    error = percent(fmean(abs(check.error) for check in checks))
    yield HEAD.format(fewest=FEWEST, used=len(checks), skipped=words, error=error, least=least, most=most)
    yield from table(
        (
            "precision",
            "quantiles of",
            "chips",
            "measured / shortest time at the roofs",
            "measured / longest",
            "covered",
            "without the limit",
        ),
        [
            (
                name,
                f"{row.rows} rows",
                str(row.chips),
                f"{row.low_p5:.2f} to {row.low_p95:.2f}",
                f"{row.high_p5:.2f} to {row.high_p95:.2f}",
                f"{percent(row.covered)} of {row.checked}",
                percent(fmean(_covered(checks, name, limited=False))),
            )
            for name, row in errors.items()
        ],
    )
    yield REPORTS
    steps = [*of_reports(), *of_profiles(data)]
    rows = [(origin, check, errors[kind_of(check.precision)]) for origin, check in steps]
    yield from _table(rows, "work from")
    yield ""
    for group in ("counters on the same GPU", "counters on another GPU", "formulas", "kernels"):
        chosen = [row for row in rows if _group(row[0]) == group]
        inside = sum(_is_covered(check, error) for _, check, error in chosen)
        off = percent(fmean(abs(check.error) for _, check, _ in chosen))
        yield f"- {group}: {inside} of {len(chosen)} in the interval; the roofs are off by {off} on average."
    yield PUBLISHED
    yield from _table([("", check, without_chip(checks, check)) for check in checks], None)
    yield "\nNext: [published tables](published-tables.md)"


def _group(origin: str) -> str:
    if origin.startswith("counters"):
        return origin if origin.endswith("same GPU") else "counters on another GPU"
    return "formulas" if origin.startswith("formulas") else "kernels"


def _table(rows: Sequence[tuple[str, Check, Errors]], origin: str | None) -> Iterator[str]:
    names = (
        "GPU",
        "step",
        *([origin] if origin else []),
        "measured, ms",
        "at the roofs, ms",
        "error",
        "predicted, ms",
        "inside",
    )
    yield from table(names, [_cells(*row, with_origin=bool(origin)) for row in rows])


def _cells(origin: str, check: Check, errors: Errors, *, with_origin: bool) -> Sequence[str]:
    low, high = errors.interval(check.roof_s, check.tier)
    return (
        check.gpu.gpu,
        check.what,
        *([origin] if with_origin else []),
        _ms(check.measured_s),
        " to ".join(dict.fromkeys(map(_ms, check.roof_s))),
        signed_percent(check.error),
        f"{_ms(low)} to {_ms(high)}",
        "yes" if low <= check.measured_s <= high else "**no**",
    )


def _ms(value_s: float) -> str:
    """Milliseconds with three significant digits, whole ones from 100 on."""
    milliseconds = 1e3 * value_s
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"  # noqa: PLR2004


def main() -> None:
    """Print the page, or the errors."""
    data = Path(sys.argv[1])
    for line in toml(errors_of(published(data)[0])) if "--errors" in sys.argv else page(data):
        print(line)


if __name__ == "__main__":
    main()
