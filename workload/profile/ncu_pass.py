"""Profile pass with Nsight Compute: counts kernels, profiles them, reads the results. The pass uses no GPU itself."""

import json
import logging
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from workload.contract import vocabulary
from workload.contract.errors import InterruptedRunError, RooflaunchError
from workload.contract.fields import encode, from_facts
from workload.contract.ncu_csv import NcuSource
from workload.contract.record import Record
from workload.contract.record_sections import ProfileResult
from workload.contract.spec import Profile, RunSpec
from workload.contract.text import duration, minutes
from workload.environment.machine import HostSystem
from workload.log import Progress
from workload.profile import command, diagnosis, metrics, summary
from workload.profile.command import (
    RETAKES,
    WARMUP_STEPS,
    Application,
    End,
    ExpectedTime,
    Mode,
    ProfileError,
    ProfileStatus,
    Replay,
    unavailable,
)
from workload.profile.metrics import Kernel, MetricSet
from workload.profile.torch_pass import hide_secrets

FOLDER = "ncu"
COMMANDS, LOG = "command.txt", "ncu.log"
# Time limit for reading a report: hundreds of kernels take a second, 20,000 kernels and a slow disk longer.
IMPORT_LIMIT_S = 300.0
# Lines of ncu that show its progress, by replay mode.
PROGRESS_LINES = {
    Replay.KERNEL: re.compile(r'==PROF== Profiling "'),
    Replay.RANGE: re.compile(r"Application replay pass \d+"),
}

LOGGER = logging.getLogger("workload")


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """Answer of the counting process, see `profiled_step.count`; `start_s`: seconds until the process had warmed up."""

    device: str
    compute_capability: str
    torch: str
    start_s: float
    warmup_steps: int
    kernels_per_step: int | None
    calibration_kernels: int | None
    calibration_flop: Mapping[str, float]

    def kernels(self, steps: int, *, calibrated: bool) -> int | None:
        """Number of kernel launches that a run under ncu has to profile; None if unknown."""
        if self.kernels_per_step is None:
            return None
        return steps * self.kernels_per_step + (self.calibration_kernels or 0 if calibrated else 0)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A run under ncu. `table`: name of the file of results. `total`: number of kernels or passes, None if unknown."""

    name: str
    table: str
    mode: Mode
    metrics: MetricSet
    replay: Replay
    estimate: ExpectedTime
    total: int | None
    warmup_steps: int


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Result of a plan; `finished`: the process trained all its steps, even if AMP skipped some optimizer steps."""

    end: End
    launches: Sequence[Kernel]
    finished: bool
    notes: Sequence[str]
    skipped_steps: int = 0
    warmup_steps: int = WARMUP_STEPS


def profile(
    spec: RunSpec, record: Record, folder: Path, application: Application, machine: HostSystem | None = None
) -> ProfileResult:
    """Profile the bundle with this `record` and return run.json's `profile`; files go to `folder`, which must exist.

    Raises `ProfileError` if nothing could be collected. The caller must be within `process.stoppable`.
    """
    facts = diagnosis.gather(spec.device, machine or HostSystem())
    if obstacle := diagnosis.obstacle(facts):
        raise obstacle
    return NcuPass(spec, record, folder, facts, application).run()


class NcuPass:
    """Profile pass of one bundle: a first run under ncu counts FLOP and bytes per kernel; further runs are optional."""

    def __init__(
        self, spec: RunSpec, record: Record, folder: Path, facts: diagnosis.Facts, application: Application
    ) -> None:
        self._spec = spec
        self._record = record
        self._folder = folder
        self._facts = facts
        self._application = application

    def run(self) -> ProfileResult:
        """Run all parts of the pass, in order."""
        counted = self._count()
        timed = self._record.environment.device.name
        if timed and timed != counted.device:
            raise unavailable(
                f"the run was on {timed}, but this GPU is {counted.device}: a profile needs the same GPU",
                hint="profile on the machine of the run, or train here with --profile ncu",
            )
        candidates = [diagnosis.Ncu(path=path) for path in self._facts.ncus]
        fitting = diagnosis.choose(candidates, counted.compute_capability)
        chosen = metrics.choose(counted.compute_capability, self._spec.precision, fitting.metrics)
        chosen = self._with_own_metrics(chosen, fitting)
        plan = self._kernel_plan("profile", counted, chosen, table="kernels", calibrated=True)
        if plan.metrics.missing:
            LOGGER.info("note       this ncu does not have %s: unavailable", ", ".join(plan.metrics.missing))
        number = "an unknown number of" if plan.total is None else f"{plan.total}"
        steps = command.counted_steps(self._spec.profile_steps)
        expected, limit = duration(plan.estimate.expected_s), minutes(plan.estimate.limit_s)
        LOGGER.info("profile    %s kernels in %s: about %s, at most %s", number, steps, expected, limit)
        done = self._under_ncu(fitting, plan)
        if not done.launches:
            raise self._error_without_profile(done.end, plan)
        result = self._describe(counted, fitting, plan, done)
        if not (done.end.interrupted or done.end.timed_out):
            for name, is_requested, further in (
                ("step_bytes", self._spec.profile_step_bytes, self._step_bytes),
                ("throughput", self._spec.profile_throughput, self._throughput),
            ):
                if is_requested:
                    result[name] = _result_or_error(name, partial(further, counted, fitting))
                    if result[name]["status"] == ProfileStatus.INTERRUPTED:
                        break
        return from_facts(ProfileResult, result | {"files": self._files()})

    def _with_own_metrics(self, chosen: MetricSet, fitting: diagnosis.Fitting) -> MetricSet:
        wanted = vocabulary.metric_names(self._spec.ncu_metrics)
        bases = {metrics.base(name) for name in wanted} & fitting.metrics
        chosen = metrics.with_own(chosen, wanted, fitting.metrics, fitting.ncu.full_names(bases, fitting.chip))
        for note in chosen.notes():
            LOGGER.warning("note       %s", note)
        return chosen

    # --- counting

    def _count(self) -> _Counted:
        LOGGER.info("profile    counting the kernels of a step")
        report = self._folder / "count.json"
        words = self._application.words(Mode.COUNT, report, None)
        limit_s = command.trace_limit_s(self._record, WARMUP_STEPS) + self._application.setup_s
        end = self._start(words, limit_s=limit_s, under_ncu=False)
        answer = _answer(report)
        if answer is None:
            reason = f"the process that counts kernels ended with exit code {end.returncode}"
            raise (
                diagnosis.cut_off(end, limit_s, "before a kernel was profiled")
                or diagnosis.own_error(end.output)
                or ProfileError(ProfileStatus.FAILED, reason, hint=diagnosis.LOOK)
            )
        return _Counted(**answer)

    # --- runs under ncu

    def _kernel_plan(self, name: str, counted: _Counted, chosen: MetricSet, *, table: str, calibrated: bool) -> _Plan:
        """Plan of a run that profiles each kernel of the steps and, with `calibrated`, of the calibration products."""
        total = counted.kernels(self._spec.profile_steps, calibrated=calibrated)
        return _Plan(
            name=name,
            table=table,
            mode=Mode.CALIBRATED if calibrated else Mode.STEPS,
            metrics=chosen,
            replay=Replay.KERNEL,
            estimate=command.estimate_kernels(total, chosen.most_passes, counted.start_s),
            total=total,
            warmup_steps=counted.warmup_steps,
        )

    def _under_ncu(self, fitting: diagnosis.Fitting, plan: _Plan) -> _Run:
        """Run a plan; if AMP skipped a step, repeat it after more warm-up."""
        notes: list[str] = []
        for repetition in range(RETAKES + 1):
            done = self._once_under_ncu(fitting, plan, plan.warmup_steps * 2**repetition)
            if not done.skipped_steps or repetition == RETAKES:
                break
            what = self._application.skipped(done.skipped_steps, self._spec.profile_steps)
            notes.append(f"{what} after {done.warmup_steps} warm-up steps: profiled again after twice as many")
            LOGGER.warning("note       %s", notes[-1])
        return replace(done, notes=[*notes, *done.notes])

    def _once_under_ncu(self, fitting: diagnosis.Fitting, plan: _Plan, warmup_steps: int) -> _Run:
        ncu = fitting.ncu
        report, answer_file = self._folder / f"{plan.name}.ncu-rep", self._folder / f"{plan.name}.json"
        for leftover in (report, answer_file):
            leftover.unlink(missing_ok=True)
        words = command.profile(
            ncu.path,
            report,
            plan.metrics,
            self._application.words(plan.mode, answer_file, warmup_steps),
            replay=plan.replay,
            plain_suffixes=ncu.has_option("--disable-extra-suffixes"),
        )
        end = self._start(words, limit_s=plan.estimate.limit_s, under_ncu=True, plan=plan)
        answer = _answer(answer_file)
        launches, notes = self._import(ncu, report, plan) if report.is_file() else ([], ())
        for note in notes:
            LOGGER.warning("note       %s", note)
        return _Run(
            end=end,
            launches=launches,
            finished=answer is not None,
            notes=notes,
            skipped_steps=(answer or {}).get("skipped_steps", 0),
            warmup_steps=warmup_steps,
        )

    def _start(self, words: Sequence[str], *, limit_s: float, under_ncu: bool, plan: _Plan | None = None) -> End:
        self._echo(words, under_ncu=under_ncu)
        progress = _NcuProgress(plan) if plan else None
        try:
            end = command.run(
                words,
                log=self._folder / LOG,
                limit_s=limit_s,
                environment=command.LOCALE if under_ncu else None,
                on_line=progress.on_line if progress else lambda _: None,
                on_tick=progress.on_tick if progress else lambda: None,
            )
        except OSError as error:
            hint = "the commands are in command.txt"
            raise ProfileError(ProfileStatus.FAILED, f"{words[0]} cannot be started: {error}", hint=hint) from error
        hide_secrets(self._folder / LOG, self._application)
        if progress:
            progress.finish(progress.done)
        return end

    def _echo(self, words: Sequence[str], *, under_ncu: bool) -> None:
        line = command.quoted(self._application.shown(words), under_ncu=under_ncu)
        LOGGER.info("command    %s", line)
        with (self._folder / COMMANDS).open("a", encoding="utf-8") as text:
            text.write(f"{line}\n")

    def _import(self, ncu: diagnosis.Ncu, report: Path, plan: _Plan) -> tuple[list[Kernel], tuple[str, ...]]:
        """Export the report as CSV with ncu, and read it. Raises `ToolError` if it cannot be read."""
        words = command.import_report(ncu.path, report)
        table = self._folder / f"{plan.table}.csv"
        self._echo(words, under_ncu=True)
        environment = {**os.environ, **command.LOCALE}
        with table.open("wb") as out, (self._folder / LOG).open("ab") as errors:
            subprocess.run(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                timeout=IMPORT_LIMIT_S,
                check=False,
            )
        return metrics.read(NcuSource(path=table), plan.metrics.roles)

    def _error_without_profile(self, end: End, plan: _Plan) -> ProfileError:
        reason = f"ncu ended with exit code {end.returncode} and without a profile"
        return (
            diagnosis.cut_off(end, plan.estimate.limit_s, "before a kernel was profiled")
            or diagnosis.explain(end.output, self._facts)
            or ProfileError(ProfileStatus.FAILED, reason, hint=diagnosis.LOOK)
        )

    # --- results

    def _describe(self, counted: _Counted, fitting: diagnosis.Fitting, plan: _Plan, done: _Run) -> dict[str, Any]:
        labelled = summary.label(done.launches)
        complete = labelled.complete(finished=done.finished) if labelled else None
        problem = self._problem(plan, done, complete)
        return {
            "status": problem.status if problem else ProfileStatus.COMPLETED,
            "reason": str(problem) if problem else None,
            "hint": problem.hint if problem else None,
            "kind": Profile.NCU,
            "steps": self._spec.profile_steps,
            "warmup_steps": done.warmup_steps,
            "skipped_steps": done.skipped_steps,
            "device": counted.device,
            "compute_capability": counted.compute_capability,
            "torch": counted.torch,
            "ncu": {"version": fitting.version, "path": str(fitting.ncu.path)},
            "metrics": list(plan.metrics.names),
            "own_metrics": list(plan.metrics.own) or None,
            "missing": [*plan.metrics.missing, *plan.metrics.own_missing],
            "passes": summary.passes(done.launches),
            "kernels_profiled": len(done.launches),
            "notes": [*plan.metrics.notes(), *done.notes],
            "elapsed_s": done.end.elapsed_s,
            **(self._figures(counted, complete) if complete and complete.steps else {"steps_profiled": 0}),
        }

    def _problem(self, plan: _Plan, done: _Run, complete: summary.Labelled | None) -> ProfileError | None:
        number = f"after {len(done.launches)} kernels"
        explained = diagnosis.explain(done.end.output, self._facts)
        if cut_off := diagnosis.cut_off(done.end, plan.estimate.limit_s, number):
            return cut_off
        if explained:
            return ProfileError(ProfileStatus.PARTIAL, f"{explained}; {number}", hint=explained.hint)
        if complete is None:
            reason = "the table has no ranges: kernels of the steps and of the calibration cannot be distinguished"
        elif len(complete.steps) < self._spec.profile_steps or not done.end.ok:
            reason = f"ncu ended with exit code {done.end.returncode} {number}"
        elif done.skipped_steps:
            return self._skipped(done)
        else:
            return None
        return ProfileError(ProfileStatus.PARTIAL, reason, hint=diagnosis.LOOK)

    def _skipped(self, done: _Run) -> ProfileError:
        what = self._application.skipped(done.skipped_steps, self._spec.profile_steps)
        reason = f"{what} in each of {RETAKES + 1} attempts"
        if self._application.is_script:
            return ProfileError(ProfileStatus.PARTIAL, reason, hint="--profile-steps 1")
        hint = "--precision bf16, which needs no scaling of gradients"
        return ProfileError(ProfileStatus.PARTIAL, f"{reason}: no optimizer kernels", hint=hint)

    def _figures(self, counted: _Counted, complete: summary.Labelled) -> dict[str, Any]:
        figures = summary.per_step(complete)
        backward = summary.backward(complete)
        complexity = self._record.complexity
        model_flop = complexity.train_flop_per_step if complexity else None
        model = summary.model_flop(figures, model_flop, has_backward=bool(backward["present"]))
        calibration = summary.calibrations(complete, counted.calibration_flop)
        return figures | {
            "checks": {
                "calibration": calibration,
                "flop_verified": all(each["verified"] for each in calibration.values()),
                "backward": backward,
                "model_flop": model,
                "kernels_outside_steps": len(complete.outside),
            }
        }

    # --- further runs

    def _step_bytes(self, counted: _Counted, fitting: diagnosis.Fitting) -> dict[str, Any]:
        chosen = metrics.choose_step(fitting.metrics)
        plan = _Plan(
            name="step",
            table="step",
            mode=Mode.STEPS,
            metrics=chosen,
            replay=Replay.RANGE,
            estimate=command.estimate_range(chosen.passes, counted.start_s),
            total=chosen.passes,
            warmup_steps=counted.warmup_steps,
        )
        done = self._complete_run(fitting, plan)
        return _settings(plan, done) | summary.step_bytes(done.launches, self._spec.profile_steps)

    def _throughput(self, counted: _Counted, fitting: diagnosis.Fitting) -> dict[str, Any]:
        chosen = metrics.choose_throughput(counted.compute_capability, fitting.metrics)
        plan = self._kernel_plan("throughput", counted, chosen, table="throughput", calibrated=False)
        done = self._complete_run(fitting, plan)
        labelled = summary.label(done.launches)
        if labelled is None:
            raise ProfileError(ProfileStatus.FAILED, "the table has no ranges", hint=diagnosis.LOOK)
        return _settings(plan, done) | summary.throughput(labelled)

    def _complete_run(self, fitting: diagnosis.Fitting, plan: _Plan) -> _Run:
        """Run a plan and return its result.

        Raises `ProfileError` if the run is incomplete, because partial results of an optional run are not used.
        """
        LOGGER.info("profile    %s: about %s", plan.name, duration(plan.estimate.expected_s))
        done = self._under_ncu(fitting, plan)
        if not done.launches or not done.end.ok or not done.finished:
            raise self._error_without_profile(done.end, plan)
        if done.skipped_steps:
            raise self._skipped(done)
        return done

    def _files(self) -> list[str]:
        for leftover in self._folder.glob("*.json*"):
            leftover.unlink()
        return sorted(f"{FOLDER}/{path.name}" for path in self._folder.iterdir())


def _result_or_error(name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Result of an optional run; if the run fails, log its error and return a record of the error."""
    try:
        return {"status": ProfileStatus.COMPLETED, "reason": None, "hint": None} | work()
    except ProfileError as error:
        failed = error
    except InterruptedRunError as error:
        failed = ProfileError(ProfileStatus.INTERRUPTED, str(error), hint=diagnosis.AGAIN)
    except (RooflaunchError, OSError, subprocess.SubprocessError) as error:
        failed = ProfileError(ProfileStatus.FAILED, str(error), hint=diagnosis.LOOK)
    LOGGER.warning("note       %s: %s: %s", name, failed.status, failed)
    return encode(failed.recorded())


class _NcuProgress(Progress):
    """Progress in kernels, or in passes over the step, read from ncu's output by another thread."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__("profile", plan.total or command.UNKNOWN_KERNELS, images_per_step=1)
        self._pattern = PROGRESS_LINES[plan.replay]
        self._unit = "kernels" if plan.replay is Replay.KERNEL else "passes"
        self.done = 0

    def on_line(self, line: str) -> None:
        """Count the kernels or passes that the line reports."""
        self.done += len(self._pattern.findall(line))

    def on_tick(self) -> None:
        """Show the progress."""
        self.update(self.done)

    def _counts(self, done: int) -> str:
        elapsed_s = time.perf_counter() - self._started_s
        each = f", {elapsed_s / done:.2g} s each" if done else ""
        remaining_s = elapsed_s * (self._total - done) / done if done else 0.0
        remaining = f", {duration(remaining_s)} left" if remaining_s > 0 else ""
        return f"{done}/{self._total} {self._unit}{each}{remaining}"


def _settings(plan: _Plan, done: _Run) -> dict[str, Any]:
    return {
        "metrics": list(plan.metrics.names),
        "missing": list(plan.metrics.missing),
        "elapsed_s": done.end.elapsed_s,
    }


def _answer(report: Path) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return answer
