"""Record of a run: first its known facts, then figures as they become known; at last the bundle is sealed.

Standard library only.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from workload.contract import bundle, verdict
from workload.contract.context import Context
from workload.contract.environment_record import Environment
from workload.contract.fields import from_facts
from workload.contract.forks import this_start
from workload.contract.record import ComplexityRecord, JobPlace, Memory, Record, Repeat, Spec, Status, Timing
from workload.contract.spec import Profile
from workload.measure import timing
from workload.measure.timing import Timeline
from workload.profile.status import before_the_pass


def first_record(
    run_id: str,
    context: Context,
    *,
    place: str,
    spec: Spec,
    spec_origin: Mapping[str, str] | None,
    facts: Mapping[str, Any],
    started_at: str,
    complexity: ComplexityRecord | None = None,
    notes: Sequence[str] = (),
) -> Record:
    """Record of a run that begins. `facts`: sections of the environment that `context` does not have."""
    where = {
        "place": place,
        "backend": context.backend,
        "runtime": context.runtime,
        "runtime_reason": context.runtime_reason,
        "start": this_start(),
    }
    return Record(
        run_id=run_id,
        status=Status.RUNNING,
        repeat=Repeat(index=context.repeat, of=context.repeats),
        job=None if context.job is None else JobPlace(**context.job),
        run_key=context.run_key or None,
        spec=spec,
        spec_origin=spec_origin,
        environment=from_facts(Environment, {**where, **facts}),
        timing=Timing(started_at=started_at),
        complexity=complexity,
        memory=Memory(),
        profile=before_the_pass(Profile(spec.profile or Profile.NONE), context),
        notes=list(notes),
    )


class RunRecord:
    """Record in an open bundle; `record` is replaced whenever more is known, and written at the end."""

    def __init__(self, folder: Path, first: Record, timeline: Timeline) -> None:
        self.folder, self.record, self._timeline = folder, first, timeline
        bundle.write_record(folder, first)

    def set(self, **sections: Any) -> None:
        """Replace sections of the record."""
        self.record = replace(self.record, **sections)

    def set_timing(self, **figures: Any) -> None:
        """Replace figures of the record's timing."""
        self.set(timing=replace(self.record.timing, **figures))

    def set_process(self, memory: Callable[[], Memory]) -> None:
        """Record the resources that the process used, and its memory, unless the memory was read before."""
        # A device that has failed cannot report its memory.
        with suppress(RuntimeError):
            if self.record.memory == Memory():
                self.set(memory=memory())
        began_s = self._timeline.started_s
        self.set(usage=timing.process_usage(began_s, began_s + self._timeline.elapsed_s()))

    def judge(self) -> None:
        """Record the step time at the roof, and what limited the run."""
        roof, complexity = verdict.compute_roof_per_s(self.record), self.record.complexity
        if roof and complexity and complexity.train_flop_per_step:
            theoretical_s = complexity.train_flop_per_step / roof
            self.set(complexity=replace(complexity, theoretical_step_s=theoretical_s))
        self.set(bound=verdict.from_record(self.record))

    def seal(self) -> None:
        """Write the last record and seal the bundle."""
        self.write()
        bundle.seal(self.folder)

    def write(self) -> None:
        """Write the record; the bundle stays open."""
        bundle.write_record(self.folder, self.record)
