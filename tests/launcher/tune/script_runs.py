"""Runs of a script without processes: records, and a machine whose speed depends on the changes of a run."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.duel import contest
from launcher.duel.contest import Measured, Side
from workload.contract import bundle
from workload.contract.bundle import STEP_COLUMNS, STEPS
from workload.contract.errors import RunFailedError
from workload.contract.record import (
    CeilingsRecord,
    ComplexityRecord,
    JobPlace,
    MeasuredRate,
    Record,
    ScriptFacts,
    Spec,
    Status,
    StepSeconds,
    Timing,
)
from workload.contract.record_sections import Constructor, DeviceFacts, Environment, HostFacts
from workload.contract.script_words import redacted

LOSSES = tuple(value.hex() for value in (2.5, 2.25, 2.0))
LOADER = Constructor(name="DataLoader", line="train.py:2", is_in_step=True, num_workers=0)
ADAM = Constructor(name="Adam", line="train.py:3", is_in_step=True, foreach=False, fused=False)
SPEC: Mapping[str, Any] = {
    "model": "train.py", "device": "cpu", "batch_size": 32, "precision": "fp32", "grad_accumulation": 1,
}  # fmt: skip
SOURCE = "import torch\nd = DataLoader(data)\no = Adam(p, foreach=False)\n"


def a_run(
    *,
    step_s: float = 0.06,
    data_s: float = 0.04,
    steps: int = 20,
    samples: float = 32,
    flop: float = 2e9,
    script: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Record:
    """A run on two CPUs, whose steps take 60 ms, after 40 ms of waits for data; the ceiling allows 20 ms a step."""
    facts: dict[str, Any] = {"unit": "samples", "losses": LOSSES, "constructors": (LOADER, ADAM), "argv": ("train.py",)}
    seconds = steps * (step_s + data_s)
    return Record(
        run_id="a",
        status=Status.COMPLETED,
        spec=Spec(**{**SPEC, **spec}, script=ScriptFacts(**{**facts, **(script or {})})),
        environment=Environment(
            host=HostFacts(cpus_allowed=2, physical_cores=1, cpu_flags=("avx2",), transparent_hugepages="always"),
            device=DeviceFacts(type="cpu", threads=2),
        ),
        timing=Timing(
            measured_s=seconds,
            images=steps * samples,
            images_per_s=steps * samples / seconds,
            step_s=StepSeconds(n=steps, median=step_s),
            data_wait_fraction=data_s / (step_s + data_s),
            cpus_used=2.0,
            cpus_in_kernel=0.1,
            page_faults_per_s=100_000,
        ),
        complexity=ComplexityRecord(
            train_flop_per_step=flop, flop_by_precision={"fp32": flop}, flop_by_op={"aten::mm": flop}
        ),
        ceilings=CeilingsRecord(
            flop_per_s={"fp32": MeasuredRate(median=1e11), "bf16": MeasuredRate(median=2e11)},
            bytes_per_s={"copy": MeasuredRate(median=1e10)},
        ),
    )


def rows(run: Record, *, optimizer_s: float = 0.01) -> list[dict[str, str]]:
    """Rows of steps.csv."""
    timing, step = run.timing, run.timing.step_s
    assert step is not None
    assert step.n is not None
    assert step.median is not None
    assert timing.images is not None
    share = timing.data_wait_fraction or 0.0
    data_s = step.median * share / (1 - share)
    values = (step.median, data_s, 0.02, 0.03, optimizer_s, int(timing.images / step.n))
    texts = [str(value) for value in values]
    return [
        dict(zip(STEP_COLUMNS, [str(number), "measured", "1.0", *texts, ""], strict=True))
        for number in range(int(step.n))
    ]


def write(folder: Path, run: Record) -> Path:
    """Write a complete bundle; return its folder."""
    folder.mkdir(parents=True)
    lines = [",".join(STEP_COLUMNS), *(",".join(row.values()) for row in rows(run))]
    (folder / STEPS).write_text("\n".join(lines) + "\n")
    bundle.write_record(folder, replace(run, run_id=folder.name))
    bundle.seal(folder)
    return folder


@dataclass
class Machine:
    """Stands for `contest.run_segment`. `speed`: factor of a run's times by a part of its change or its arguments.

    `alter`: changes the record of a run by a part of its change; `fails`: error by a part of its change.
    """

    output: Path
    speed: Mapping[str, float] = field(default_factory=dict)
    alter: Mapping[str, Callable[[Record], Record]] = field(default_factory=dict)
    fails: Mapping[str, str] = field(default_factory=dict)
    files: Callable[[], Mapping[str, str]] = dict
    noise: float = 0.002
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    runs: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[int], None] = lambda _: None

    def run_segment(self, side: Side, *, name: str, position: int, left_s: float, tell: Any, also: Any) -> Measured:
        """Write a bundle as a run would."""
        del left_s, tell, also
        spec = side.plan.spec
        words = f"{spec.change or ''} {' '.join(spec.script)}"
        self.before(len(self.runs))
        self.runs.append((name, side.variant))
        if why := next((text for part, text in self.fails.items() if part in words), ""):
            raise RunFailedError(f"run {position + 1}, of {side.variant}: {why}", hint="")
        factor = self.rng.gauss(1, self.noise)
        for part, speed in self.speed.items():
            factor *= speed if part in words else 1.0
        argv = redacted(spec.script)
        facts = {"argv": argv, "command": " ".join(argv), "files": self.files()}
        run = a_run(step_s=0.06 * factor, data_s=0.04 * factor, change=spec.change, script=facts)
        for part, alter in self.alter.items():
            run = alter(run) if part in words else run
        run = replace(run, job=JobPlace(name=name, variant=side.variant))
        folder = write(self.output / f"run-{len(self.runs):04}", run)
        return contest.measured_of(bundle.read(folder), side.variant, position)


def changed(**facts: Any) -> Callable[[Record], Record]:
    """Alteration of a run's facts on its script."""

    def alter(run: Record) -> Record:
        assert run.spec.script is not None
        return replace(run, spec=replace(run.spec, script=replace(run.spec.script, **facts)))

    return alter


def texts(values: Sequence[float]) -> tuple[str, ...]:
    """Losses as run.json has them."""
    return tuple(value.hex() for value in values)
