"""Runs of which a sentence of a report, a figure or a table is true or false."""

from collections.abc import Callable, Mapping
from math import nan
from typing import Any, TypeAlias

import pandas as pd

from analysis import scaling, summary
from analysis.api import Results
from analysis.figures import material
from analysis.kernels import kernel_points
from analysis.loading.cases import OfRuns, cases
from analysis.report.evidence import ReportEvidence
from analysis.roofline.points import points
from analysis.roofline.roofs import roofs
from tests.analysis.by_hand import BYTES, at_rates, kernels, run

Runs: TypeAlias = list[dict[str, Any]]
Make: TypeAlias = Callable[[], Runs]
# The fixture `golden` takes the name of a file and its text.
Golden: TypeAlias = Callable[[str, str], None]


T4 = {"place": "t4", "device_name": "Tesla T4", "compute_capability": "7.5"}
ROOFS = {**BYTES, "ceiling_flop_per_s": 2e13, "ceiling_bytes_per_s": 2.5e11, "bound": "compute", "bound_why": "60 %"}
CPU = {
    "device_type": "cpu",
    "device_name": "Xeon",
    "place": "local-cpu",
    "compute_capability": None,
    "driver_version": None,
    "threads": 2.0,
}
BUSY = {**CPU, "cpus_used": 0.3}
FAST, SLOW = (100.0, 101.0, 99.5), (50.0, 50.5, 49.8)
NEAR = (99.0, 102.0, 100.4)
UNTIMED = {"images_per_s": None, "step_median_s": None, "train_flop_per_image": None, "path": "/nowhere"}


def own(rates: tuple[float, ...] = FAST, name: str = "a", **facts: Any) -> Runs:
    return at_rates(name, rates, **facts)


def gains(times: float, rate: float = 10.0, **facts: Any) -> Runs:
    """Three runs in fp32 at about `rate`, and three in amp that are `times` as fast."""
    spread = (1, 1.01, 0.99)
    name = f"{rate:g}"
    amp = own((*(rate * times * share for share in spread),), f"{name}amp", precision="amp", **facts)
    return [*own((*(rate * share for share in spread),), name, **facts), *amp]


def batches(*rates: float, share: float = 0.001) -> Runs:
    """Three runs at each of the batch sizes 16, 32, 64, …"""
    return [
        one
        for number, rate in enumerate(rates)
        for one in own((rate, rate * (1 + share), rate * (1 - share)), f"b{number}-", batch_size=16 * 2**number)
    ]


UNKNOWN_WORK = {
    "train_flop_per_step": None,
    "train_flop_per_image": None,
    "forward_mac_per_image": None,
    "forward_flop_per_image": None,
    "device_name": "Unknown GPU",
}


def profile_alone() -> Runs:
    profile = kernels("sgemm", "bn_fw").assign(
        family=["GEMM", "batch norm"],
        duration_s=[3e-3, 1e-3],
        flop=[4e9, 1e8],
        dram_bytes=[1e8, 1e8],
        flop_is_lower_bound=False,
        **dict.fromkeys(("l2_bytes", "l1_bytes", "sm_percent", "memory_percent", "dram_percent"), nan),
    )
    return [run("p", steps=[], imported=True, kernels=profile, **UNTIMED)]


def failed(**facts: Any) -> Runs:
    return [run("f", steps=[], status="failed", **{"path": "/nowhere", **facts})]


def above_the_ceiling() -> Runs:
    return own(ceiling_flop_per_s=1e11, ceiling_bytes_per_s=1e11)


def two_environments() -> Runs:
    return [*own(), *own(SLOW, "b", **T4)]


def two_clouds(blocks: int = 3, **facts: Any) -> Runs:
    """A T4 of two clouds in as many blocks each, 2 x as fast on the second one."""
    found = []
    for number in range(blocks):
        for cloud, rate, driver, usd_per_h in (("gcp", SLOW, "580.95.05", 0.54), ("aws", FAST, "595.71.05", 0.526)):
            made = {
                **T4,
                "place": f"{cloud}-t4",
                "backend": cloud,
                "driver_version": driver,
                "cpu_model": f"CPU of {cloud}",
                "usd_per_h": usd_per_h,
                "job_name": "sweep",
                "block": float(number),
                "hostname": f"{cloud}-{number}",
            }
            found += own((rate[number % len(rate)],), f"{cloud}{number}-", **made | facts)
    return found


def two_batches() -> Runs:
    return batches(100.0, 120.0)


def with_roofs() -> Runs:
    return own(**ROOFS)


def dear_and_cheap() -> Runs:
    return [*own(usd_per_h=2.0), *own(SLOW, "b", **T4, usd_per_h=0.4)]


def undrawn(loaded: Results) -> ReportEvidence:
    tables = material.make(
        loaded,
        points=points,
        roofs=roofs,
        kernel_points=kernel_points,
        costs=summary.costs,
        scaling=lambda found: pd.DataFrame(scaling.scaling(found)),
    )
    every = OfRuns(cases=cases(loaded))
    return ReportEvidence(results=loaded, of_runs=every, material=tables, drawn=(), points=points(loaded))


def differences(said: Mapping[str, tuple[list[str], list[str]]]) -> str:
    """By case: sentences of its runs alone (+), and of nearly the same runs alone (-)."""
    lines: list[str] = []
    for case, (own, others) in said.items():
        lines += [f"## {case}", *(f"+ {text}" for text in own if text not in others)]
        lines += [*(f"- {text}" for text in others if text not in own), ""]
    return "\n".join(lines)
