"""Read a report of Nsight Compute (.ncu-rep) through NVIDIA's own module `ncu_report`, which needs no GPU."""

import importlib
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.readers.ncu import metrics
from analysis.readers.ncu.errors import REPORT_MAGIC, NcuFileError
from analysis.readers.ncu.launches import Launches, capability
from workload.contract.errors import ToolError
from workload.contract.ncu_csv import factor

SUFFIX = ".ncu-rep"
_MODULE = "ncu_report"
_AXES = ("x", "y", "z")

# An action of ncu_report: a unit that was profiled, usually a kernel.
Action = Any


def read(path: Path) -> Launches:
    """Every launch of a report. Raises `ToolError` without `ncu_report`, `NcuFileError` if the file is no report."""
    with path.open("rb") as file:
        if file.read(len(REPORT_MAGIC)) != REPORT_MAGIC:
            reason = f"its name ends in {SUFFIX}, but it is no report"
            raise NcuFileError(path, reason, hint="copy it again from the machine that made it")
    actions = [action for profiled_range in _load(path) for action in profiled_range]
    # For a report that is cut off, ncu_report returns an action without a name.
    if not any(action.name() for action in actions):
        raise _damaged(path, "it contains no kernel")
    names = sorted({name for action in actions for name in action.metric_names()})
    values: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for role in metrics.known(names):
        values_of_role = [_value(action, role) for action in actions]
        if any(value is not None for value in values_of_role):
            values[role.name] = np.array([np.nan if value is None else value for value in values_of_role])
    return Launches(
        ids=np.arange(len(actions)),
        gpus=pd.Categorical([_text(action, metrics.DEVICE_NAME) for action in actions]),
        identity={name: pd.Categorical([text(action) for action in actions]) for name, text in _IDENTITY.items()},
        by_role=values,
        metrics=frozenset(names),
        attributes={
            name: text
            for name in names
            if name.startswith(metrics.ATTRIBUTE) and (text := _text(actions[0], name)) is not None
        },
        warnings=(),
    )


def _load(path: Path) -> Any:
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        export = f"LC_ALL=C ncu --import {shlex.quote(str(path))} --csv --page raw --print-units base > kernels.csv"
        raise ToolError(
            f"'{path}' is a report of Nsight Compute, and there is no {_MODULE} to read it with",
            hint=f"pip install ncu-report, or {export}",
        ) from error
    try:
        return module.load_report(str(path))
    except (OSError, RuntimeError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, reason: str) -> NcuFileError:
    hint = f"ncu --import {shlex.quote(str(path))} shows what ncu itself reads in it"
    return NcuFileError(path, f"{_MODULE} cannot read it: {reason}", hint=hint)


def _value(action: Action, role: metrics.MetricRole) -> float | None:
    """Value in base units of the first metric of the role that was measured; None if none was."""
    for name in role.metrics:
        metric = action.metric_by_name(name)
        value = None if metric is None else metric.value()
        base_units = None if metric is None else factor(role.kind, metric.unit())
        if isinstance(value, int | float) and base_units is not None and np.isfinite(value):
            return value * base_units
    return None


def _text(action: Action, name: str) -> str | None:
    metric = action.metric_by_name(name)
    value = None if metric is None else metric.value()
    # ncu_report returns integers as floats.
    return None if value is None else f"{value:.15g}" if isinstance(value, float) else str(value)


def _dimensions(pattern: str) -> Callable[[Action], str | None]:
    def text(action: Action) -> str | None:
        sizes = [_text(action, pattern.format(axis)) for axis in _AXES]
        return None if None in sizes else f"({', '.join(filter(None, sizes))})"

    return text


def _range(action: Action) -> str | None:
    state = action.nvtx_state()
    domains = [] if state is None else [state.domain_by_id(number) for number in state.domains()]
    started = [name for domain in domains for name in domain.start_end_ranges()]
    pushed = [name for domain in domains for name in domain.push_pop_ranges()]
    return "/".join([*started, *pushed]) or None


_IDENTITY: Mapping[str, Callable[[Action], str | None]] = {
    "process_id": lambda _: None,
    "range": _range,
    "name": lambda action: action.name(action.NameBase_DEMANGLED) or action.name(),
    "compute_capability": lambda action: capability(_text(action, metrics.MAJOR), _text(action, metrics.MINOR)),
    "device": lambda action: _text(action, metrics.DEVICE_NAME),
    "block": _dimensions("launch__block_dim_{}"),
    "grid": _dimensions("launch__grid_dim_{}"),
}
