"""Makes workload/stats/step_times.csv from published throughputs, and measures the rule of `step_times.expected`.

python benchmarks/step_times.py ../shared/data/published_throughput.csv   # makes the file, then measures
python benchmarks/step_times.py                                           # measures
"""

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import exp
from pathlib import Path
from statistics import median, quantiles

from workload.contract.peaks import Gpu
from workload.stats import step_times
from workload.stats.step_times import MeasuredStep, Step

READ = "2026-11"
GPUS = {
    "T4": "T4",
    "L4": "L4",
    "V100-SXM2": "V100 SXM2",
    "V100-PCIE": "V100 PCIe",
    "RTX3090": "RTX 3090",
    "RTX4080-Laptop": "RTX 4080 Laptop",
    "RTX4080": "RTX 4080",
    "RTX4090": "RTX 4090",
    "A100-PCIE-40": "A100 40 GB",
    "A100-SXM-40": "A100 40 GB",
    "A100-PCIE-80": "A100 80 GB PCIe",
    "A100-SXM-80": "A100 80 GB SXM",
    "H100-PCIE": "H100 PCIe",
    "H100-SXM": "H100 SXM5",
    "H200-SXM": "H200 SXM",
}
# Half of the values with 16 bits are as fast as autocast on the same units.
PRECISIONS = {"fp16": "amp"}
# Programs of eager PyTorch, and the rows of each that are steps of a GPU: not of TensorFlow, MXNet and Paddle, whose
# kernels differ; not of gpuinsights, which compiles; not of ryu, which has no optimizer step.
PROGRAMS: dict[str, Callable[[str, float], bool]] = {
    **dict.fromkeys(("lambda_pt", "sandeep", "nvidia_pytorch", "timm", "dhairya", "gavel"), lambda _gpu, _s: True),
    # On an RTX 4090 under Windows this program waits for its JPEG input: half of Lambda's rate.
    "jcxal": lambda gpu, _s: gpu == "L4",
    # Host and JPEG input take 0.12 to 0.21 s of each step: at most a quarter of these.
    "sia": lambda gpu, step_s: gpu == "T4" and step_s > 4 * 0.21,
}
WORK = ("flop", "bytes_lower", "bytes_upper")
COLUMNS = ("gpu", "model", "precision", "batch", "img_per_s", *WORK, "program", "source", "read")


def made(published: Path) -> Iterator[dict[str, str | float]]:
    """Rows of the file: comparable steps on GPUs whose peaks are known."""
    from workload.steps import complexity  # noqa: PLC0415 - a test measures the rule without torch

    for row in csv.DictReader(published.open(encoding="utf-8", newline="")):
        notes = dict(part.split("=", 1) for part in row["notes"].split(";")[:3])
        # NVIDIA's example: 256 images by default.
        batch = int(row["batch"] or 256)
        is_step = PROGRAMS.get(notes["stack"], lambda _gpu, _s: False)
        if (
            row["gpu"] not in GPUS
            or notes["tier"] not in "AB"
            or not is_step(row["gpu"], batch / float(row["img_per_s"]))
        ):
            continue
        precision = PRECISIONS.get(row["precision"], row["precision"])
        work = complexity.count(row["model"], num_classes=1000, image_size=224, batch_size=batch, precision=precision)
        yield {
            "gpu": GPUS[row["gpu"]],
            "model": row["model"],
            "precision": precision,
            "batch": batch,
            "img_per_s": float(row["img_per_s"]),
            "flop": work.train_flop_per_step,
            "bytes_lower": work.bytes_per_step_lower,
            "bytes_upper": work.bytes_per_step_upper,
            "program": f"{notes['stack']} {notes['format']}".strip(),
            "source": row["source"],
            "read": READ,
        }


def labelled() -> list[tuple[MeasuredStep, str]]:
    """Published steps, each with the program that ran it."""
    with step_times.ROWS.open(encoding="utf-8", newline="") as file:
        programs = [row["program"] for row in csv.DictReader(file)]
    return list(zip(step_times.published(), programs, strict=True))


def held_out(case: str) -> Iterator[tuple[bool, float]]:
    """For each published step whether its interval has it, and high / low, without all that the case holds out."""
    rows = labelled()
    by_id = {id(one): one for one, _ in rows}

    @cache
    def ends(rest: tuple[int, ...], is_near: bool) -> tuple[float, float]:
        percentiles = quantiles(
            step_times.errors([by_id[key] for key in rest], is_near=is_near), n=100, method="inclusive"
        )
        return percentiles[step_times.LOW - 1], percentiles[step_times.HIGH - 1]

    for one, program in rows:
        gpu, model = one.gpu.gpu, one.step.model
        match case:
            case "GPU never seen":
                rest = [other for other, _ in rows if other.gpu.gpu != gpu]
                nears = [[]]
            case "model never seen":
                rest = [other for other, _ in rows if other.step.model != model]
                nears = [[other for other in rest if other.gpu.gpu == gpu]]
            case "model not seen on this GPU":
                rest = [other for other, _ in rows if (other.gpu.gpu, other.step.model) != (gpu, model)]
                nears = [[other for other in rest if other.gpu.gpu == gpu]]
            case _:
                rest = [other for other, _ in rows if other.gpu.gpu != gpu]
                work = (program, model, one.step.precision)
                same = [other for other, by in rows if (by, other.step.model, other.step.precision) == work]
                nears = [[other] for other in same if other.gpu.gpu != gpu]
        for near in nears:
            if case in ("GPU never seen", "model never seen") or near:
                is_near = any(other.gpu == one.gpu for other in near)
                low, high = ends(tuple(map(id, rest)), is_near)
                error = step_times.factor([one]) - step_times.factor(rest, near)
                yield low <= error <= high, exp(high - low)


def measure() -> None:
    """Print share of steps inside their intervals, and median and 90 % percentile of their widths (high / low)."""

    def longer(step: Step, gpu: Gpu) -> float:
        return max(model(replace(step, bytes_upper=0.0), gpu), model(replace(step, flop=0.0), gpu))

    model = step_times.modelled_s
    for rule, passes, seconds in (
        ("FLOP alone", 0.0, model),
        ("the longer of FLOP and bytes", 1.0, longer),
        *((f"FLOP + {passes:g} x bytes", passes, model) for passes in (1.0, 1.5, 2.0, 3.0)),
    ):
        step_times.PASSES, step_times.modelled_s = passes, seconds
        for case in ("GPU never seen", "model never seen", "model not seen on this GPU", "measured on another GPU"):
            inside, widths = zip(*held_out(case), strict=True)
            share, most = sum(inside) / len(inside), quantiles(widths, n=10)[-1]
            print(f"{rule:28}  {case:26}  {len(inside):4} {share:4.0%}  {median(widths):5.2f} {most:5.2f}")


def main() -> None:
    if len(sys.argv) > 1:
        rows = list(made(Path(sys.argv[1])))
        with step_times.ROWS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    measure()


if __name__ == "__main__":
    main()
