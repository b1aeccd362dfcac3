"""Options that `launch gcp` and `launch aws` share, and where a cloud's settings come from.

A setting is an option, a variable, or a key of the cloud's table in rooflaunch.toml, in this order. Imports little,
because `launch --help` loads this module.
"""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.backends import BACKENDS
from launcher.values import choice, limit_s, shown
from workload.contract.errors import UsageError
from workload.contract.spec import CONFIG_NAME, Origin
from workload.contract.text import did_you_mean

DEFAULT_LIMIT_S = 3600
# Room for the machine's image, the container image (PyTorch with CUDA: 6 GB, 12 GB while it is unpacked), a data set.
DEFAULT_DISK_GB = 100


@dataclass(frozen=True, kw_only=True)
class Completions:
    """Words that complete an unfinished command line of a cloud. `gpus`: name of the module with the cloud's GPUs."""

    gpus: str

    def gpu_names(self) -> list[str]:
        """Names of all GPUs that a VM can have."""
        return list(importlib.import_module(self.gpus).load())

    def zone_names(self, ctx: Any) -> list[str]:
        """Zones with the GPU that the command line names; without a valid GPU, the zones of all GPUs."""
        known = importlib.import_module(self.gpus).load()
        row = known.get(str(ctx.params.get("gpu")))
        return sorted({zone for gpu in ([row] if row else known.values()) for zone in gpu.zones})


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Options of a rented machine, besides those of the run. `zones`: those named by the user, in order."""

    gpu: str = choice("the GPU of the VM")
    zones: tuple[str, ...] = choice("try this zone first; repeatable", default=(), flag="--zone", metavar="Z")
    spot: bool = choice("cheaper, but may be taken away at any time", default=False)
    rerun_preempted: int = choice(
        "start again if the spot VM is taken away, at most N times", default=0, metavar="N", min=0, max=20
    )
    machine_type: str | None = choice("machine type instead of the GPU's usual one", default=None, metavar="M")
    gpu_count: int = choice("least number of GPUs of the VM (as many as --devices)", default=1, metavar="N", min=1)
    max_run_time_s: int = choice(
        "delete the VM after this time; --max-time limits a sweep",
        default=DEFAULT_LIMIT_S,
        flag="--max-run-time",
        metavar="TIME",
        parse=limit_s,
        typed_default="60m",
    )
    max_cost_usd: float | None = choice(
        "cost limit of the launch: its time limit is lowered to keep it", default=None, flag="--max-cost", metavar="USD"
    )
    usd_per_h: float | None = choice("your own price per hour of VM, disk and address", default=None, metavar="USD")
    disk_gb: int = choice("size of the VM's disk", default=DEFAULT_DISK_GB, metavar="GB")
    external_ip: bool = choice("a public address; without it the network needs Cloud NAT", default=True)
    image: str | None = choice(
        "run this image, by digest, instead of the one for this code", default=None, metavar="REF"
    )


@dataclass(frozen=True, kw_only=True)
class RentedOptions(MachineOptions):
    """Options of a machine that the launcher asks for in zone after zone; a cloud's own options follow."""

    fallback: bool = choice("try other zones too if the named ones have no free GPU", default=True)


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of a single launch on a rented GPU, which a sweep has not: there, a run out of memory is a result."""

    anyway: bool = choice("rent the GPU even if a training step certainly does not fit its memory", default=False)


@dataclass(frozen=True, kw_only=True)
class SettingSources:
    """Sources of the settings of one cloud. `table`: its table in rooflaunch.toml; `prefix`: start of its variables.

    `rules`: for each setting a pattern of its values, the pattern in words, and an example. `address`: scheme of a
    bucket's address, which a user may type with the bucket's name.
    """

    table: str
    prefix: str
    rules: Mapping[str, tuple[str, str, str]]
    address: str

    def given(
        self, options: Mapping[str, str | None], environment: Mapping[str, str], config_folder: Path | None
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Checked values that some source has, and the origin of each.

        Raises `UsageError` for a value that breaks its rule, and for an unknown key of the table.
        """
        table = _from_config(config_folder / CONFIG_NAME, self.table, self.rules) if config_folder else {}
        values, origins = dict[str, str](), dict[str, str]()
        for name in self.rules:
            if strongest := self._first(name, options, environment, table):
                origins[name], values[name] = strongest
        return values, origins

    def _first(
        self, name: str, options: Mapping[str, str | None], environment: Mapping[str, str], table: Mapping[str, object]
    ) -> tuple[Origin, str] | None:
        """First source that has the setting, and the checked value; None if no source has it."""
        variable = self.prefix + name.upper()
        example = self.rules[name][2]
        sources: list[tuple[Origin, object, str, str]] = [
            (Origin.OPTION, options.get(name), "", f"--{name.replace('_', '-')} {example}"),
            (Origin.ENVIRONMENT, environment.get(variable), f"{variable}: ", f"export {variable}={example}"),
            (Origin.CONFIG, table.get(name), f"{CONFIG_NAME}, [{self.table}]: ", f'{name} = "{example}"'),
        ]
        for origin, value, where, hint in sources:
            if value is not None:
                return origin, self.checked(name, value, where=where, hint=hint)
        return None

    def checked(self, name: str, value: object, *, where: str, hint: str) -> str:
        """The value as text. Raises `UsageError` if the value breaks its rule; `where` names its source."""
        pattern, rule, _ = self.rules[name]
        text = value if isinstance(value, str) else ""
        if name == "bucket":
            text = text.removeprefix(self.address).removesuffix("/")
        if not re.fullmatch(pattern, text):
            label = name.replace("_", " ")
            raise UsageError(f"{where}{label} must be {rule}; got '{shown(str(value))}'", hint=hint)
        return text


def _from_config(path: Path, name: str, known: Mapping[str, tuple[str, str, str]]) -> Mapping[str, object]:
    """Table `name` of a TOML file; {} if absent. Other parts of the file are read by `workload.contract.spec`."""
    import tomllib  # noqa: PLC0415 - milliseconds that a help text has no use for

    first, example = next((key, rule[2]) for key, rule in known.items())
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not a readable TOML file: {error}", hint=f'a line [{name}], and below it {first} = "{example}"'
        ) from error
    for key, value in tables.items():
        if isinstance(value, dict) and key not in BACKENDS:
            raise UsageError(f"{path}: unknown table [{shown(key)}]", hint=f"a table for each of {', '.join(BACKENDS)}")
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {name} must be a table; got '{shown(str(table))}'", hint=f"[{name}]")
    for key in table:
        if key not in known:
            raise UsageError(
                f"{path}: unknown key '{shown(key)}' in [{name}]",
                hint=f"the keys are {', '.join(known)}{did_you_mean(key, tuple(known), before='; ')}",
            )
    return table
