"""What a step of the script is: its rule and what throughput counts of it; and how many are asked for."""

from dataclasses import dataclass
from typing import NamedTuple

from workload.contract.spec import GPU_MIN_SECONDS, Device
from workload.script.batches import Batch, Unit
from workload.script.pattern import Pattern


class Fetch(NamedTuple):
    """A batch that came within the step; `parts`: how many parts the step had before it was asked for."""

    batch: Batch
    parts: int


@dataclass(kw_only=True)
class Loader:
    """A DataLoader of the script: where it is asked for batches, and how it was made."""

    where: str
    workers: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """What was found out of a step: the rule, what throughput counts of it, and the sentence that says so."""

    pattern: Pattern | None
    unit: Unit
    samples: int
    batches: int
    text: str
    optimizers: tuple[str, ...]
    parameters: int
    workers: int | None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many steps are asked for; None: as usual on the device. `min_seconds`: of measured steps, at least."""

    warmup: int | None
    iterations: int | None
    samples_per_step: int | None
    min_seconds: float | None = None

    def filled(self, device: Device) -> tuple[int, int, float]:
        """Warm-up steps, measured steps, and the least seconds of these."""
        on_cpu = device is Device.CPU
        warmup = (3 if on_cpu else 10) if self.warmup is None else self.warmup
        iterations = (20 if on_cpu else 100) if self.iterations is None else self.iterations
        least_s = (0.0 if on_cpu else GPU_MIN_SECONDS) if self.min_seconds is None else self.min_seconds
        return warmup, iterations, least_s
