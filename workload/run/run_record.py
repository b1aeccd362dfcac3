"""Record of a run while it lasts: figures are added as they become known, then the bundle is sealed."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from workload.contract import bundle, verdict
from workload.contract.record import Memory, Record
from workload.measure import timing
from workload.measure.timing import Timeline


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
