"""A user's script under measurement, and its bundle: opened once its step is known, sealed after its last step."""

import logging
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from workload import log
from workload.contract import allocations, bundle, ranks, utilization, verdict
from workload.contract.allocations import Allocation
from workload.contract.invocation import as_typed
from workload.contract.process import interruption_deferred
from workload.contract.ranks import COLLECTIVES_FILE, own_folder
from workload.contract.record import ComplexityRecord, Record, SkippedSteps, Spec, Status, StepMemory
from workload.contract.script_words import slug
from workload.contract.spec import Device, Precision, RunSpec
from workload.contract.spent import energy_text, joules_per_image, work_rows
from workload.contract.text import counted, percent, plain, seconds, si
from workload.contract.trainer import Context
from workload.environment.collect import collect
from workload.environment.device import device_facts
from workload.environment.machine import HostSystem
from workload.measure import link_rates
from workload.measure.clock import Collectives, clock_for, replaced
from workload.measure.recorder import StepPhase
from workload.measure.timing import Timeline
from workload.run import machines
from workload.run.life import Life, Region
from workload.run.unfinished import first_record
from workload.steps import changes
from workload.steps.agreement import Agreement, RankSession, Word
from workload.steps.model_input import Unit
from workload.steps.program import Program, script_facts
from workload.steps.session import Session
from workload.steps.step import Limits, Phase, Step
from workload.steps.step_log import StepLog
from workload.steps.step_work import GRAPH, Work

LOGGER = logging.getLogger("workload")
METHOD = (
    "own formula table over the operations dispatched in one warm-up step; 1 fused multiply-add = 2 FLOP; "
    "element-wise, normalisation and pooling operations count 0 FLOP; causal attention counts only the pairs of query "
    "and key that its kernel keeps. Bytes are modelled: lower = each tensor once, upper = each operation "
    "from and to memory"
)
# A note names the operations without a formula if their share of the operations' time is at least this.
UNATTRIBUTED_NOTE_FROM = 0.05
UNATTRIBUTED_SHOWN = 4
# Least share of subnormal gradients to report. With 1.1 %, a backward pass of resnet18 took 4 times as long.
LEAST_SUBNORMAL = 0.001
# Suffix of the files of the longest phase so far, while a later phase is measured.
LONGEST = ".longest"


class MeasuredScript:
    """A script under measurement in this process, and its bundle. Beside rank 0, a rank writes only its own steps.

    `announce` receives the bundle's folder. `goes_on`: the script runs on after its last measured step. `agreement`:
    with the other ranks; None for one device. `shows`: print the results. `leaves_failures`: the process that started
    the ranks reports a failure, and seals the bundle.
    """

    def __init__(
        self,
        spec: RunSpec,
        program: Program,
        context: Context,
        timeline: Timeline,
        *,
        output: Path,
        announce: Callable[[Path], None],
        goes_on: bool,
        agreement: Agreement | None = None,
        shows: bool = True,
        leaves_failures: bool = False,
    ) -> None:
        self.folder: Path | None = None
        self.is_sealed = False
        self.leaves_failures = leaves_failures
        self.changes = changes.Changes(spec.change, program.folder)
        # Losses are compared only where a change is judged.
        self.losses = changes.Losses() if spec.change or context.keeps_losses else None
        self._spec, self._program, self._context, self._timeline = spec, program, context, timeline
        self._output, self._cwd, self._announce, self._shows = output, Path.cwd(), announce, shows
        self._agreement, self._writes = agreement, agreement is None or agreement.rank == 0
        self._life: Life | None = None
        self._region: Region | None = None
        self._phase: Phase | None = None
        # The longest phase before the present one, and in rank 0 the record and the notes at its end.
        self._longest: tuple[Phase, Record | None, list[str]] | None = None
        self._stack = ExitStack()
        self._collectives: Collectives | None = None
        self._used, self._has_links = Device.CPU, False
        # Make the `HostSystem` before the script can change the working folder, or the files there.
        self._machine = HostSystem()
        self._limits = limits = Limits(
            warmup=spec.warmup,
            iterations=spec.iterations,
            samples_per_step=spec.samples_per_step,
            min_seconds=spec.min_seconds,
        )
        self.session = (
            RankSession(
                limits,
                program,
                self._open,
                self._complete,
                goes_on=goes_on,
                agreement=agreement,
                on_meeting=self._meet,
            )
            if agreement
            else Session(limits, program, self._open, self._complete, goes_on=goes_on)
        )
        self.step_log = StepLog(self.session)

    @property
    def measured_steps(self) -> int:
        """Number of measured steps of the longest phase so far; rows of the last second may not be written yet."""
        return max(self.session.measured_steps, *(phase.taken for phase in self.session.phases), 0)

    # --- the beginning

    def _open(self, step: Step, work: Work | None, used: Device) -> Region:
        """Open the files of the timed steps that follow; the session calls this once the training step is known."""
        # Keep the steps of the phase that has ended, if it is the longest so far.
        if self._phase and self._is_longest():
            if self._life:
                self._add_figures(self._life)
                self._life.note_times()
            self._longest = self._phase, *((self._life.record, self._life.notes) if self._life else (None, []))
            for path, aside in self._files():
                path.replace(aside)
        self._stack.close()
        self._stack = ExitStack()
        self._region, self._phase = None, self.session.phases[-1]
        notes = self.changes.settle(self.session.in_step())
        if self._writes:
            assert work is not None
            own = self._begin(step, work, used, notes)
        else:
            assert self._agreement is not None
            self.folder = machines.folder_here(Path(self._agreement.folder))
            own = own_folder(self.folder, self._agreement.rank)
            self._stack.enter_context(log.to_file(own / bundle.LOG))
        LOGGER.debug("script     %s", step.text)
        if self._agreement:
            self._agreement.hooks.receiver, self._used = None, used
            place = own_folder(self.folder or own, self._agreement.rank)
            self._collectives = self._stack.enter_context(Collectives(place, clock_for(used)))
        self._region = Region(own, used, self._timeline, collectives=self._collectives)
        if self._agreement and self._writes:
            self._agreement.tell(Word.BEGIN, str(self.folder))
        return self._region

    def _meet(self) -> None:
        """Measure the links between the ranks, which are all here, and observe collectives from now on."""
        assert self._agreement is not None
        if self._spec.ceilings and not self._has_links:
            self._has_links = True
            rates = link_rates.measure(self._used, self._agreement.backend or "")
            if self._life:
                self._life.set_links(rates)
        self._agreement.hooks.receiver = self._collectives

    def _begin(self, step: Step, work: Work, used: Device, notes: Sequence[str]) -> Path:
        """Create the bundle, or begin again with steps of another kind, and do all that precedes the timed steps."""
        if self.folder is None:
            self._timeline.enter("environment")
            run_id = bundle.make_run_id(
                now=self._timeline.started_at,
                place=self._context.place_on(used),
                model=slug(self._program.name),
                batch_size=step.batch_size,
                precision=work.precision,
            )
            self.folder = bundle.create(self._cwd / self._output, run_id)
            self._announce(self.folder)
        memory, rows = _memory(step, work)
        allocations.write(self.folder / allocations.FILE, rows)
        first = first_record(
            self.folder.name,
            self._context,
            spec=self._recorded_spec(step, work, used),
            spec_origin=self._context.spec_origin or None,
            facts=collect(
                device=device_facts(self._machine, used), outside=self._context.outside, machine=self._machine
            ),
            started_at=self._timeline.started_at.isoformat(),
            complexity=_complexity(step, work),
            notes=[*_variation(work), *_differing(step), *notes],
        )
        first = replace(first, step_memory=memory)
        if self._life is None:
            self._life = Life(self.folder, first, self._timeline, self._context, apart=self._cwd)
        else:
            self._life.begin_again(first)
        self._life.prepare()
        return self.folder

    def _recorded_spec(self, step: Step, work: Work, used: Device) -> Spec:
        program, given, (warmup, iterations, least_s) = self._program, self._spec, self._limits.filled(used)
        script = script_facts(program.words, program.folder, program.path, machine=self._machine)
        # A launcher that copied the script's folder has recorded its commit; a copy has no git repository.
        commit, _, dirty = self._context.script_commit.partition("-")
        copied: dict[str, Any] = {"commit": commit, "dirty": bool(dirty)} if commit else {}
        ranks_number, in_pass = self._agreement.size if self._agreement else 1, step.samples_in_pass
        dynamo = sys.modules.get("torch._dynamo")
        return Spec(
            model=program.name,
            device=used,
            batch_size=step.batch_size,
            precision=work.precision,
            warmup=warmup,
            iterations=iterations,
            min_seconds=least_s,
            repeats=self._context.repeats,
            profile=given.profile,
            profile_steps=given.profile_steps,
            ncu_metrics=given.ncu_metrics,
            compile=bool(dynamo and dynamo.utils.counters["stats"]["unique_graphs"]),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            grad_accumulation=step.batches,
            workers=step.workers,
            optimizer=", ".join(dict.fromkeys(step.optimizers)) or None,
            ceilings=given.ceilings,
            fresh_ceilings=given.fresh_ceilings,
            samples_per_step=self._limits.samples_per_step,
            samples=given.samples,
            change=given.change,
            devices=self._agreement.size // given.machines if self._agreement else None,
            machines=given.machines,
            script=replace(
                script,
                step=step.text,
                unit=step.unit,
                dataset_samples=in_pass and in_pass * ranks_number,
                constructors=self.changes.constructors(self.session.in_step()),
                settings=changes.settings(),
                **copied,
            ),
        )

    # --- phases

    def _files(self) -> Iterator[tuple[Path, Path]]:
        """Files with the steps of the present phase, and their names while they are those of the longest phase."""
        assert self.folder is not None
        rank = self._agreement.rank if self._agreement else 0
        paths = [(self.folder if self._writes else own_folder(self.folder, rank)) / bundle.STEPS]
        paths += [own_folder(self.folder, rank) / COLLECTIVES_FILE] if self._agreement else []
        paths += [self.folder / allocations.FILE] if self._writes else []
        yield from ((path, path.with_name(path.name + LONGEST)) for path in paths)

    def _is_longest(self) -> bool:
        """Whether the present phase has steps, more than each phase before it, and the session has not dropped it."""
        if not (self._phase and self._region and self._region.has_steps) or self._phase not in self.session.phases:
            return False
        return self._phase.is_longer_than(self._longest[0] if self._longest else None)

    def _take_longest(self) -> Phase | None:
        """Put the steps of the script's longest phase into the bundle, and their figures into the record."""
        if self._is_longest():
            if self._longest:
                for _, aside in self._files():
                    aside.unlink()
            if self._life:
                self._add_figures(self._life)
            return self._phase
        if self._longest is None:
            return None
        for path, aside in self._files():
            aside.replace(path)
        phase, record, notes = self._longest
        if self._life and record:
            self._life.record, self._life.notes = record, notes
        return phase

    def _add_figures(self, life: Life) -> None:
        assert self._region is not None
        assert self._phase is not None
        life.take(self._region)
        images, sequences, tokens = zip(*self.session.amounts, strict=True) if self.session.amounts else ((), (), ())
        samples = None if None in sequences else sum(sequences)
        life.set_timing(tokens=sum(tokens) or None, samples=samples or None)
        if skipped := self.session.skipped:
            life.set_timing(skipped_steps=SkippedSteps(**{phase.value: skipped[phase] for phase in StepPhase}))
        unit = str(self._phase.step.unit)
        life.notes += [*_spread(images, unit), *(_spread(tokens, "tokens") if unit != Unit.TOKENS else ())]

    # --- the end

    def _complete(self) -> None:
        """Finish the measurement; the session calls this when every step is taken, while the script waits."""
        if self._agreement and self._writes:
            self._note_hosts()
            self._agreement.meet()
        self.close(Status.COMPLETED)
        if self._agreement and not self._writes:
            machines.deliver()
            self._agreement.meet()

    def end_early(self) -> None:
        """Finish the measurement of a script that has ended before all of its steps were taken."""
        if self._agreement and self._writes:
            # The record has the steps of all ranks.
            self._leave_steps()
            self._note_hosts()
            self._agreement.end()
        self.close(Status.COMPLETED)
        if self._agreement and not self._writes:
            machines.deliver()
            self._agreement.end()

    def _note_hosts(self) -> None:
        """Compare the clocks of several machines while every rank is still there."""
        if self.folder:
            machines.write_hosts(self.folder)

    def _leave_steps(self) -> None:
        self.step_log.flush_events(is_over=True)
        if self._region and self.session.receiver:
            if self._region.wall_s is None:
                self._region.leave()
            self._region.close()
        if self._agreement:
            self._agreement.hooks.receiver = None
            self._agreement.close()

    def close(self, status: Status, error: str | None = None) -> None:
        """Write and seal the bundle, if it was opened; a script that ends early leaves its steps so far."""
        if (self._life is None and self._region is None) or self.is_sealed or self.folder is None:
            return
        with interruption_deferred(), bundle.guarded_writes(self.folder):
            self._leave_steps()
            longest = self._take_longest()
            if self._life:
                self._finish(self._life, longest, status, error)
            self._stack.close()
            self.is_sealed = True
        if self._life and self._shows and status is Status.COMPLETED:
            # stdout belongs to the script.
            with log.beside_bars():
                print(as_typed(summary(self._life.record, self.folder, self._output)), file=sys.stderr, flush=True)

    def _finish(self, life: Life, longest: Phase | None, status: Status, error: str | None) -> None:
        agreement, device = self._agreement, life.device
        life.set(status=status)
        others = [phase for phase in self.session.phases if phase is not longest]
        if longest and others:
            listed = "; ".join(f"{counted(phase.steps, 'step')} of {phase.step.what}" for phase in others)
            steps = counted(longest.steps, "step")
            life.notes.append(f"the script's longest phase is measured, {steps}; other phases: {listed}")
        if agreement:
            found = ranks.summary(life.folder, device=device, measured_s=life.record.timing.measured_s)
            life.set(ranks=found and replace(found, backend=agreement.backend))
        if status is Status.COMPLETED:
            if (share := self.session.optimizers.subnormal_share()) >= LEAST_SUBNORMAL:
                life.notes.append(
                    f"{percent(share)} of the gradients are subnormal numbers, below 1.2e-38, with which a CPU computes"
                    " several times slower: the script has learned its few samples by heart;"
                    " torch.set_flush_denormal(True) makes such gradients 0"
                )
            if self.losses and (script := life.record.spec.script):
                distinct = self.session.model_input.distinct_share()
                losses = self.losses.texts()
                script = replace(script, losses=losses, distinct_samples=distinct, replaced=replaced() or None)
                life.set(spec=replace(life.record.spec, script=script))
            life.measure_again()
        self._timeline.enter("finish")
        life.notes += [*_notes(life.record, self._limits), *_notes_on_ranks(life.record, agreement)]
        for note in life.notes:
            LOGGER.warning("note       %s", note)
        life.finish(status, error, seals=status is Status.COMPLETED or not self.leaves_failures)


def summary(record: Record, folder: Path, output: Path) -> str:
    """Results in a few lines: the step, its speed, its limit. Launchers print a table of all figures instead."""
    spec, figures, bound, found = record.spec, record.timing, record.bound, record.ranks
    if spec.script is None or figures.step_s is None:
        return ""
    rate = plain(figures.images_per_s or 0.0, 4)
    if figures.samples_per_s:
        rate += f" ({plain(figures.samples_per_s, 4)} sequences/s)"
    if found and found.images_per_s is not None:
        rank, share = found.slowest, percent(found.slower_by or 0.0)
        slower = "" if rank is None else f", rank {rank:g} is slower by {share}"
        rate += f" on each of {found.number or 0:g} devices, {plain(found.images_per_s, 4)} on all{slower}"
    limit = "unknown" if bound is None else verdict.NAMES.get(bound.bound, str(bound.bound))
    steps, faults = counted(int(figures.step_s.n or 0), "step"), verdict.faults_note(record)
    used_j = joules_per_image(record)
    rows = {
        f"{spec.script.unit}/s": f"{rate}  (one run: no interval)",
        "step time": f"{seconds(figures.step_s.median or 0.0)}  (median of {steps})",
        **dict(work_rows([record])),
        "memory": allocations.sentence(record.step_memory),
        "MFU": utilization.sentence([record]),
        "limited by": f"{limit}: {bound.why if bound else 'no step was measured'}",
        "busy": bound and bound.busy,
        "energy": None if used_j is None else energy_text(record, used_j),
        "note": faults and faults[0],
        "bundle": str(folder),
        "next": f"analyze report {output}",
    }
    device_name = record.environment.device.name or spec.device
    changed = f", with {spec.change}" if spec.change else ""
    lines = [f"{spec.script.command}{changed}, {spec.precision}, on {spec.device}: {device_name}"]
    lines += [f"  {spec.script.step}", ""]
    return "\n".join([*lines, *(f"  {name:<13} {text}" for name, text in rows.items() if text)])


def _spread(values: Sequence[int], unit: str) -> Iterator[str]:
    """Note on the smallest, median and largest value, if they differ. `values`: samples or tokens of each step."""
    if len(set(values)) > 1:
        low, usual, high = min(values), statistics.median_low(values), max(values)
        yield (
            f"steps differ: {low:,} to {high:,} {unit}, median {usual:,}; throughput is all work divided by all time"
        )


def _complexity(step: Step, work: Work) -> ComplexityRecord:
    tally = work.tally
    # If steps differ, the step of these FLOP has data of its own.
    samples = work.entered.count if work.entered and (step.differing or step.share) else step.samples
    return ComplexityRecord(
        parameters=step.parameters,
        forward_mac_per_image=round(work.forward_flop / 2 / samples),
        forward_flop_per_image=round(work.forward_flop / samples),
        train_flop_per_step=tally.flop,
        recomputed_flop_per_step=work.recomputed_flop or None,
        train_flop_per_image=round(tally.flop / samples),
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


def _memory(step: Step, work: Work) -> tuple[StepMemory | None, list[Allocation]]:
    """Memory of the counted step that has most, and its allocations; none if no whole step was counted."""
    memory = work.memory
    if memory is None:
        return None, []
    samples = None if step.unit is Unit.STEPS else step.batch_size
    if step.unit is Unit.TOKENS:
        sequences = memory.sequences or step.sequences
        samples = sequences // step.batches if sequences else None
    unseen = [f"what {GRAPH} keep is not seen"] if GRAPH in work.uncounted else []
    if names := [name for name in dict.fromkeys((*work.unattributed, *work.uncounted)) if name != GRAPH]:
        unseen.append(f"{', '.join(names[:UNATTRIBUTED_SHOWN])} may take more inside than their results")
    rows = memory.allocations(samples)
    return memory.record(rows, samples=samples, method=memory.method(), lower_bound=unseen), rows


def _variation(work: Work) -> Iterator[str]:
    if work.flop_range:
        low, usual, high = (si(flop, "FLOP") for flop in (work.flop_range[0], work.tally.flop, work.flop_range[1]))
        yield (
            f"the FLOP of a step vary, from {low} to {high} in the few steps that were counted; FLOP/s are "
            f"an estimate from {usual} per step"
        )


def _differing(step: Step) -> Iterator[str]:
    if step.differing:
        low, high = step.differing
        yield (
            f"the data of a step vary, from {low:,} to {high:,} {step.unit} in the few steps that were counted; "
            f"throughput counts {step.samples:,} for each step"
        )


def _notes_on_work(work: ComplexityRecord, spec: Spec) -> Iterator[str]:
    if work.recomputed_flop_per_step and work.train_flop_per_step:
        yield utilization.repetition(work.recomputed_flop_per_step / work.train_flop_per_step)
    if (work.unattributed_share or 0.0) >= UNATTRIBUTED_NOTE_FROM:
        names = ", ".join(list(work.unattributed or {})[:UNATTRIBUTED_SHOWN])
        on_gpu = "; on a GPU that is mostly the host's time to start small kernels" * (spec.device == Device.CUDA)
        yield f"unattributed: {percent(work.unattributed_share or 0.0)} of the operations' time, in {names}{on_gpu}"
    if GRAPH in (work.uncounted or ()):
        yield f"FLOP and bytes are unknown: no hook sees {GRAPH} that a step replays"
    elif work.uncounted:
        yield f"FLOP are a lower bound: no formula for {', '.join(work.uncounted)}"


def _notes(record: Record, limits: Limits) -> Iterator[str]:
    """Notes that a reader of the figures needs, for example that steps are missing."""
    spec, work, step_s = record.spec, record.complexity, record.timing.step_s
    iterations = int(spec.iterations or 0)
    if step_s and record.status is Status.COMPLETED and (step_s.n or 0) < iterations:
        yield f"the script ended after {int(step_s.n or 0)} of {iterations} measured steps"
    if spec.script and spec.script.unit not in (Unit.IMAGES, Unit.TOKENS):
        yield f"throughput counts {spec.script.unit}"
    yield from _notes_on_work(work, spec) if work else ()
    yield from allocations.notes(record.step_memory)
    shares, ceilings = verdict.shares_of_flop(record), record.ceilings
    if len(shares) > 1:
        lacking = [name for name in shares if ceilings and not ceilings.compute(name)]
        beside = f", {' and '.join(lacking)} with that of {spec.precision}" if lacking else ""
        listed = ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
        yield f"FLOP by precision: {listed}; each is compared with its own ceiling{beside}"
    if Precision.TF32 in shares:
        yield "tf32 means values in fp32 that the GPU multiplies in TF32, as PyTorch does by default in convolutions"
    if spec.compile:
        yield "FLOP, bytes and memory are those of the step without torch.compile: fused operations move fewer bytes"
    if limits.samples_per_step is not None:
        yield f"{limits.samples_per_step} samples per step, from --samples-per-step"
    if (skipped := record.timing.skipped_steps) and skipped.measured:
        yield f"a GradScaler skipped the optimizer in {int(skipped.measured)} measured steps"


def _notes_on_ranks(record: Record, agreement: Agreement | None) -> Iterator[str]:
    """Notes on a run of several ranks: figures that are missing, and an unusual library for collectives."""
    spec, found = record.spec, record.ranks
    if found is None or agreement is None:
        return
    yield from ranks.clock_notes(found)
    if found.why == ranks.UNKNOWN:
        yield found.why
    if found.backend != ranks.backend_of(spec.device):
        yield f"the script's ranks use {found.backend} on {spec.device}: their collectives go through the CPU"
