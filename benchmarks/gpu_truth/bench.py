"""Test bench for the parts of the collector: the machine's facts, and children with a time limit.

The collector itself holds no GPU: everything that needs torch is a child, which may run out of memory, hang or crash.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workload.contract.errors import InterruptedRunError
from workload.profile import command
from workload.profile.command import End

TRAINER = (sys.executable, "-m", "workload")
PROBER = (sys.executable, "-m", "benchmarks.gpu_truth.probes")
# The end of a child's output tells why it failed.
TAIL_CHARACTERS = 2000


class PartFailedError(Exception):
    """A part failed; the text is the reason, and `output` the end of its child's output."""

    def __init__(self, why: str, output: str = "") -> None:
        super().__init__(why)
        self.output = output


class OutOfTimeError(Exception):
    """The time of this call of the collector ended before the part's own time limit."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Machine and time limit.

    `scratch` is emptied after every part. `facts`: answer of the probe `device`, on torch and GPU. `end_s`: end of this
    call of the collector, on `time.monotonic`.
    """

    scratch: Path
    facts: Mapping[str, Any] = field(default_factory=dict)
    ncus: tuple[Path, ...] = ()
    end_s: float = float("inf")
    quick: bool = False
    trainer: Sequence[str] = TRAINER
    prober: Sequence[str] = PROBER
    now_s: Callable[[], float] = field(default=time.monotonic)

    @property
    def gpu(self) -> Mapping[str, Any] | None:
        """Name, compute capability and memory of the GPU; None if torch cannot compute on one."""
        return self.facts.get("gpu")

    @property
    def capability(self) -> str | None:
        return self.gpu["capability"] if self.gpu else None

    @property
    def device(self) -> str:
        return "cuda" if self.gpu else "cpu"

    def run(self, words: Sequence[str], *, limit_s: float, environment: Mapping[str, str] | None = None) -> End:
        """Run a child until it ends or reaches `limit_s`. Raises `OutOfTimeError` if this call's time ends first."""
        left_s = self.end_s - self.now_s()
        if left_s <= 0:
            raise OutOfTimeError
        try:
            end = command.run(
                words,
                log=self.scratch / "log.txt",
                limit_s=min(limit_s, left_s),
                # A profile waits for its own child, ncu, before it ends itself.
                grace_s=2 * command.GRACE_S,
                environment=environment,
            )
        except OSError as error:
            raise PartFailedError(f"{words[0]} cannot be started: {error}") from error
        if end.interrupted:
            raise InterruptedRunError("interrupted", hint="the same command continues where it stopped")
        if end.timed_out and left_s < limit_s:
            raise OutOfTimeError
        return end

    def probe(self, name: str, *words: str, limit_s: float) -> dict[str, Any]:
        """Answer of a probe, see `probes`."""
        answer = self.scratch / f"{name}.json"
        return self.answer(answer, self.run([*self.prober, name, str(answer), *words], limit_s=limit_s))

    def answer(self, path: Path, end: End) -> dict[str, Any]:
        """Answer that a child wrote to `path`. Raises `PartFailedError` if there is none."""
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            why = "its time limit ended it" if end.timed_out else f"it ended with exit code {end.returncode}"
            last = (end.output.strip().splitlines() or ["it printed nothing"])[-1]
            raise PartFailedError(f"{path.stem}: {why}: {last}", last_lines(end.output)) from error
        return content

    def train(
        self, *words: str, limit_s: float, output: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Run the trainer; return its command, end, last output, and its record without the environment.

        `output`: folder for its bundle, by default in the scratch folder.
        """
        folder = output or self.scratch / f"run-{self.now_s():.3f}"
        command = ["train", *words, "-o", str(folder)]
        end = self.run([*self.trainer, *command], limit_s=limit_s, environment=environment)
        return {
            "words": list(words),
            "exit_code": end.returncode,
            "timed_out": end.timed_out,
            "elapsed_s": end.elapsed_s,
            "said": last_lines(end.output),
            "record": _record(folder),
        }


def last_lines(output: str) -> str:
    """End of a child's output."""
    return output.strip()[-TAIL_CHARACTERS:]


def _record(folder: Path) -> dict[str, Any] | None:
    """Run.json of the only bundle in `folder`, without the sections that are equal for all; None if absent."""
    records = sorted(folder.glob("*/run.json"))
    if len(records) != 1:
        return None
    try:
        record = json.loads(records[0].read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return {name: value for name, value in record.items() if name not in ("environment", "spec_origin")}
