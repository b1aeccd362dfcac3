"""Parts that every rank of a measured script has: its request, its session, its timed steps and their files."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from workload.contract.context import Context
from workload.contract.ranks import own_folder
from workload.contract.record import Status
from workload.contract.spec import Device, RunSpec
from workload.measure.clock import clock_for
from workload.measure.collectives import Collectives
from workload.measure.timing import Timeline
from workload.run.region import Region
from workload.steps.agreement import Agreement
from workload.steps.program import Program
from workload.steps.rank_session import RankSession
from workload.steps.session import Session
from workload.steps.step import Limits, Phase, Step
from workload.steps.step_log import StepLog
from workload.steps.step_work import Work

# Suffix of the files of the longest phase so far, while a later phase is measured.
LONGEST = ".longest"


@dataclass(frozen=True, kw_only=True)
class Request:
    """Settings of a measurement, from the command line.

    `goes_on`: the script runs on after its last measured step. `agreement`: with the other ranks; None for
    one device. `announce` receives the bundle's folder. `is_launched`: a launcher has started the run, and
    prints the results. `leaves_failures`: the process that started the ranks seals the bundle of a run that fails.
    """

    spec: RunSpec
    program: Program
    context: Context
    output: Path
    goes_on: bool
    agreement: Agreement | None = None
    announce: Callable[[Path], None]
    is_launched: bool = False
    leaves_failures: bool = False


class MeasuredScript(ABC):
    """A script under measurement in this process."""

    def __init__(self, request: Request, timeline: Timeline) -> None:
        self.folder: Path | None = None
        self.is_sealed = False
        self._request, self._timeline, self._agreement = request, timeline, request.agreement
        self._region: Region | None = None
        self._phase: Phase | None = None
        self._stack = ExitStack()
        spec, program, goes_on = request.spec, request.program, request.goes_on
        self._limits = limits = Limits(
            warmup=spec.warmup,
            iterations=spec.iterations,
            samples_per_step=spec.samples_per_step,
            min_seconds=spec.min_seconds,
        )
        self.session = (
            RankSession(limits, program, self._open, self._complete, goes_on=goes_on, agreement=self._agreement)
            if self._agreement
            else Session(limits, program, self._open, self._complete, goes_on=goes_on)
        )
        self.step_log = StepLog(self.session)

    @property
    def leaves_failures(self) -> bool:
        """Whether the process that started the ranks reports a failure, and seals the bundle."""
        return self._request.leaves_failures

    @property
    def measured_steps(self) -> int:
        """Number of measured steps of the longest phase so far; rows of the last second may not be written yet."""
        return max(self.session.measured_steps, *(phase.taken for phase in self.session.phases), 0)

    @abstractmethod
    def _open(self, step: Step, work: Work | None, used: Device) -> Region:
        """Open the files of the timed steps that follow; the session calls this once the training step is known."""

    @abstractmethod
    def _complete(self) -> None:
        """Finish the measurement; the session calls this when every step is taken, while the script waits."""

    @abstractmethod
    def end_early(self) -> None:
        """Finish the measurement of a script that has ended before all of its steps were taken."""

    @abstractmethod
    def close(self, status: Status, error: str | None = None) -> None:
        """Close the files, if any; a script that ends early leaves its steps so far."""

    def _has_steps(self) -> bool:
        """Whether the present phase has measured steps, and the session has not dropped it."""
        measured = self._region and self._region.measured
        return bool(measured and measured.totals.step_s) and self._phase in self.session.phases

    def _leave_steps(self) -> None:
        """End the present phase of steps with its last complete step, and close its file."""
        self.step_log.flush_events(is_over=True)
        region = self._region if self.session.receiver else None
        if region:
            if region.measured is None:
                region.leave()
            region.close()
        if self._agreement:
            self._agreement.hooks.receiver = None
            self._agreement.close()

    def _collectives(self, folder: Path, used: Device) -> Collectives | None:
        """Receiver of the collectives of the steps that follow; None for one device."""
        if self._agreement is None:
            return None
        hooks = self._agreement.hooks
        own = own_folder(folder, self._agreement.rank)
        hooks.receiver = self._stack.enter_context(Collectives(own, clock_for(used), are_known=hooks.has_parallel))
        return hooks.receiver


class PhaseFiles:
    """Files with the steps of the present phase. Files of the longest earlier phase are kept under another name."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._pairs = [(path, path.with_name(path.name + LONGEST)) for path in paths]

    def keep(self) -> None:
        """Keep the files of a phase that has ended, as the longest so far."""
        for path, aside in self._pairs:
            path.replace(aside)

    def forget(self) -> None:
        """Delete the files that were kept: the present phase is longer."""
        for _, aside in self._pairs:
            aside.unlink()

    def put_back(self) -> None:
        """Replace the present phase's files by those that were kept."""
        for path, aside in self._pairs:
            aside.replace(path)
