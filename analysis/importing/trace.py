"""Make bundles of profiles: traces of torch.profiler, and files of Nsight Compute."""

import csv
import gzip
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from analysis.importing.bundle import (
    File,
    ImportedFacts,
    UserFacts,
    new_record,
    notes_on_peaks,
    require_model_and_batch,
    seal,
)
from analysis.kernels import LISTED_FILE, WORK_FILE
from analysis.loading.model_work import can_name, gpus_named
from analysis.readers import kineto, ncu
from analysis.readers.attribution import Attribution, OperatorFamily, Steps, attribute, steps_of
from analysis.readers.communication import rank_steps
from analysis.readers.iteration_log import LONGEST_ITERATION_S
from analysis.readers.kineto import RECORD_SHAPES, Trace
from analysis.readers.ncu import NcuFile
from analysis.readers.ncu.flop import TIMES_PEAK, Limits
from analysis.readers.ncu.metrics import Family
from analysis.readers.tables import GZIP, NCU_REPORT_SUFFIX, Decoded, decode
from analysis.roofline import against_model
from workload.contract.errors import UsageError
from workload.contract.ranks import Ranks, RankStep, communication, is_alone_slow, limit_sentence, summarized, waits
from workload.contract.record import ComplexityRecord
from workload.contract.record_sections import BackwardCheck, LongestKernel, NcuTool, ProfileChecks, ProfileResult
from workload.contract.spec import Device, Precision, Profile
from workload.contract.text import counted, duration, percent, seconds, si

# Path of the trace in the bundle, as in a bundle of the trainer.
TRACE_COPY, RANK_COPY = "torch/trace.json.gz", "torch/rank{}.json.gz"
LISTED_COLUMNS = ("name", "calls", "total_s", "mean_s", "share")
OPERATOR_COLUMNS = ("name", "family", "calls", "total_s", "flop", "bytes_lower", "bytes_upper", "lack")
METHOD = (
    "own formulas over the shapes that torch.profiler recorded, forward and backward; 1 fused multiply-add = 2 FLOP; "
    "element-wise, normalisation and pooling operators count 0 FLOP; causal attention counts only the pairs of query "
    "and key that its kernel keeps. Bytes are modelled: lower = each tensor once, as far as a trace tells tensors "
    "apart, upper = each operator from and to memory"
)
# Families of operators that may touch a small part of their tensors: indices into a table, a group of the parameters.
TOUCHING_A_PART = {OperatorFamily.EMBEDDING, Family.OPTIMIZER}
TOP = 5
# Largest number of unattributed operators that are listed by name; further operators count only in the total share.
MOST_UNATTRIBUTED = 20
SHOWN_UNATTRIBUTED = 3
# Traces have few steps, and each is whole: two tell the ranks' waits.
LEAST_TRACED_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class _Traced:
    """A trace and the totals over its steps. `device`: number of the GPU whose kernels are read, None for a CPU."""

    trace: Trace
    attribution: Attribution
    device: str | None
    losses: tuple[str, ...]

    @property
    def device_name(self) -> str | None:
        name = self.trace.device_properties(self.device).get("name") if self.device else None
        return str(name) if name else None

    @property
    def passes_per_step(self) -> int:
        """Forward passes of a step, at least 1; more if gradients are accumulated."""
        return max(1, self.attribution.model.passes // self.attribution.steps.number)

    @property
    def is_untimed(self) -> bool:
        """Whether the operators ran on a device whose kernels the trace does not have."""
        return self.device is None and self.trace.other_device is not None

    def lacks_named_gpu(self, user: UserFacts) -> bool:
        """Whether the user named a GPU for the trace of a CPU."""
        return self.device is None and bool(user.gpu and gpus_named(user.gpu))


def make(file: File, decoded: Decoded, user: UserFacts, output: Path, *, beside: Iterable[File] = ()) -> Path:
    """Make the bundle and return its folder. `beside`: traces of the run's other ranks.

    Raises `UsageError` if a trace cannot be understood, lacks required facts, or requires the user to choose a GPU.
    """
    traced = _read(decoded, user, str(file.path))
    attribution, device_name = traced.attribution, traced.device_name
    model, batch_size = require_model_and_batch(file.path, user.model, user.batch_size or attribution.model.batch_size)
    ranks = _Ranks.read(traced, beside, user, batch_size)
    facts = ImportedFacts(
        model=model,
        batch_size=batch_size,
        precision=user.precision.lower() if user.precision else _precision(attribution),
        # The name that the device reported takes precedence over the user's.
        device_name=device_name or (None if traced.lacks_named_gpu(user) else user.gpu),
        device_type=None if traced.is_untimed else Device.CPU if traced.device is None else Device.CUDA,
        place=None,
        image_size=attribution.model.image_size,
        machines=ranks.machines if ranks else None,
        devices=ranks.world // ranks.machines if ranks else None,
    )
    imported = file.described(Profile.TORCH, user)
    record = new_record(facts, user, imported, started_at=None, measured=None)
    contradictions = [*_contradictions(traced, user)]
    # The forward passes must divide evenly among the steps.
    if attribution.has_work and attribution.model.passes % attribution.steps.number == 0:
        contradictions += against_model.trace_contradictions(
            record.spec,
            # Subtract the FLOP of the forward passes that gradient checkpointing repeats: they are no model FLOP.
            (sum(attribution.flop_by_op.values()) - attribution.recomputed_flop) / attribution.steps.number,
            attribution.model,
            passes_per_step=traced.passes_per_step,
            has_backward=attribution.has_backward,
        )
    notes = [*traced.losses, *(ranks.notes() if ranks else ()), *_machine_notes(traced.trace, traced.device)]
    notes += [*attribution.remarks, *_notes(attribution)]
    record = replace(
        record,
        imported=replace(imported, losses=list(traced.losses) or None, contradictions=contradictions or None),
        profile=replace(_profile(traced), device=device_name),
        complexity=_complexity(attribution) if attribution.has_work else None,
        ranks=ranks.summary() if ranks else None,
        notes=[*notes, *notes_on_peaks(device_name), *contradictions],
    )
    contents = {TRACE_COPY: _packed(file.content), **(ranks.copies if ranks else {})}
    return seal(output, record, contents if traced.is_untimed else contents | _tables(attribution))


def _packed(content: bytes) -> bytes:
    return content if content.startswith(GZIP) else gzip.compress(content, mtime=0)


@dataclass(frozen=True, kw_only=True)
class _Ranks:
    """Traces of ranks that trained together. `world`: number of all ranks; `steps`: of each rank that has a trace.

    `hosts`: of each of these ranks, none if one is unknown. `copies`: contents of the other traces by their paths in
    the bundle; `losses`: what is missing in them.
    """

    world: int
    backend: str | None
    hosts: tuple[str, ...]
    steps: Mapping[int, Mapping[int, RankStep]]
    copies: Mapping[str, bytes]
    losses: tuple[str, ...]

    @classmethod
    def read(cls, first: _Traced, beside: Iterable[File], user: UserFacts, images: int) -> "_Ranks | None":
        """Ranks of the trace `first` and of the traces `beside` it; None for a process that trained alone."""
        facts: Any = first.trace.facts.get("distributedInfo")
        if (found := kineto.rank_of(facts)) is None:
            return None
        rank, world = found
        steps = {rank: rank_steps(first.trace, first.attribution.steps.windows or (), first.device, images)}
        copies, losses, hosts = dict[str, bytes](), list[str](), [first.trace.facts.get("host_name")]
        for file in beside:
            trace, device, marked = _opened(decode(file.content), user, str(file.path))
            rank, _ = kineto.rank_of(trace.facts.get("distributedInfo")) or (len(steps), world)
            steps[rank] = rank_steps(trace, marked.windows or (), device, images)
            hosts.append(trace.facts.get("host_name"))
            copies[RANK_COPY.format(rank)] = _packed(file.content)
            losses += (f"rank {rank}: {loss}" for loss in trace.losses)
            if not set.intersection(*map(set, steps.values())):
                raise UsageError(
                    f"'{file.path}' has no marked step in common with the traces of the other ranks",
                    hint="call profiler.step() after each step in all ranks, and export them in the same step",
                )
        known = tuple(host for host in hosts if isinstance(host, str))
        return cls(
            world=world,
            backend=facts.get("backend"),
            hosts=known if len(known) == len(steps) else (),
            steps=steps,
            copies=copies,
            losses=tuple(losses),
        )

    @property
    def machines(self) -> int:
        """Number of machines, each with as many ranks; 1 if it is not known from the traces of all ranks."""
        number = len(set(self.hosts)) or 1
        return number if len(self.hosts) == self.world and self.world % number == 0 else 1

    def summary(self) -> Ranks | None:
        """Section `ranks` of run.json; None for the trace of a single rank."""
        if len(self.steps) == 1:
            return None
        found = summarized([*self.steps.values()], least=LEAST_TRACED_STEPS)
        if len(self.steps) < self.world:
            found = replace(found, slowest=None, why=f"only {len(self.steps)} of {self.world} ranks have a trace")
        hosts = list(self.hosts) if len(set(self.hosts)) > 1 else None
        return replace(found, number=self.world, backend=self.backend, hosts=hosts)

    def notes(self) -> Iterator[str]:
        """Notes on the communication: of the rank with the shortest waits, and of that with the longest."""
        first, *others = self.steps
        yield f"rank {first} of {self.world}: the {'other ' if others else ''}figures are of this process alone"
        yield from self.losses
        exposed_s = {rank: _median(steps, "exposed_s") for rank, steps in self.steps.items() if steps}
        by_wait = sorted(exposed_s, key=exposed_s.__getitem__)
        for rank in dict.fromkeys([*by_wait[:1], *by_wait[-1:]]):
            hidden_s = _median(self.steps[rank], "hidden_s")
            if hidden_s + exposed_s[rank] > 0:
                kinds = sorted({kind for step in self.steps[rank].values() for kind in step.kinds})
                yield (
                    f"rank {rank} communicates for {seconds(hidden_s, 3)} of a step beside its computation, and for"
                    f" {seconds(exposed_s[rank], 3)} alone ({', '.join(kinds)})"
                )
        if (found := self.summary()) and (shares := waits(found)):
            slowest = None if found.slowest is None else int(found.slowest)
            yield limit_sentence(
                shares,
                None if slowest is None else str(slowest),
                longest=communication(found),
                host=found.hosts[slowest] if found.hosts and slowest is not None else None,
                is_alone=is_alone_slow(found),
            )


def _median(steps: Mapping[int, RankStep], name: str) -> float:
    return float(median(getattr(step, name) for step in steps.values()))


def _opened(decoded: Decoded, user: UserFacts, file: str) -> tuple[Trace, str | None, Steps]:
    """The trace in a file, the number of its GPU and its steps."""
    trace = kineto.read(decoded.text, file=file)
    device = _device(trace, user.device, file)
    steps = steps_of(trace, user.profile_steps)
    if steps is None:
        raise UsageError(
            f"'{file}' does not mark its steps, so their number is unknown",
            hint="--profile-steps N, or call profiler.step() after each step",
        )
    if not steps.number:
        raise UsageError(f"'{file}' breaks off, and no step has all of its kernels", hint=kineto.EXPORT_AGAIN)
    return trace, device, steps


def _read(decoded: Decoded, user: UserFacts, file: str) -> _Traced:
    trace, device, steps = _opened(decoded, user, file)
    attribution = attribute(trace, steps, device=device)
    if not attribution.rows:
        raise UsageError(f"'{file}' has no operator or kernel in its steps", hint=kineto.EXPORT_AGAIN)
    losses = (*trace.losses, *(remark for remark in decoded.remarks if not trace.is_cut))
    traced = _Traced(trace=trace, attribution=attribution, device=device, losses=losses)
    if not traced.is_untimed:
        _require_possible(attribution, traced.device_name, file)
    return traced


def _contradictions(traced: _Traced, user: UserFacts) -> Iterator[str]:
    """Sentences on differences between the trace and the user's options: device, precision, steps and first input."""
    model, device_name, precision = traced.attribution.model, traced.device_name, _precision(traced.attribution)
    if device_name and user.gpu and not can_name(user.gpu, device_name):
        yield f"the trace says device '{device_name}', but the import was given '{user.gpu}'"
    if traced.lacks_named_gpu(user):
        device = f"an unknown device ({traced.trace.other_device})" if traced.is_untimed else "a CPU"
        yield f"the trace has no kernels and is from {device}, but the import was given device '{user.gpu}'"
    if precision and user.precision and precision != user.precision.lower():
        yield f"the trace says precision '{precision}', but the import was given '{user.precision}'"
    steps = traced.attribution.steps
    if steps.contradiction:
        yield steps.contradiction
    elif steps.windows is None and user.profile_steps and model.passes % steps.number:
        yield (
            f"the trace has {counted(model.passes, 'forward pass')}, but the import was given"
            f" {user.profile_steps} steps"
        )
    if model.batch_size and user.batch_size not in {None, model.batch_size, model.batch_size * traced.passes_per_step}:
        yield (
            f"the trace says batch size {model.batch_size} ({model.first}), but the import was given {user.batch_size}"
        )
    if model.image_size and user.image_size not in {None, model.image_size}:
        yield (
            f"the trace says image size {model.image_size} ({model.first}), but the import was given {user.image_size}"
        )


def _require_possible(attribution: Attribution, device_name: str | None, file: str) -> None:
    """Raise `UsageError` if shapes and times contradict each other."""
    longest_s = max(attribution.step_s)
    if longest_s > LONGEST_ITERATION_S:
        raise UsageError(
            f"'{file}' has a step of {duration(longest_s)}: no step takes a day", hint=f"{kineto.EXPORT_AGAIN}, in µs"
        )
    limits = Limits.of_device(device_name)
    for row in attribution.rows:
        # The limits leave room for caches, which move some times as many bytes per second as the memory.
        moved = None if row.family in TOUCHING_A_PART else row.bytes_high
        for what, unit, done, limit in (
            ("FLOP", "FLOP/s", row.flop, limits.flop_per_s),
            ("bytes", "B/s", moved, limits.bytes_per_s),
        ):
            if done and row.seconds and done / row.seconds > limit:
                rate, took = si(done / row.seconds, unit), seconds(row.seconds)
                raise UsageError(
                    f"'{file}' cannot be a trace: {row.name} has {si(done, what)} by its shapes in {took}, {rate}, and"
                    f" {limits.gpu} does {si(limit / TIMES_PEAK, unit)} at most",
                    hint=kineto.EXPORT_AGAIN,
                )


def _device(trace: Trace, device_number: int | None, file: str) -> str | None:
    """Number of the GPU whose kernels are read, as text; None for a trace of a CPU. `UsageError` if ambiguous."""
    if len(trace.processes) > 1:
        raise UsageError(
            f"'{file}' holds {len(trace.processes)} processes, but a run has one", hint="import the trace of each rank"
        )
    devices = trace.devices
    if not devices:
        if trace.runs_on_gpu:
            raise UsageError(
                f"'{file}' has no kernels, and its operators ran on a GPU: host times are not theirs",
                hint="torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
            )
        if device_number is not None:
            raise UsageError(
                f"'{file}' is a trace of a CPU; got --gpu-index {device_number}", hint=f"analyze import {file}"
            )
        return None
    launches = ", ".join(f"{device}: {counted(number, 'kernel')}" for device, number in sorted(devices.items()))
    if device_number is not None:
        if str(device_number) not in devices:
            raise UsageError(
                f"'{file}' has no kernels of GPU {device_number} ({launches})", hint=f"--gpu-index {min(devices)}"
            )
        return str(device_number)
    if len(devices) > 1:
        raise UsageError(
            f"'{file}' holds the kernels of {len(devices)} GPUs, but a run has one ({launches})",
            hint=f"--gpu-index {max(devices, key=lambda device: devices[device])}",
        )
    return next(iter(devices))


def _machine_notes(trace: Trace, device: str | None) -> Iterable[str]:
    """Notes on a device without kernels."""
    gpu = trace.device_properties("0").get("name")
    if device is None and trace.other_device:
        yield f"device unknown ({trace.other_device}): times of its kernels are not in this trace"
    elif device is None and gpu:
        yield f"the machine has a GPU, {gpu}, but the trace has no kernels: it is read as the trace of a CPU"


def _profile(traced: _Traced) -> ProfileResult:
    """Section `profile` of run.json; without times of operators that ran on an unknown device."""
    attribution, is_cut = traced.attribution, traced.trace.is_cut
    steps = attribution.steps.number
    calls = sum(number for number, _ in attribution.listed.values())
    total_s = sum(seconds for _, seconds in attribution.listed.values())
    untimed = ProfileResult(
        status="partial" if is_cut else "completed",
        reason="; ".join(traced.losses) or None if is_cut else None,
        kind=Profile.TORCH,
        steps=steps,
        checks=ProfileChecks(backward=BackwardCheck(present=attribution.has_backward)),
        files=[TRACE_COPY],
    )
    if traced.is_untimed:
        return untimed
    return replace(
        untimed,
        rows="kernels" if attribution.is_on_gpu else "operators",
        calls_per_step=calls / steps,
        step_s=list(attribution.step_s),
        # If the host ran ahead of the GPU, the times between the host's step marks are not the times of steps.
        wall_s_per_step=None if _host_ran_ahead(attribution) else _wall_s(attribution),
        busy_s_per_step=attribution.busy_s / steps,
        time_s_per_step=total_s / steps,
        top=[
            LongestKernel(
                name=name,
                calls_per_step=number / steps,
                time_s_per_step=seconds / steps,
                share=seconds / total_s if total_s else None,
            )
            for name, (number, seconds) in list(attribution.listed.items())[:TOP]
        ],
        files=[LISTED_FILE, WORK_FILE, TRACE_COPY],
    )


def _wall_s(attribution: Attribution) -> float:
    """Mean seconds of a step on the host's clock."""
    return sum(attribution.step_s) / len(attribution.step_s)


def _host_ran_ahead(attribution: Attribution) -> bool:
    """Whether the kernels of a step took longer than the step did on the host's clock."""
    return attribution.is_on_gpu and attribution.busy_s / attribution.steps.number > _wall_s(attribution)


def _complexity(attribution: Attribution) -> ComplexityRecord:
    steps, unattributed = attribution.steps.number, attribution.unattributed
    return ComplexityRecord(
        train_flop_per_step=sum(attribution.flop_by_op.values()) / steps,
        recomputed_flop_per_step=attribution.recomputed_flop / steps or None,
        flop_by_op={kind: flop / steps for kind, flop in attribution.flop_by_op.items()},
        bytes_per_step_lower=attribution.bytes_low / steps,
        bytes_per_step_upper=attribution.bytes_high / steps,
        method=METHOD,
        unattributed_share=min(1.0, sum(unattributed.values())),
        uncounted_share=min(1.0, attribution.uncounted_share),
        unattributed=dict(list(unattributed.items())[:MOST_UNATTRIBUTED]),
        flop_by_precision={name: flop / steps for name, flop in attribution.flop_by_precision.items()},
    )


def _precision(attribution: Attribution) -> Precision | None:
    """The precision in which most FLOP were computed; None for a precision in which no ceilings are measured."""
    by_precision = attribution.flop_by_precision
    name = max(by_precision, key=lambda name: by_precision[name], default=None)
    return Precision(name) if name in set(Precision) and by_precision[name or ""] else None


def _notes(attribution: Attribution) -> Iterable[str]:
    """Notes for the reader of the bundle."""
    if _host_ran_ahead(attribution):
        busy_s = attribution.busy_s / attribution.steps.number
        yield (
            f"the host's mark of a step lasts {seconds(_wall_s(attribution))} and its kernels {seconds(busy_s)}:"
            " the host ran ahead, and the step's wall time is not in the trace"
        )
    if not attribution.has_work:
        yield f"times only: the trace has no shapes; {RECORD_SHAPES}"
        return
    unattributed = attribution.unattributed
    if share := sum(unattributed.values()):
        # The beginning of a kernel's name is enough: the table has the whole name, with its template arguments.
        named = ", ".join(
            f"{name[:60]} {percent(part)}" for name, part in list(unattributed.items())[:SHOWN_UNATTRIBUTED]
        )
        more = len(unattributed) - SHOWN_UNATTRIBUTED
        rest = f" and {counted(more, 'other')}" if more > 0 else ""
        what = "kernels'" if attribution.is_on_gpu else "operators'"
        yield f"{percent(share)} of the {what} time is unattributed, without FLOP and bytes: {named}{rest}"


def _tables(attribution: Attribution) -> dict[str, bytes]:
    """The tables of kernels and of operators, summed over all steps; an empty cell means that the value is unknown."""
    total_s = sum(seconds for _, seconds in attribution.listed.values())
    listed = (
        (name, calls, f"{seconds:.9f}", f"{seconds / calls:.9f}", f"{seconds / total_s if total_s else 0:.6f}")
        for name, (calls, seconds) in attribution.listed.items()
    )
    operators = (
        (row.name, row.family, row.calls, f"{row.seconds:.9f}", row.flop, row.bytes_low, row.bytes_high, row.lack)
        for row in attribution.rows
    )
    return {LISTED_FILE: _csv(LISTED_COLUMNS, listed), WORK_FILE: _csv(OPERATOR_COLUMNS, operators)}


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


# --- profiles of Nsight Compute

# Paths of our own profiles in a bundle.
KERNELS_COPY, REPORT_COPY = "ncu/kernels.csv", "ncu/profile.ncu-rep"


def make_of_profile(file: File, user: UserFacts, output: Path) -> Path:
    """Make the bundle and return its folder; `UsageError` if required facts are missing, or for several GPUs."""
    ncu_file = ncu.read(file.path)
    if len(ncu_file.gpus) > 1:
        launches = ", ".join(f"{gpu}: {number}" for gpu, number in ncu_file.gpus.items())
        raise UsageError(
            f"'{file.path}' holds the launches of {len(ncu_file.gpus)} GPUs, but a run has one ({launches})",
            hint="keep only the rows of one GPU (column Device), or profile with CUDA_VISIBLE_DEVICES=0",
        )
    model, batch_size = require_model_and_batch(file.path, user.model, user.batch_size)
    device_name = ncu_file.device_name
    facts = ImportedFacts(
        model=model,
        batch_size=batch_size,
        precision=None if user.precision is None else user.precision.lower(),
        # The name that the device reported takes precedence over the user's.
        device_name=device_name or user.gpu,
        device_type=Device.CUDA,
        place=None,
    )
    notes = [f"ncu: {warning}" for warning in ncu_file.warnings]
    contradictions = []
    if device_name and user.gpu and not can_name(user.gpu, device_name):
        contradictions.append(f"the profile says device '{device_name}', but the import was given '{user.gpu}'")
    notes += [*notes_on_peaks(device_name), *contradictions]
    copy = REPORT_COPY if file.path.suffix == NCU_REPORT_SUFFIX else KERNELS_COPY
    imported = replace(
        file.described(Profile.NCU, user), losses=list(ncu_file.losses) or None, contradictions=contradictions or None
    )
    record = new_record(facts, user, imported, started_at=None, measured=None)
    wrong = against_model.contradiction(
        record.spec, ncu_file.kernels, steps=user.profile_steps, is_partial=ncu_file.is_partial
    )
    notes += [wrong] if wrong else []
    device = replace(record.environment.device, compute_capability=ncu_file.compute_capability)
    record = replace(
        record,
        environment=replace(record.environment, device=device),
        profile=replace(_counters_of(ncu_file, user.profile_steps), files=[copy]),
        notes=notes,
    )
    return seal(output, record, {copy: file.content})


def _counters_of(ncu_file: NcuFile, steps: int | None) -> ProfileResult:
    """Section `profile` of run.json; figures per step only if the user gave the number of steps in the profile."""
    kernels = ncu_file.kernels
    uncounted = against_model.uncounted_operations(kernels)
    return ProfileResult(
        status="partial" if ncu_file.is_partial else "completed",
        reason="; ".join(ncu_file.warnings) or None if ncu_file.is_partial else None,
        kind=Profile.NCU,
        ncu=NcuTool(version=ncu_file.ncu_version),
        kernels_profiled=len(kernels),
        steps_profiled=steps,
        kernel_time_s_per_step=_per_step(kernels["duration_s"], steps),
        flop_per_step=_per_step(kernels["flop"], steps),
        tensor_flop_per_step=_per_step(kernels["flop_tensor"], steps),
        flop_is_lower_bound=uncounted is not None,
        lower_bound_reason=uncounted,
        dram_bytes_per_step=_per_step(kernels["dram_bytes"], steps),
        l2_bytes_per_step=_per_step(kernels["l2_bytes"], steps),
        l1_bytes_per_step=_per_step(kernels["l1_bytes"], steps),
    )


def _per_step(values: "pd.Series[float]", steps: int | None) -> float | None:
    """Sum per step; None if any launch lacks a value, because the sum would be too low."""
    if steps is None or values.empty or values.isna().any():
        return None
    total = float(values.sum()) / steps
    return total if math.isfinite(total) else None
