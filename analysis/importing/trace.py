"""Make the bundle of a trace of torch.profiler: device, profile, work, tables and contradictions."""

import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.importing.bundle import Facts, File, Given, new_record, required, seal, without_peaks
from analysis.kernels.operators import LISTED_FILE, WORK_FILE
from analysis.loading.gpu_names import fits, gpus_named
from analysis.readers.logs.iteration_log import LONGEST_ITERATION_S
from analysis.readers.ncu.impossible import TIMES_PEAK, Limits
from analysis.readers.text import GZIP, Decoded
from analysis.readers.traces import kineto
from analysis.readers.traces.attribution import Attribution, attribute, steps_of
from analysis.readers.traces.kineto import RECORD_SHAPES, Trace
from analysis.roofline import against_model
from workload.contract.errors import UsageError
from workload.contract.profile_record import LongestKernel, ProfileResult
from workload.contract.record import ComplexityRecord
from workload.contract.spec import Device, Precision, Profile
from workload.contract.text import counted, duration, percent, seconds, si

# Path of the trace in the bundle, as in a bundle of the trainer.
TRACE_COPY = "torch/trace.json.gz"
LISTED_COLUMNS = ("name", "calls", "total_s", "mean_s", "share")
OPERATOR_COLUMNS = ("name", "family", "calls", "total_s", "flop", "bytes_lower", "bytes_upper", "lack")
METHOD = (
    "own formulas over the shapes that torch.profiler recorded, forward and backward; 1 fused multiply-add = 2 FLOP; "
    "element-wise, normalisation and pooling operators count 0 FLOP. Bytes are modelled: lower = each tensor once, as "
    "far as a trace tells tensors apart, upper = each operator from and to memory"
)
TOP = 5
# Most unattributed operators that are listed by name; further ones count only in the total share.
MOST_UNATTRIBUTED = 20
SHOWN_UNATTRIBUTED = 3
# Most characters of a kernel's name: template arguments follow, and the table has the whole name.
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class _Traced:
    """A trace and the totals over its steps. `device`: number of the GPU whose kernels are read, None for a CPU."""

    trace: Trace
    found: Attribution
    device: str | None
    losses: tuple[str, ...]

    @property
    def device_name(self) -> str | None:
        name = self.trace.device_properties(self.device).get("name") if self.device else None
        return str(name) if name else None

    @property
    def passes_per_step(self) -> int:
        """Forward passes of a step, at least 1; more if gradients are accumulated."""
        return max(1, self.found.model.passes // self.found.steps.number)

    def is_told_a_gpu(self, given: Given) -> bool:
        """Whether the user named a GPU for the trace of a CPU."""
        return self.device is None and bool(given.gpu and gpus_named(given.gpu))


def make(file: File, decoded: Decoded, given: Given, output: Path) -> Path:
    """Make the bundle and return its folder.

    Raises `UsageError` if the trace cannot be understood, lacks required facts, or leaves a choice to the user.
    """
    traced = _read(decoded, given, str(file.path))
    found, device_name = traced.found, traced.device_name
    model, batch_size = required(file.path, given.model, given.batch_size or found.model.batch_size)
    facts = Facts(
        model=model,
        batch_size=batch_size,
        precision=given.precision.lower() if given.precision else _precision(found),
        # The name that the device reported takes precedence over the user's.
        device_name=device_name or (None if traced.is_told_a_gpu(given) else given.gpu),
        device_type=Device.CPU if traced.device is None else Device.CUDA,
        place=None,
        image_size=found.model.image_size,
    )
    imported = file.described(Profile.TORCH, given)
    record = new_record(facts, given, imported, started_at=None, measured=None)
    contradictions = [*_contradictions(traced, given)]
    # The forward passes must divide evenly among the steps.
    if found.has_work and found.model.passes % found.steps.number == 0:
        contradictions += against_model.of_trace(
            record.spec,
            # Activation checkpointing repeats FLOP that the model does not have.
            (sum(found.flop_by_op.values()) - found.recomputed_flop) / found.steps.number,
            found.model,
            passes_per_step=traced.passes_per_step,
            has_backward=any("ackward" in row.name for row in found.rows),
        )
    notes = [*traced.losses, *_of_machine(traced.trace, traced.device), *found.remarks, *_said_of(found)]
    record = replace(
        record,
        imported=replace(imported, losses=list(traced.losses) or None, contradictions=contradictions or None),
        profile=replace(_profile(traced), device=device_name),
        complexity=_complexity(found) if found.has_work else None,
        notes=[*notes, *without_peaks(device_name), *contradictions],
    )
    content = file.content
    contents = {
        TRACE_COPY: content if content.startswith(GZIP) else gzip.compress(content, mtime=0),
        LISTED_FILE: _listed_csv(found),
        WORK_FILE: _operators_csv(found),
    }
    return seal(output, record, contents)


def _read(decoded: Decoded, given: Given, file: str) -> _Traced:
    trace = kineto.read(decoded.text, file=file)
    device = _device(trace, given.device, file)
    steps = steps_of(trace, given.profile_steps)
    if steps is None:
        raise UsageError(
            f"'{file}' does not mark its steps, so their number is unknown",
            hint="--profile-steps N, or call profiler.step() after each step",
        )
    found = attribute(trace, steps, device=device)
    if not found.rows:
        raise UsageError(f"'{file}' has no operator or kernel in its steps", hint=kineto.EXPORT_AGAIN)
    losses = (*trace.losses, *(remark for remark in decoded.remarks if not trace.is_cut))
    traced = _Traced(trace=trace, found=found, device=device, losses=losses)
    _require_possible(found, traced.device_name, file)
    return traced


def _contradictions(traced: _Traced, given: Given) -> Iterator[str]:
    """Sentences on differences between the trace and the user's options: device, precision, steps and first input."""
    model, device_name, precision = traced.found.model, traced.device_name, _precision(traced.found)
    if device_name and given.gpu and not fits(given.gpu, device_name):
        yield f"the trace says device '{device_name}', but the import was given '{given.gpu}'"
    if traced.is_told_a_gpu(given):
        yield f"the trace has no kernels and is from a CPU, but the import was given device '{given.gpu}'"
    if precision and given.precision and precision != given.precision.lower():
        yield f"the trace says precision '{precision}', but the import was given '{given.precision}'"
    if wrong := traced.found.steps.contradiction or _uneven(traced.found, given.profile_steps):
        yield wrong
    if model.batch_size and given.batch_size not in {None, model.batch_size, model.batch_size * traced.passes_per_step}:
        yield (
            f"the trace says batch size {model.batch_size} ({model.first}), but the import was given {given.batch_size}"
        )
    if model.image_size and given.image_size not in {None, model.image_size}:
        yield (
            f"the trace says image size {model.image_size} ({model.first}), but the import was given {given.image_size}"
        )


def _require_possible(found: Attribution, device_name: str | None, file: str) -> None:
    """Raise `UsageError` if shapes and times contradict each other."""
    longest_s = max(found.step_s)
    if longest_s > LONGEST_ITERATION_S:
        raise UsageError(
            f"'{file}' has a step of {duration(longest_s)}: no step takes a day", hint=f"{kineto.EXPORT_AGAIN}, in µs"
        )
    limits = Limits.of(device_name)
    for row in found.rows:
        # A GPU's caches move fewer bytes per second than its FLOP/s, see `analysis.readers.ncu.impossible`.
        for what, unit, done in (("FLOP", "FLOP/s", row.flop), ("bytes", "B/s", row.bytes_high)):
            if done and row.seconds and done / row.seconds > limits.flop_per_s:
                rate, took = si(done / row.seconds, unit), seconds(row.seconds)
                raise UsageError(
                    f"'{file}' cannot be a trace: {row.name} has {si(done, what)} by its shapes in {took}, {rate}, and"
                    f" {limits.whose} does {si(limits.flop_per_s / TIMES_PEAK, 'FLOP/s')} at most",
                    hint=kineto.EXPORT_AGAIN,
                )


def _device(trace: Trace, wanted: int | None, file: str) -> str | None:
    """Number of the GPU whose kernels are read, as text; None for a trace of a CPU. `UsageError` if ambiguous."""
    if len(trace.processes) > 1:
        raise UsageError(
            f"'{file}' holds {len(trace.processes)} processes, but a run has one",
            hint="import the trace of each rank",
        )
    devices = trace.devices
    if not devices:
        if trace.runs_on_gpu:
            raise UsageError(
                f"'{file}' has no kernels, and its operators ran on a GPU: host times are not theirs",
                hint="torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
            )
        if wanted is not None:
            raise UsageError(f"'{file}' is of a CPU; got --device {wanted}", hint=f"analyze import {file}")
        return None
    launches = ", ".join(f"{device}: {counted(number, 'kernel')}" for device, number in sorted(devices.items()))
    if wanted is not None:
        if str(wanted) not in devices:
            raise UsageError(f"'{file}' has no kernels of GPU {wanted} ({launches})", hint=f"--device {min(devices)}")
        return str(wanted)
    if len(devices) > 1:
        raise UsageError(
            f"'{file}' holds the kernels of {len(devices)} GPUs, but a run has one ({launches})",
            hint=f"--device {max(devices, key=lambda device: devices[device])}",
        )
    return next(iter(devices))


def _of_machine(trace: Trace, device: str | None) -> Iterable[str]:
    """Notes on other ranks and on a GPU without kernels."""
    ranks = trace.facts.get("distributedInfo")
    world_size = ranks.get("world_size") if isinstance(ranks, dict) else None
    if isinstance(ranks, dict) and isinstance(world_size, int) and world_size > 1:
        yield f"rank {ranks.get('rank')} of {world_size}: the figures are of this process alone"
    gpu = trace.device_properties("0").get("name")
    if device is None and gpu:
        yield f"the machine has a GPU, {gpu}, but the trace has no kernels: it is read as the trace of a CPU"


def _profile(traced: _Traced) -> ProfileResult:
    found, is_cut = traced.found, traced.trace.is_cut
    steps = found.steps.number
    calls = sum(number for number, _ in found.listed.values())
    total_s = sum(seconds for _, seconds in found.listed.values())
    return ProfileResult(
        status="partial" if is_cut else "completed",
        reason="; ".join(traced.losses) or None if is_cut else None,
        kind=Profile.TORCH,
        steps=steps,
        rows="kernels" if found.is_on_gpu else "operators",
        calls_per_step=calls / steps,
        step_s=list(found.step_s),
        # If the host ran ahead of the GPU, its marks do not measure the step.
        wall_s_per_step=None if _is_ahead(found) else _wall_s(found),
        busy_s_per_step=found.busy_s / steps,
        time_s_per_step=total_s / steps,
        top=[
            LongestKernel(
                name=name,
                calls_per_step=number / steps,
                time_s_per_step=seconds / steps,
                share=seconds / total_s if total_s else None,
            )
            for name, (number, seconds) in list(found.listed.items())[:TOP]
        ],
        files=[LISTED_FILE, WORK_FILE, TRACE_COPY],
    )


def _uneven(found: Attribution, told: int | None) -> str | None:
    """A contradiction if the number of steps given by the user does not divide the forward passes; else None."""
    passes = found.model.passes
    if found.steps.windows is not None or not told or not passes or passes % found.steps.number == 0:
        return None
    return (
        f"the trace has {passes} forward {'pass' if passes == 1 else 'passes'}, but the import was given {told} steps"
    )


def _wall_s(found: Attribution) -> float:
    """Mean seconds of a step on the host's clock."""
    return sum(found.step_s) / len(found.step_s)


def _is_ahead(found: Attribution) -> bool:
    """Whether the kernels of a step ran longer than the host's mark of the step."""
    return found.is_on_gpu and found.busy_s / found.steps.number > _wall_s(found)


def _complexity(found: Attribution) -> ComplexityRecord:
    steps, unattributed = found.steps.number, found.unattributed
    return ComplexityRecord(
        train_flop_per_step=sum(found.flop_by_op.values()) / steps,
        flop_by_op={kind: flop / steps for kind, flop in found.flop_by_op.items()},
        bytes_per_step_lower=found.bytes_low / steps,
        bytes_per_step_upper=found.bytes_high / steps,
        method=METHOD,
        unattributed_share=min(1.0, sum(unattributed.values())),
        uncounted_share=min(1.0, found.uncounted_share),
        unattributed=dict(list(unattributed.items())[:MOST_UNATTRIBUTED]),
        flop_by_precision={name: flop / steps for name, flop in found.flop_by_precision.items()},
    )


def _precision(found: Attribution) -> Precision | None:
    """The precision of most FLOP; None if no ceilings are measured in it."""
    by_precision = found.flop_by_precision
    name = max(by_precision, key=lambda name: by_precision[name], default=None)
    return Precision(name) if name in set(Precision) and by_precision[name or ""] else None


def _said_of(found: Attribution) -> Iterable[str]:
    """Notes for the reader of the bundle."""
    if _is_ahead(found):
        busy_s = found.busy_s / found.steps.number
        yield (
            f"the host's mark of a step lasts {seconds(_wall_s(found))} and its kernels {seconds(busy_s)}: the host ran"
            " ahead, and the step's wall time is not in the trace"
        )
    if not found.has_work:
        yield f"times only: the trace has no shapes; {RECORD_SHAPES}"
        return
    unattributed = found.unattributed
    if share := sum(unattributed.values()):
        named = ", ".join(
            f"{name[:60]} {percent(part)}" for name, part in list(unattributed.items())[:SHOWN_UNATTRIBUTED]
        )
        more = len(unattributed) - SHOWN_UNATTRIBUTED
        rest = f" and {counted(more, 'other')}" if more > 0 else ""
        what = "kernels'" if found.is_on_gpu else "operators'"
        yield f"{percent(share)} of the {what} time is unattributed, without FLOP and bytes: {named}{rest}"


def _listed_csv(found: Attribution) -> bytes:
    total_s = sum(seconds for _, seconds in found.listed.values())
    return _csv(
        LISTED_COLUMNS,
        (
            (name, calls, f"{seconds:.9f}", f"{seconds / calls:.9f}", f"{seconds / total_s if total_s else 0:.6f}")
            for name, (calls, seconds) in found.listed.items()
        ),
    )


def _operators_csv(found: Attribution) -> bytes:
    """The table of operators, summed over all steps; an empty cell is unknown."""
    return _csv(
        OPERATOR_COLUMNS,
        (
            (row.name, row.family, row.calls, f"{row.seconds:.9f}", row.flop, row.bytes_low, row.bytes_high, row.lack)
            for row in found.rows
        ),
    )


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()
