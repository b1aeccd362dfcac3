"""A rank of a script beside rank 0, which writes the bundle: this rank writes only the times of its own steps."""

from contextlib import ExitStack
from pathlib import Path

from workload import log
from workload.contract import bundle
from workload.contract.interrupt import interruption_deferred
from workload.contract.ranks import COLLECTIVES_FILE, own_folder
from workload.contract.record import Status
from workload.contract.spec import Device
from workload.measure.timing import Timeline
from workload.run.measured_script import MeasuredScript, PhaseFiles, Request
from workload.run.region import Region
from workload.steps.step import Phase, Step
from workload.steps.step_work import Work


class ScriptRank(MeasuredScript):
    """A script under measurement in a rank other than rank 0."""

    def __init__(self, request: Request, timeline: Timeline) -> None:
        super().__init__(request, timeline)
        self._longest: Phase | None = None

    def _open(self, step: Step, work: Work | None, used: Device) -> Region:  # noqa: ARG002 - rank 0 records them
        assert self._agreement is not None
        if self._is_longest():
            self._longest = self._phase
            self._files().keep()
        self._stack.close()
        self._stack = ExitStack()
        self.folder = Path(self._agreement.folder)
        own = own_folder(self.folder, self._agreement.rank)
        self._stack.enter_context(log.to_file(own / bundle.LOG))
        collectives = self._collectives(self.folder, used)
        self._phase = self.session.phases[-1]
        self._region = Region(own, used, self._timeline, has_telemetry=True, collectives=collectives)
        return self._region

    def _files(self) -> PhaseFiles:
        assert self.folder is not None
        assert self._agreement is not None
        own = own_folder(self.folder, self._agreement.rank)
        return PhaseFiles([own / bundle.STEPS, own / COLLECTIVES_FILE])

    def _is_longest(self) -> bool:
        """Whether the present phase has steps, and more than each phase before it."""
        return self._phase is not None and self._has_steps() and self._phase.is_longer_than(self._longest)

    def _complete(self) -> None:
        assert self._agreement is not None
        self.close(Status.COMPLETED)
        self._agreement.meet()

    def end_early(self) -> None:
        """Close the files, and wait for the ends of the other ranks."""
        assert self._agreement is not None
        self.close(Status.COMPLETED)
        self._agreement.end()

    def close(self, status: Status, error: str | None = None) -> None:  # noqa: ARG002 - rank 0 records them
        """Close the files, which then have the steps of the longest phase."""
        if self._region is None or self.is_sealed:
            return
        with interruption_deferred():
            self._leave_steps()
            if self._longest and self._is_longest():
                self._files().forget()
            elif self._longest:
                self._files().put_back()
            self._stack.close()
            self.is_sealed = True
