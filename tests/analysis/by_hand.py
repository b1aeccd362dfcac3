"""Results made by hand: rows of facts and series, everything else absent, as `analysis.load` would give them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.api import Results
from analysis.loading.index import Problem
from analysis.loading.run_row import CEILING_COLUMNS, RUN_COLUMNS
from workload.contract import bundle
from workload.contract.bundle import STEP_COLUMNS, TELEMETRY_COLUMNS
from workload.contract.fields import RANGES

# A clean run of ours; a test says what is different.
CLEAN: Mapping[str, Any] = {
    "status": "completed",
    "imported": False,
    "place": "local-cuda",
    "backend": "local",
    "runtime": "process",
    "started_at": datetime(2026, 11, 21, tzinfo=UTC),
    "device_type": "cuda",
    "device_name": "NVIDIA L4",
    "compute_capability": "8.9",
    "driver_version": "580.95.05",
    "model": "resnet18",
    "batch_size": 32,
    "precision": "fp32",
    "dataset": "synthetic",
    "image_size": 224.0,
    "grad_accumulation": 1.0,
    "forward_mac_per_image": 1.8140e9,
    "forward_flop_per_image": 3.6281e9,
    "train_flop_per_image": 10.6484e9,
    "train_flop_per_step": 32 * 10.6484e9,
    "torch": "2.15.0",
    "commit": "0123456789abcdef",
    "commit_dirty": False,
    "profile_status": "not requested",
}
FLAT = (0.1,) * 40


def run(run_id: str = "a", *, steps: Sequence[float] | None = None, **facts: Any) -> dict[str, Any]:
    """The facts of one run; figures that follow from its steps are put in where they are not given."""
    series = noisy(seed=sum(map(ord, run_id))) if steps is None else list(steps)
    given = {**CLEAN, "run_id": run_id, "steps": series, **facts}
    images = given["batch_size"] * len(series)
    if series:
        wall_s, data_s = given.get("measured_s", sum(series)), sum(given.get("data_s", [0.0]))
        given = {
            "measured_s": sum(series),
            "images": images,
            "images_per_s": images / sum(series),
            "step_median_s": float(np.median(series)),
            "step_p5_s": float(np.percentile(series, 5)),
            "step_p95_s": float(np.percentile(series, 95)),
            "iterations": float(len(series)),
            "explained_fraction": (sum(series) + data_s) / wall_s if wall_s else None,
            "data_wait_fraction": data_s / wall_s if wall_s else None,
        } | given
    return given


def noisy(*, seed: int = 0, n: int = 60, step_s: float = 0.1, share: float = 0.001) -> list[float]:
    """Steps that vary by `share`, as those of a quiet machine do."""
    return list(step_s * (1 + share * np.random.default_rng(seed).standard_normal(n)))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ByHand(Results):
    """Results with launches that `Results.kernels` would read from files."""

    launches: pd.DataFrame

    @cached_property
    def _kernels(self) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
        return self.launches[self.launches["run_id"].isin(["", *self.runs["run_id"]])], ()


def results(*runs: Mapping[str, Any], folder: Path | None = None) -> Results:
    """Results of rows by `run`, which may also have ended_at_s, data_s, telemetry, record, ceilings and kernels."""
    series = {"steps": _steps, "telemetry": _telemetry, "ceilings": _ceilings}
    tables = {name: pd.concat([table(each) for each in runs], ignore_index=True) for name, table in series.items()}
    launches = [each["kernels"].assign(run_id=each["run_id"]) for each in runs if "kernels" in each]
    return ByHand(
        runs=pd.DataFrame([_facts(each, folder) for each in runs]),
        problems=(),
        launches=pd.concat([kernels().assign(run_id=""), *launches], ignore_index=True),
        **tables,
    )


def _facts(given: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    facts = {name: given.get(name) for name in RUN_COLUMNS}
    facts = {
        name: np.nan if facts[name] is None and kind in RANGES else facts[name] for name, kind in RUN_COLUMNS.items()
    }
    facts["notes"] = given.get("notes", [])
    facts["steps"] = float(len(given["steps"])) or np.nan
    if "record" in given:
        assert folder is not None
        facts["path"] = str(folder / given["run_id"])
        (folder / given["run_id"]).mkdir()
        spec = {"model": given["model"], "batch_size": given["batch_size"]}
        every_run_has = {"run_id": given["run_id"], "status": given["status"], "spec": spec}
        bundle.write_document(folder / given["run_id"], every_run_has | given["record"])
    return facts


def _steps(given: Mapping[str, Any]) -> pd.DataFrame:
    """A warm-up step, then the measured ones; time stamps follow the steps unless given."""
    series = given["steps"]
    if not len(series):
        return pd.DataFrame(columns=["run_id", *STEP_COLUMNS])
    data = given.get("data_s", [0.0] * len(series))
    ended = given.get("ended_at_s", 5.0 + np.cumsum(np.add(series, data)))
    table = pd.DataFrame({"step_s": [0.2, *series], "data_s": [0.0, *data], "ended_at_s": [5.0, *ended]})
    table["phase"] = ["warmup", *["measured"] * len(series)]
    table["step"] = np.arange(len(table), dtype=float)
    table["images"] = float(given["batch_size"])
    return table.reindex(columns=list(STEP_COLUMNS)).assign(run_id=given["run_id"])


def _telemetry(given: Mapping[str, Any]) -> pd.DataFrame:
    """Columns by name, all of one length, spread evenly over the measured region; `t_s` unless given."""
    columns = dict(given.get("telemetry", {}))
    size = max((len(values) for values in columns.values()), default=0)
    if size and "t_s" not in columns:
        steps = _steps(given)
        columns["t_s"] = np.linspace(steps["ended_at_s"].iloc[0], steps["ended_at_s"].iloc[-1], size)
    table = pd.DataFrame(columns, dtype=float).reindex(columns=list(TELEMETRY_COLUMNS))
    return table.assign(run_id=given["run_id"])


def _ceilings(given: Mapping[str, Any]) -> pd.DataFrame:
    rows = [{"run_id": given["run_id"], **row} for row in given.get("ceilings", ())]
    table = pd.DataFrame(rows, columns=["run_id", *CEILING_COLUMNS])
    return table.assign(roof_per_s=table["roof_per_s"].fillna(table["median_per_s"]))


def kernels(*names: str, **columns: Any) -> pd.DataFrame:
    """Launches of kernels, with the columns that the analysis reads."""
    table = {"name": list(names), "range": np.nan, "flop": 1.0, "dram_bytes": 1.0, "flop_tensor": np.nan}
    return pd.DataFrame(table | columns)


CEILINGS = (
    {"quantity": "flop_per_s", "name": "fp32", "median_per_s": 2e13},
    {"quantity": "bytes_per_s", "name": "copy", "median_per_s": 2.5e11},
)
BYTES: Mapping[str, Any] = {"bytes_lower_per_step": 4e9, "bytes_upper_per_step": 16e9, "ceilings": CEILINGS}


def for_every_figure() -> list[dict[str, Any]]:
    """Runs of which each figure of the registry can be drawn; their bundles have gone."""
    profile = kernels("sgemm", "bn_fw").assign(
        family=["GEMM", "batch norm"],
        duration_s=[2e-3, 1e-3],
        flop=[4e9, 1e8],
        dram_bytes=[1e8, 1e8],
        l2_bytes=[2e8, 1e8],
        flop_is_lower_bound=False,
        **dict.fromkeys(("l1_bytes", "sm_percent", "memory_percent", "dram_percent"), np.nan),
    )
    facts: dict[str, Any] = {**BYTES, "usd_per_h": 0.7, "ceiling_flop_per_s": 2e13, "ceiling_bytes_per_s": 2.5e11}
    slow = {**facts, "place": "t4", "device_name": "Tesla T4", "compute_capability": "7.5", "usd_per_h": 0.4}
    counted = {"counted_flop_per_step": 3e11, "counted_dram_bytes_per_step": 8e9}
    return [
        *at_rates("a", (100.0, 102.0, 98.0), **facts, **counted, kernels=profile, joules_per_image=0.4),
        *at_rates("b", (120.0, 122.0), batch_size=64, **facts, joules_per_image=0.3),
        *at_rates("c", (40.0, 40.5), **slow),
        *at_rates("d", (45.0, 45.5), batch_size=64, **slow),
        *at_rates("g", (300.0,), **{**facts, "model": "mobilenet_v2", "train_flop_per_image": 1.8e9}),
        *at_rates("h", (150.0,), **{**slow, "model": "mobilenet_v2", "train_flop_per_image": 1.8e9}),
        *at_rates("i", (50.0, 50.5), **facts, model="vgg11", devices=1.0),
        *at_rates("j", (45.0, 45.5), **facts, model="vgg11", devices=2.0),
        run("e", batch_size=128, status="out_of_memory", steps=[], path="/nowhere"),
    ]


def at_rates(name: str, images_per_s: Sequence[float], **facts: Any) -> list[dict[str, Any]]:
    """Runs of one configuration with these throughputs, steps of the time that follows; their bundles have gone."""
    step_images = facts.get("batch_size", 32)
    return [
        run(f"{name}{number}", steps=[step_images / rate] * 20, **{"path": "/nowhere", **facts})
        for number, rate in enumerate(images_per_s)
    ]
