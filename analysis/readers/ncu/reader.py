"""Read a file of Nsight Compute, of any version and layout, into one row per kernel launch."""

import importlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.readers.ncu import flop, launches, metrics, table
from analysis.readers.ncu.launches import Launches, capability
from analysis.readers.ncu.metrics import Family
from analysis.readers.ncu.table import REPORT_MAGIC, DecimalCommaError, NcuFileError, NcuTable
from analysis.readers.tables import (
    LOOKED_AT_BYTES,
    NCU_REPORT_SUFFIX,
    decode,
    gpu_trace_as_csv,
    is_gpu_trace,
    needs_decoding,
)
from workload.contract import ncu_csv
from workload.contract.errors import ToolError
from workload.contract.ncu_csv import BYTE_ORDER_MARK, ERROR, NcuSource, NoTableError, Preamble, factor
from workload.contract.vocabulary import TENSOR_PIPE_IS_PRODUCTS, names_tensor_cores

_WARNINGS_LIMIT = 100
# A line without quotes and with fewer commas is no row: "1, 2" may be anything.
_FEW_CELLS = 3
_ONLY_TIMES = "a trace of Nsight Systems: times of kernels, no counters"
_CUT_OFF = "left out: the file is cut off or damaged"
_AGAIN = "each is counted once"


@dataclass(frozen=True, kw_only=True)
class NcuFile:
    """Contents of a file. Every figure is in base units; a counter that the file lacks is NaN, never 0.

    `kernels`: a row per launch in the order of the file; texts are categories. `range` has the names of the NVTX ranges
    around a launch: `vocabulary.step_of` and `calibration_of` read those of our own profiles. `totals`: sums of
    additive figures over all launches, by role of metrics.toml (`fp32_fma`, `dram_read`, `duration`) or name of a
    tensor metric; NaN if a launch has no value. `attributes`: `device__attribute_*` of the first launch's GPU.
    `warnings`: ncu's own errors and warnings, and parts that could not be read. `losses`: the warnings on data that the
    file drops, doubles, lacks or pools. `gpus`: number of launches by GPU. `is_partial`: ncu reported an error, or rows
    are missing.
    """

    path: Path
    kernels: pd.DataFrame
    totals: Mapping[str, float]
    attributes: Mapping[str, str]
    ncu_version: str | None
    warnings: tuple[str, ...]
    losses: tuple[str, ...]
    gpus: Mapping[str, int]
    is_partial: bool

    @property
    def device_name(self) -> str | None:
        """The name that the GPU reported; None if unknown."""
        return self.attributes.get(metrics.DEVICE_NAME)

    @property
    def compute_capability(self) -> str | None:
        """The compute capability of all launches; None if it is unknown, or if they differ."""
        capabilities = self.kernels["compute_capability"].dropna().unique()
        return str(capabilities[0]) if len(capabilities) == 1 else None


@dataclass(frozen=True, kw_only=True)
class _FileContent:
    """The launches of a file, a `Launches` for each of its tables, and facts about the file."""

    tables: Sequence[Launches]
    version: str | None = None
    warnings: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    is_partial: bool = False
    # The text that was parsed as a table; None for a report, and for a table whose lines are not those of the file.
    source: NcuSource | None = None


def read(path: Path, *, own: Sequence[str] = ()) -> NcuFile:
    """Read a CSV that ncu printed, or a report file if NVIDIA's `ncu_report` is installed.

    `own`: names of further metrics, which become columns of `kernels` in the units of the file.

    Raises `NcuFileError`, which names the failure, if there is no table of launches, and `ToolError` for a report that
    no installed module can read.
    """
    path = Path(path)
    try:
        content = _FileContent(tables=[_of_report(path)]) if path.suffix == NCU_REPORT_SUFFIX else _of_csv(path, own)
    except OSError as error:
        reason = f"it cannot be read: {error.strerror or error}"
        raise NcuFileError(path, reason, hint="check the path") from error
    tables, damage, is_incomplete = launches.unique_launches(content.tables)
    gpus = launches.gpus_of(tables)
    losses = [*content.losses, *damage]
    if len(gpus) > 1:
        launches_on = ", ".join(f"{gpu}: {number}" for gpu, number in gpus.items())
        losses.append(f"launches of {len(gpus)} GPUs are added up ({launches_on})")
    losses += [warning for part in content.tables for warning in part.warnings]
    trusted = [launches.without_doubtful(part) for part in tables]
    losses += [sentence for _, sentences in trusted for sentence in sentences]
    tables = [part for part, _ in trusted]
    frames = [_kernels(part, own) for part in tables]
    durations = [frame["duration_s"].to_numpy() for frame, _ in frames]
    flop.refuse(path, content.source, tables, durations)
    kernels = _joined([frame for frame, _ in frames])
    kernels.insert(0, "launch", np.arange(len(kernels)))
    remarks = [remark for _, more in frames for remark in more]
    rates = {role.name for role in metrics.roles() if role.kind not in launches.ADDITIVE}
    roles = dict.fromkeys(role for part in tables for role in part.by_role if role not in rates)
    nothing = np.array([np.nan])
    return NcuFile(
        path=path,
        kernels=kernels,
        totals={role: float(sum(part.by_role.get(role, nothing).sum() for part in tables)) for role in roles},
        attributes=tables[0].attributes,
        ncu_version=content.version,
        warnings=tuple(dict.fromkeys([*content.warnings, *losses, *remarks]))[:_WARNINGS_LIMIT],
        losses=tuple(dict.fromkeys(losses))[:_WARNINGS_LIMIT],
        gpus=gpus,
        is_partial=content.is_partial or is_incomplete,
    )


# --- the two kinds of files


def _of_csv(path: Path, own: Sequence[str]) -> _FileContent:
    source = original = _source(path)
    try:
        start = ncu_csv.find(source)
    except NoTableError as error:
        with source.open() as file:
            text = file.read().decode(errors="replace")
        if not is_gpu_trace(text):
            raise table.explain(path, error.head, error.text) from error
        content = gpu_trace_as_csv(text).encode()
        source = replace(source, content=content, remarks=(*source.remarks, _ONLY_TIMES))
        start = ncu_csv.find(source)
    sections = [section for section in table.sections(source, start, own) if len(section.columns)]
    if not sections:
        reason = "it has a header, but no kernel launch"
        raise NcuFileError(path, reason, hint="profile again; --launch-count 0 profiles all")
    try:
        tables = [launches.from_table(section) for section in sections]
    except DecimalCommaError as error:
        raise NcuFileError(path, str(error), hint="export again with LC_ALL=C") from error
    warnings, is_broken = _around(start, sections)
    return _FileContent(
        tables=tables,
        version=start.version,
        warnings=(*source.remarks, *warnings),
        losses=(*source.losses, *(line for line in warnings if line.endswith((_CUT_OFF, _AGAIN)))),
        is_partial=is_broken or any(line.startswith(ERROR) for line in warnings),
        source=source if source is original else None,
    )


def _source(path: Path) -> NcuSource:
    """The file at `path`; its content is kept in memory if it is compressed, not UTF-8, or read from a pipe."""
    with path.open("rb") as file:
        content = None if file.seekable() else file.read()
        head = file.read(LOOKED_AT_BYTES) if content is None else content[:LOOKED_AT_BYTES]
        if head.startswith(BYTE_ORDER_MARK) or not needs_decoding(head):
            return NcuSource(path=path, content=content)
        whole = head + file.read() if content is None else content
    decoded = decode(whole)
    if decoded.remarks and not decoded.content:
        raise NcuFileError(path, decoded.remarks[0], hint="copy it again from the machine that made it")
    return NcuSource(path=path, content=decoded.content, remarks=decoded.remarks, losses=decoded.losses)


def _around(start: Preamble, sections: Sequence[NcuTable]) -> tuple[list[str], bool]:
    """Messages of ncu before and between the rows, and whether rows are broken."""
    messages = list(start.messages)
    broken = int(start.is_cut)
    for line in (line for section in sections for line in section.rejected):
        messages += ncu_csv.messages_in(line)
        broken += _is_row(line)
    if broken:
        messages.append(f"{broken} broken row{'s' if broken > 1 else ''} {_CUT_OFF}")
    return messages, broken > 0


def _is_row(line: str) -> bool:
    """Whether a line looks like the rest of a launch's row, rather than output of the program."""
    return line.startswith('"') or (line[:1].isdigit() and line.count(",") >= _FEW_CELLS)


# --- one row per launch


def _kernels(part: Launches, own: Sequence[str]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The data frame of kernels, and remarks on how its figures were derived."""
    names = part.identity["name"]
    is_named = np.array([names_tensor_cores(str(name)) for name in names.categories] + [False])
    roles = part.by_role
    capabilities = part.identity["compute_capability"]
    is_pure = np.array([name in TENSOR_PIPE_IS_PRODUCTS for name in capabilities.categories] + [False])
    done = flop.work(roles, is_named[names.codes], is_pure[capabilities.codes])
    columns = {
        "process_id": part.identity["process_id"],
        "range": part.identity["range"],
        "name": names,
        "family": _families(names),
        **{name: part.identity[name] for name in ("compute_capability", "device", "block", "grid")},
        "duration_s": done.duration_s,
        "cycles": roles.get("cycles"),
        **{f"flop_{kind}": done.flop_by_type.get(kind) for kind in flop.TYPES},
        "flop_tensor": done.flop_tensor,
        "flop": done.flop,
        "flop_is_lower_bound": done.is_lower_bound,
        "hides_tensor_flop": done.hides_tensor,
        "dram_bytes": done.dram,
        "dram_read_bytes": done.dram_read,
        "dram_write_bytes": done.dram_write,
        "l2_bytes": roles.get("l2"),
        "l1_bytes": roles.get("l1"),
        **{name: roles.get(name) for name in ("sm_percent", "memory_percent", "dram_percent", *own)},
    }
    absent = np.full(len(part), np.nan)
    filled = {name: absent if column is None else column for name, column in columns.items()}
    return pd.DataFrame(filled), done.remarks


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate data frames, with the union of their categories."""
    if len(frames) == 1:
        return frames[0]
    joined = pd.concat(frames, ignore_index=True)
    return joined.astype(dict.fromkeys(joined.select_dtypes(exclude=["number", "bool"]).columns, "category"))


def _families(names: pd.Categorical) -> pd.Categorical:
    every = [str(family) for family in Family]
    family_of = [metrics.family(str(name)) for name in names.categories] + [Family.OTHER]
    codes = np.array([every.index(family) for family in family_of])
    return pd.Categorical.from_codes(codes[names.codes], categories=pd.Index(every, dtype=object))


_MODULE = "ncu_report"
_AXES = ("x", "y", "z")

# An action of ncu_report: a unit that was profiled, usually a kernel.
Action = Any


def _of_report(path: Path) -> Launches:
    """Every launch of a report. Raises `ToolError` without `ncu_report`, `NcuFileError` if the file is no report."""
    with path.open("rb") as file:
        if file.read(len(REPORT_MAGIC)) != REPORT_MAGIC:
            reason = f"its name ends in {NCU_REPORT_SUFFIX}, but it is no report"
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
