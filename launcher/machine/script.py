"""Somebody's own script on this machine: the command that measures it, and what it finds where it runs."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workload.contract.errors import UsageError
from workload.contract.script import DATA, without_secrets
from workload.contract.spec import Context, Device, RunSpec, arguments

# No module of a user's has this name. With -P Python does not look into the working folder, as with `python train.py`.
TRAINER = ("-P", "-m", "rooflaunch")
# What --cpu means to a script, which chooses its device itself.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where a script runs: in `folder`, as its own working folder. `data` is what `{data}` in its arguments stands for.

    `commit`: of the user's folder, where this is a copy of it. `variables`: those of the user's that it gets, where it
    has not the user's own.
    """

    folder: Path
    data: str = ""
    commit: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def require(self, words: Sequence[str]) -> None:
        """`UsageError` for arguments that ask for data which nobody named."""
        if any(DATA in word for word in words) and not self.data:
            raise UsageError(
                f"{DATA} in the script's arguments stands for its data, and there is no --data", hint="--data PATH"
            )


def command(spec: RunSpec, workplace: Workplace, *, output: Path, context: Context) -> tuple[str, ...]:
    """Arguments for `python -m rooflaunch`."""
    data = ("--data", workplace.data) if workplace.data else ()
    ours = ("script", *arguments(spec), *data, "-o", str(output), "--context", context.to_argument())
    return (*ours, "--", *spec.script)


def profile_command(spec: RunSpec, workplace: Workplace) -> tuple[str, ...]:
    """Arguments for `python -m rooflaunch profile BUNDLE`.

    The bundle has no secrets and no data folder, so they are given here.
    """
    return (*(("--data", workplace.data) if workplace.data else ()), "--", *spec.script)


def variables(spec: RunSpec) -> dict[str, str]:
    """What the script finds set beside its user's own."""
    return dict(NO_GPU) if spec.device is Device.CPU else {}


def as_process(words: Sequence[str]) -> tuple[str, ...]:
    """The command as a process of this Python."""
    return (sys.executable, *TRAINER, *words)


def shown(words: Sequence[str]) -> list[str]:
    """A command as it may be printed: the script's arguments, which stand behind the first --, without secrets."""
    at = list(words).index("--") + 1 if "--" in words else len(words)
    return [*words[:at], *without_secrets(words[at:])]
