"""Runs on this machine: a plan made first, then the trainer in a child process."""

import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload import bundle
from workload.bundle import Bundle
from workload.errors import BundleError, ExitCode, ToolError, UsageError
from workload.interrupt import killed_error, run_child
from workload.spec import Context, Device, Resolved, RunSpec, arguments

RUNTIMES = ("auto", "process", "docker")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that `launch local` is about to do."""

    spec: RunSpec
    origin: Mapping[str, str]
    runtime: str
    output: Path
    command: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--dry-run --format json`."""
        return {
            "spec": self.spec.to_json(),
            "spec_origin": dict(self.origin),
            "runtime": self.runtime,
            "output": str(self.output),
            "command": list(self.command),
        }

    def text(self) -> str:
        """The plan as lines, the child's command quoted for a shell."""
        device = "the best device found" if self.spec.device is Device.AUTO else self.spec.device
        batch = "the device's default batch" if self.spec.batch_size is None else f"batch {self.spec.batch_size}"
        times = "one run" if self.spec.repeats == 1 else f"{self.spec.repeats} runs, a process each"
        lines = {
            "plan": f"{self.spec.model}, {batch}, {self.spec.precision}, on {device}; {times}",
            "set by": ", ".join(f"{name}: {source}" for name, source in self.origin.items()) or "all defaults",
            "runtime": self.runtime,
            "bundles": f"{self.output}/",
            "command": shlex.join(self.command),
        }
        return "\n".join(f"{name:<10} {text}" for name, text in lines.items())


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a plan: the trainer's exit code, and the sealed bundles."""

    exit_code: int
    bundles: tuple[Bundle, ...]

    def to_json(self) -> dict[str, Any]:
        """The run.json of every bundle, with its folder as `path`."""
        runs = [{"path": str(found.path), **found.record} for found in self.bundles]
        return {"exit_code": self.exit_code, "runs": runs}


def make_plan(resolved: Resolved, *, runtime: str, output: Path) -> Plan:
    """The plan of `launch local`; touches nothing."""
    if runtime not in RUNTIMES:
        raise UsageError(f"runtime must be one of {', '.join(RUNTIMES)}; got '{runtime}'", hint="--runtime process")
    if runtime == "docker":
        raise ToolError(
            "runtime docker comes with the container image, which is not built yet", hint="--runtime process"
        )
    context = Context(spec_origin=dict(resolved.origin))
    trainer = (sys.executable, "-m", "workload", "train", *arguments(resolved.spec))
    return Plan(
        spec=resolved.spec,
        origin=resolved.origin,
        runtime="process",
        output=output,
        command=(*trainer, "-o", str(output), "--context", context.to_argument()),
    )


def run(plan: Plan) -> Outcome:
    """Run the trainer to its end. It prints its own progress and errors to our stderr, a bundle a line to us."""
    folders: list[Path] = []
    code = run_child(plan.command, on_line=lambda line: folders.append(Path(line)))
    if code < 0:
        raise killed_error(-code)
    if code == ExitCode.DONE:
        return Outcome(exit_code=code, bundles=tuple(bundle.read(folder) for folder in folders))
    return Outcome(exit_code=code, bundles=tuple(_sealed(folders)))


def _sealed(folders: list[Path]) -> list[Bundle]:
    """The complete bundles; of an incomplete one the trainer has told."""
    found = []
    for folder in folders:
        with suppress(BundleError):
            found.append(bundle.read(folder))
    return found
