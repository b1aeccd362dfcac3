"""Bundle of a measured script: opened once its step is known, sealed after its last step or when it fails."""

import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from workload import log
from workload.contract import bundle, ranks, verdict
from workload.contract.context import Context
from workload.contract.fields import from_facts
from workload.contract.interrupt import interruption_deferred
from workload.contract.invocation import as_typed
from workload.contract.ranks import COLLECTIVES_FILE, Ranks, own_folder
from workload.contract.record import (
    CeilingsRecord,
    ComplexityRecord,
    GapSeconds,
    Record,
    SkippedSteps,
    Spec,
    Status,
    Timing,
)
from workload.contract.script import slug
from workload.contract.spec import Device, Precision
from workload.contract.text import counted, percent, plain, seconds, si
from workload.environment import device, gpu_index
from workload.environment.collect import collect
from workload.environment.machine import HostSystem
from workload.measure.recorder import StepPhase
from workload.measure.timing import Timeline
from workload.run.first_record import first_record
from workload.run.measured_script import MeasuredScript, PhaseFiles, Request
from workload.run.region import Measured, Region
from workload.run.run_record import RunRecord
from workload.steps import script_facts
from workload.steps.agreement import Word
from workload.steps.step import Limits, Phase, Step
from workload.steps.step_work import GRAPH, Work

LOGGER = logging.getLogger("workload")
METHOD = (
    "own formula table over the operations dispatched in one warm-up step; 1 fused multiply-add = 2 FLOP; "
    "element-wise, normalisation and pooling operations count 0 FLOP. Bytes are modelled: lower = each tensor once, "
    "upper = each operation from and to memory"
)
# Measuring the ceilings takes a few seconds for each precision and for the bandwidth, longer if other work disturbs.
CEILINGS_LIMIT_S = 180.0
# A note names the operations without a formula if their share of the operations' time is at least this.
UNATTRIBUTED_NOTE_FROM = 0.05
UNATTRIBUTED_SHOWN = 4
# Least share of subnormal gradients to report. With 1.1 %, a backward pass of resnet18 took 4 times as long.
LEAST_SUBNORMAL = 0.001
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class _Measurement:
    """Measurement of a finished phase of the script: the record at its beginning, its times and its notes."""

    phase: Phase  # the phase's number of steps includes steps that were not measured
    record: Record
    timing: Timing
    notes: list[str]


class ScriptRun(MeasuredScript):
    """A script under measurement, and its bundle."""

    def __init__(self, request: Request, timeline: Timeline) -> None:
        super().__init__(request, timeline)
        self._output, self._cwd = request.output.absolute(), Path.cwd()
        self._run: RunRecord | None = None
        self._longest: _Measurement | None = None
        self._device = Device.CPU
        self._notes: list[str] = []
        # Make the `HostSystem` before the script can change the working folder, or the files there.
        self._machine = HostSystem()

    def _open(self, step: Step, work: Work | None, used: Device) -> Region:
        """Create the bundle, with everything known before the first timed step."""
        assert work is not None
        if self.folder is not None:
            # A new phase begins, with steps of another kind. Keep the steps of the longest phase so far.
            self._set_aside()
            self._stack.close()
            return self._begin(self.folder, step, work, used)
        program = self._request.program
        name = slug(program.name)
        self._timeline.enter("environment")
        run_id = bundle.make_run_id(
            now=self._timeline.started_at,
            place=self._request.context.place_on(used),
            model=name,
            batch_size=step.batch_size,
            precision=work.precision,
        )
        self.folder = bundle.create(self._output, run_id)
        self._request.announce(self.folder)
        return self._begin(self.folder, step, work, used)

    def _begin(self, folder: Path, step: Step, work: Work, used: Device) -> Region:
        self._stack = ExitStack()
        self._stack.enter_context(log.to_file(folder / bundle.LOG))
        self._device = used
        self._notes = list(_variation(work))
        self._run = RunRecord(folder, self._first_record(folder, step, work), self._timeline)
        self._phase = self.session.phases[-1]
        LOGGER.debug("script     %s", step.text)
        collectives = self._collectives(folder, used)
        self._region = Region(folder, used, self._timeline, collectives=collectives)
        if self._agreement:
            self._agreement.tell(Word.BEGIN, str(folder))
        return self._region

    def _first_record(self, folder: Path, step: Step, work: Work) -> Record:
        context = self._request.context
        return first_record(
            folder.name,
            context,
            place=context.place_on(self._device),
            spec=self._spec(step, work),
            spec_origin=context.spec_origin or None,
            facts=collect(device=self._device, outside=context.outside, machine=self._machine),
            started_at=self._timeline.started_at.isoformat(),
            complexity=_complexity(step, work),
            notes=self._notes,
        )

    def _spec(self, step: Step, work: Work) -> Spec:
        program, (warmup, iterations, least_s) = self._request.program, self._limits.filled(self._device)
        script = script_facts.collect(program.words, program.folder, program.path, machine=self._machine)
        return Spec(
            model=program.name,
            device=self._device,
            batch_size=step.batch_size,
            precision=work.precision,
            warmup=warmup,
            iterations=iterations,
            min_seconds=least_s,
            repeats=self._request.context.repeats,
            profile=self._request.spec.profile,
            profile_steps=self._request.spec.profile_steps,
            ncu_metrics=self._request.spec.ncu_metrics,
            compile=_is_compiled(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            grad_accumulation=step.batches,
            workers=step.workers,
            optimizer=", ".join(dict.fromkeys(step.optimizers)) or None,
            ceilings=self._request.spec.ceilings,
            fresh_ceilings=self._request.spec.fresh_ceilings,
            samples_per_step=self._limits.samples_per_step,
            devices=self._agreement.size if self._agreement else None,
            script=replace(script, step=step.text, unit=step.unit, **_copied_from(self._request.context)),
        )

    # --- phases

    def _measurement(self) -> _Measurement | None:
        """Measured steps of the current phase; None without such steps, or if the session has dropped the phase."""
        run, region, phase = self._run, self._region, self._phase
        if run is None or phase is None or region is None or region.measured is None or not self._has_steps():
            return None
        return _Measurement(
            phase=phase,
            record=run.record,
            timing=self._timing(run.record.timing, region.measured),
            notes=[*_spread(self.session.samples, str(phase.step.unit)), *_spread(self.session.tokens, "tokens")],
        )

    def _files(self) -> PhaseFiles:
        assert self.folder is not None
        paths = [self.folder / name for name in (bundle.STEPS, bundle.TELEMETRY)]
        return PhaseFiles([*paths, *([own_folder(self.folder, 0) / COLLECTIVES_FILE] if self._agreement else [])])

    def _set_aside(self) -> None:
        """Keep the steps of the finished phase if it is the longest so far."""
        current, kept = self._measurement(), self._longest
        if current and current.phase.is_longer_than(kept.phase if kept else None):
            self._longest = current
            self._files().keep()

    def _take_longest(self) -> _Measurement | None:
        """Take the longest phase of the script, and put the steps of this phase into the bundle."""
        current, kept = self._measurement(), self._longest
        if kept is None:
            return current
        if current and current.phase.is_longer_than(kept.phase):
            self._files().forget()
            return current
        self._files().put_back()
        assert self._run is not None
        self._run.record, self._notes = kept.record, list(kept.record.notes or ())
        return kept

    # --- the end

    def _complete(self) -> None:
        if self._agreement:
            self._agreement.meet()
        self.close(Status.COMPLETED)
        self.show()

    def end_early(self) -> None:
        """Finish the measurement of a script that has ended before all of its steps were taken."""
        if self._agreement:
            self._leave_steps()
            self._agreement.end()
        self.close(Status.COMPLETED)
        self.show()

    def show(self) -> None:
        """Print the results to stderr, unless a launcher prints them; stdout belongs to the script."""
        if self._request.is_launched:
            return
        with log.beside_bars():
            print(as_typed(self.summary()), file=sys.stderr, flush=True)

    def close(self, status: Status, error: str | None = None) -> None:
        """Write and seal the bundle, if it was opened; a script that ends early leaves its steps so far."""
        run = self._run
        if run is None or self.is_sealed:
            return
        self._timeline.enter("finish")
        with interruption_deferred():
            self._leave_steps()
            longest = self._take_longest()
            if longest:
                self._notes += [*longest.notes, *_phase_notes(self.session.phases, longest.phase)]
            figures = longest.timing if longest else self._timing(run.record.timing, None)
            run.set(status=status, error=error, timing=figures, ranks=self._ranks(figures))
            index = run.record.environment.device.index
            run.set_process(lambda: device.memory(self._device, None if index is None else int(index)))
            if status is Status.COMPLETED and (share := self.session.optimizers.subnormal_share()) >= LEAST_SUBNORMAL:
                self._notes.append(
                    f"{percent(share)} of the gradients are subnormal numbers, below 1.2e-38, with which a CPU computes"
                    " several times slower: the script has learned its few samples by heart;"
                    " torch.set_flush_denormal(True) makes such gradients 0"
                )
            if status is Status.COMPLETED and self._request.spec.ceilings:
                self._timeline.enter("ceilings")
                run.set(ceilings=self._measure_ceilings(verdict.shares_of_flop(run.record)))
                if longest is not self._longest:  # the times of a phase that was set aside end with that phase
                    run.set_timing(phases=self._timeline.phases())
            run.judge()
            has_async = bool(self._agreement and self._agreement.hooks.has_async)
            self._notes += [*_notes(run.record, self._limits), *_notes_on_ranks(run.record, has_async)]
            for note in self._notes:
                LOGGER.warning("note       %s", note)
            run.set(notes=self._notes)
            self._stack.close()
            if status is not Status.COMPLETED and self.leaves_failures:
                run.write()
            else:
                run.seal()
            self.is_sealed = True

    def _ranks(self, figures: Timing) -> Ranks | None:
        """Summary of the steps of all ranks; None for one device."""
        if self._agreement is None or self.folder is None:
            return None
        found = ranks.summary(self.folder, device=self._device, measured_s=figures.measured_s)
        return found and replace(found, backend=self._agreement.backend)

    def _timing(self, known: Timing, measured: Measured | None) -> Timing:
        times = self._timeline
        known = replace(known, setup_s=times.setup_s(), phases=times.phases(), interpreter_s=times.interpreter_s)
        if measured is None:
            return known
        skipped, gaps = self.session.skipped, measured.totals.gaps
        if skipped:
            counts = {phase.value: skipped[phase] for phase in StepPhase}
            known = replace(known, skipped_steps=SkippedSteps(**counts))
        seconds_by_gap = {
            gap.value: GapSeconds(number=total.number, seconds=total.seconds) for gap, total in gaps.items()
        }
        return replace(measured.summarize(known), tokens=sum(self.session.tokens) or None, gaps=seconds_by_gap or None)

    def _measure_ceilings(self, precisions: Iterable[str]) -> CeilingsRecord | None:
        """Measure ceilings in a separate process, free of the script's settings and memory, while the script waits."""
        LOGGER.info("script     all steps are measured; now measuring this machine's ceilings")
        command = [sys.executable, "-P", "-m", "workload", "ceilings", "--device", self._device.value]
        command += ["--cache", str(self._output), *(["--fresh"] if self._request.spec.fresh_ceilings else [])]
        command += [f"--precision={precision}" for precision in precisions if precision in set(Precision)]
        python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": python_path}
        if self._device is Device.CUDA and self._run:
            # Memory that the script's allocator keeps is missing to the probes.
            torch.cuda.empty_cache()
            index = int(self._run.record.environment.device.index or 0)
            visible = [name.strip() for name in os.environ.get(gpu_index.VISIBLE, "").split(",") if name.strip()]
            environment[gpu_index.VISIBLE] = visible[index] if index < len(visible) else str(index)
        try:
            done = subprocess.run(
                command,
                check=True,
                stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                timeout=CEILINGS_LIMIT_S,
                cwd=self._cwd,
                env=environment,
            )
            return from_facts(CeilingsRecord, json.loads(done.stdout))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self._notes.append(f"this machine's ceilings could not be measured: {error}")
            return None

    # --- results as text

    def summary(self) -> str:
        """Results in a few lines: the step, its speed, its limit."""
        record = self._run.record if self._run else None
        if record is None or record.spec.script is None or record.timing.step_s is None:
            return ""
        spec, script, figures = record.spec, record.spec.script, record.timing
        flop_per_s, share = verdict.flop_per_s(record), verdict.share_of_ceiling(record)
        rate = figures.images_per_s or 0.0
        ceiling = f"{' and '.join(verdict.shares_of_flop(record))} ceiling"
        share_text = f"  ({percent(share)} of the measured {ceiling})" if share else ""
        step_s = record.timing.step_s
        rows = {
            f"{script.unit}/s": f"{plain(rate, 4)}{_of_all(record)}  (one run: no interval)",
            **({"tokens/s": plain(figures.tokens / (figures.measured_s or 1.0), 4)} if figures.tokens else {}),
            "step time": f"{seconds(step_s.median or 0.0)}  (median of {counted(int(step_s.n or 0), 'step')})",
            "FLOP/s": f"{si(flop_per_s, 'FLOP/s')} while stepping{share_text}"
            if flop_per_s
            else "no FLOP were counted",
            "limited by": _limit_words(record),
            **({"busy": record.bound.busy} if record.bound and record.bound.busy else {}),
            "data waits": f"{percent(figures.data_wait_fraction or 0.0)} of the wall time",
            **_gap_rows(figures),
            "bundle": str(self.folder),
            "next": f"analyze report {self._request.output}",
        }
        device_name = record.environment.device.name or spec.device
        lines = [f"{script.command}, {spec.precision}, on {spec.device}: {device_name}", f"  {script.step}", ""]
        return "\n".join([*lines, *(f"  {name:<13} {text}" for name, text in rows.items())])


def _of_all(record: Record) -> str:
    """Throughput of all ranks together, and the slowest rank, beside the throughput of each; "" for one device."""
    found = record.ranks
    if found is None or found.images_per_s is None:
        return ""
    rank, share = found.slowest, percent(found.slower_by or 0.0)
    slower = "" if rank is None else f", rank {rank:g} is slower by {share}"
    return f" on each of {found.number or 0:g} devices, {plain(found.images_per_s, 4)} on all{slower}"


def _notes_on_ranks(record: Record, has_async: bool) -> Iterator[str]:
    """Notes on a run of several ranks: figures that are missing, and an unusual library for collectives.

    `has_async`: the script calls collectives that return before they are done.
    """
    found = record.ranks
    if found is None:
        return
    if found.why == ranks.UNKNOWN:
        yield found.why
    elif has_async:
        yield (
            "the script calls collectives with async_op=True: its waits for them are counted as its own work, not as "
            "waits for other ranks"
        )
    if found.backend != ranks.backend_of(record.spec.device):
        yield f"the script's ranks use {found.backend} on {record.spec.device}: their collectives go through the CPU"


def _limit_words(record: Record) -> str:
    bound = record.bound
    if bound is None or bound.bound is None:
        return f"unknown: {bound.why if bound else 'no step was measured'}"
    return f"{verdict.NAMES.get(bound.bound, bound.bound)}: {bound.why}"


def _gap_rows(figures: Timing) -> dict[str, str]:
    """Row on gaps between steps: number, seconds and share of the time, for each kind of gap; empty without gaps."""
    gaps = figures.gaps or {}
    total_s = (figures.measured_s or 0.0) + sum(gap.seconds or 0.0 for gap in gaps.values())
    rows = [
        f"{name} {counted(int(gap.number or 0), 'time')}, {seconds(gap.seconds or 0.0)}"
        f" ({percent((gap.seconds or 0.0) / total_s)} of the time)"
        for name, gap in gaps.items()
    ]
    return {"between steps": "; ".join(rows)} if rows else {}


def _spread(values: Sequence[int], unit: str) -> Iterator[str]:
    """Note on the smallest, median and largest value, if they differ. `values`: samples or tokens of each step."""
    if len(set(values)) > 1:
        low, usual, high = min(values), statistics.median_low(values), max(values)
        yield (
            f"steps differ: {low:,} to {high:,} {unit}, median {usual:,}; throughput is all work divided by all time"
        )


def _copied_from(context: Context) -> dict[str, Any]:
    """Commit recorded by a launcher that copied the script's folder; a copy has no git repository."""
    commit, _, dirty = context.script_commit.partition("-")
    return {"commit": commit, "dirty": bool(dirty)} if commit else {}


def _is_compiled() -> bool:
    """Whether the script has compiled a part of its code by torch.compile."""
    dynamo = sys.modules.get("torch._dynamo")
    return bool(dynamo and dynamo.utils.counters["stats"]["unique_graphs"])


def _complexity(step: Step, work: Work) -> ComplexityRecord:
    tally = work.tally
    return ComplexityRecord(
        parameters=step.parameters,
        forward_mac_per_image=round(work.forward_flop / 2 / step.samples),
        forward_flop_per_image=round(work.forward_flop / step.samples),
        train_flop_per_step=tally.flop,
        train_flop_per_image=round(tally.flop / step.samples),
        flop_by_op=tally.flop_by_op,
        bytes_per_step_lower=tally.bytes_lower,
        bytes_per_step_upper=tally.bytes_upper,
        uncounted=work.uncounted or None,
        method=METHOD,
        unattributed_share=work.unattributed_share,
        unattributed=dict(work.unattributed),
        flop_by_precision=work.flop_by_precision,
        copied_to_device_bytes=work.copied_to_device_bytes or None,
        copied_to_device_s=work.copied_to_device_s or None,
    )


def _variation(work: Work) -> Iterator[str]:
    if work.flop_range:
        low, usual, high = (si(flop, "FLOP") for flop in (work.flop_range[0], work.tally.flop, work.flop_range[1]))
        yield (
            f"the FLOP of a step vary, from {low} to {high} in the few steps that were counted; FLOP/s are "
            f"an estimate from {usual} per step"
        )


def _phase_notes(phases: Sequence[Phase], longest: Phase) -> list[str]:
    """Note on the script's other phases, with their numbers of steps."""
    others = [f"{counted(phase.steps, 'step')} of {phase.step.what}" for phase in phases if phase is not longest]
    steps = counted(longest.steps, "step")
    return [f"the script's longest phase is measured, {steps}; other phases: {'; '.join(others)}"] if others else []


def _notes_on_precision(record: Record) -> Iterator[str]:
    shares, ceilings = verdict.shares_of_flop(record), record.ceilings
    if len(shares) > 1:
        lacking = [name for name in shares if ceilings and not ceilings.compute(name)]
        beside = f", {' and '.join(lacking)} with that of {record.spec.precision}" if lacking else ""
        listed = ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
        yield f"FLOP by precision: {listed}; each is compared with its own ceiling{beside}"
    if Precision.TF32 in shares:
        yield "tf32 means values in fp32 that the GPU multiplies in TF32, as PyTorch does by default in convolutions"


def _notes_on_work(work: ComplexityRecord, spec: Spec) -> Iterator[str]:
    """Notes on operations without FLOP."""
    if (work.unattributed_share or 0.0) >= UNATTRIBUTED_NOTE_FROM:
        names = ", ".join(list(work.unattributed or {})[:UNATTRIBUTED_SHOWN])
        on_gpu = "; on a GPU that is mostly the host's time to start small kernels" * (spec.device == Device.CUDA)
        yield f"unattributed: {percent(work.unattributed_share or 0.0)} of the operations' time, in {names}{on_gpu}"
    if GRAPH in (work.uncounted or ()):
        yield f"FLOP and bytes are unknown: no hook sees {GRAPH} that a step replays"
    elif work.uncounted:
        yield f"FLOP are a lower bound: no formula for {', '.join(work.uncounted)}"


def _notes(record: Record, limits: Limits) -> list[str]:
    """Notes that a reader of the figures needs, for example that steps are missing."""
    notes, spec, work, step_s = [], record.spec, record.complexity, record.timing.step_s
    iterations = int(spec.iterations or 0)
    if step_s and record.status is Status.COMPLETED and (step_s.n or 0) < iterations:
        notes.append(f"the script ended after {int(step_s.n or 0)} of {iterations} measured steps")
    if spec.script and spec.script.unit != "images":
        notes.append(f"throughput counts {spec.script.unit}")
    notes += _notes_on_work(work, spec) if work else ()
    notes += _notes_on_precision(record)
    if spec.compile:
        notes.append("FLOP and bytes are those of the step without torch.compile: fused operations move fewer bytes")
    if limits.samples_per_step is not None:
        notes.append(f"{limits.samples_per_step} samples per step, from --samples-per-step")
    if (skipped := record.timing.skipped_steps) and skipped.measured:
        notes.append(f"a GradScaler skipped the optimizer in {int(skipped.measured)} measured steps")
    return [*notes, *verdict.faults_note(record)]
