"""A user's own script on this machine: the command that measures it, and the folder, data and variables for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workload.contract.errors import UsageError
from workload.contract.script_words import DATA, without_secrets
from workload.contract.spec import Device, RunSpec, arguments
from workload.contract.trainer import Context

# No module of a user has this name. With -P, Python does not search the working folder for modules; neither does
# `python train.py`.
TRAINER = ("-P", "-m", "rooflaunch")
# Variables by which --cpu keeps a script off the GPU; the script chooses its device itself.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where a script runs. `folder`: its working folder. `data`: value of `{data}` in its arguments.

    `commit`: commit of the user's folder, if `folder` is a copy of it. `variables`: the user's variables that the
    script gets, if it does not inherit the user's environment.
    """

    folder: Path
    data: str = ""
    commit: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def require(self, words: Sequence[str]) -> None:
        """Raise `UsageError` if the arguments ask for data and no data was named."""
        if any(DATA in word for word in words) and not self.data:
            raise UsageError(
                f"{DATA} in the script's arguments stands for its data, but --data is missing", hint="--data PATH"
            )


def command(
    spec: RunSpec, workplace: Workplace, *, output: Path, context: Context, gpu: Sequence[str] = ()
) -> tuple[str, ...]:
    """Arguments for `python -m rooflaunch`, which then measures the user's script. `gpu`: words that choose a GPU."""
    data = ("--data", workplace.data) if workplace.data else ()
    options = ("script", *arguments(spec), *gpu, *data, "-o", str(output), "--context", context.to_argument())
    return (*options, "--", *spec.script)


def profile_command(spec: RunSpec, workplace: Workplace) -> tuple[str, ...]:
    """Arguments for `python -m rooflaunch profile BUNDLE`.

    Secrets and the data folder are among the arguments, because the bundle contains neither.
    """
    return (*(("--data", workplace.data) if workplace.data else ()), "--", *spec.script)


def variables(spec: RunSpec) -> dict[str, str]:
    """Variables that the script gets in addition to the user's own."""
    return dict(NO_GPU) if spec.device is Device.CPU else {}


def shown(words: Sequence[str]) -> list[str]:
    """Command for printing, without the secrets in the script's arguments, which follow the first `--`."""
    at = list(words).index("--") + 1 if "--" in words else len(words)
    return [*words[:at], *without_secrets(words[at:])]
