"""Request for a run: `RunSpec`, its options, and the origin of each value. Standard library only.

The launcher imports this module too, so that launcher and trainer offer the same options, read the same configuration
and print the same errors. A field that depends on the device or the data set is `None` until `RunSpec.filled` sets it.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from decimal import Decimal
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

from workload.contract import changes
from workload.contract import script_words as scripts
from workload.contract.errors import UsageError
from workload.contract.invocation import Group
from workload.contract.text import did_you_mean
from workload.contract.vocabulary import parse_metrics

CONFIG_NAME = "rooflaunch.toml"
ENVIRONMENT_PREFIX = "ROOFLAUNCH_"
# Variables with our prefix that are not run options.
OTHER_VARIABLES = frozenset(
    {
        "ROOFLAUNCH_COMPUTE_ENDPOINT", "ROOFLAUNCH_BATCH_ENDPOINT",
        # Set for a task of Cloud Batch: launcher/backends/batch/plan.py
        "ROOFLAUNCH_LAUNCH", "ROOFLAUNCH_STORE", "ROOFLAUNCH_RETRIES", "ROOFLAUNCH_LIMIT_S", "ROOFLAUNCH_COMMIT",
        "ROOFLAUNCH_IMAGE_DIGEST",
        # Set for every process of a job over ssh: launcher/backends/ssh/keeper.py
        "ROOFLAUNCH_JOB",
        # launcher/backends/slurm/plan.py
        "ROOFLAUNCH_END_S",
        # Set for a rank on one of several machines: workload/run/machines.py
        "ROOFLAUNCH_STARTER",
        # Set for a job on several machines over ssh: launcher/backends/ssh/backend.py
        "ROOFLAUNCH_MACHINES",
        # launcher/backends/gcp/options.py
        "ROOFLAUNCH_PROJECT", "ROOFLAUNCH_BUCKET", "ROOFLAUNCH_REPOSITORY", "ROOFLAUNCH_SERVICE_ACCOUNT",
        "ROOFLAUNCH_NETWORK", "ROOFLAUNCH_SUBNETWORK",
        # launcher/backends/aws/options.py
        "ROOFLAUNCH_AWS_REGION", "ROOFLAUNCH_AWS_BUCKET", "ROOFLAUNCH_AWS_REPOSITORY", "ROOFLAUNCH_AWS_SUBNET",
        "ROOFLAUNCH_AWS_INSTANCE_PROFILE", "ROOFLAUNCH_AWS_SCHEDULE_ROLE", "ROOFLAUNCH_AWS_SECURITY_GROUP",
        "ROOFLAUNCH_AWS_AMI_PARAMETER",
    }
)  # fmt: skip


class Device(StrEnum):
    """Device that computes a step; `auto` is the best device found."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


# First compute capability with TF32: CUDA C++ Programming Guide, "Compute Capability 8.x".
TF32_CAPABILITY = (8, 0)


class Precision(StrEnum):
    """Number format: `fp32` has TF32 off; `amp` is fp16 autocast with a GradScaler; `bf16` is autocast without one."""

    FP32 = "fp32"
    TF32 = "tf32"
    AMP = "amp"
    BF16 = "bf16"


class Optimizer(StrEnum):
    """PyTorch's own optimizers, with their default (foreach) implementation."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class Profile(StrEnum):
    """Profiler of a second, separate pass after the timing run.

    `ncu` counts FLOP and bytes per kernel with Nsight Compute; `torch` traces kernels and operators, without privileges
    and on any device.
    """

    NONE = "none"
    NCU = "ncu"
    TORCH = "torch"


class Origin(StrEnum):
    """Source of a value that is not the default; an earlier member overrides a later one."""

    OPTION = "option"
    ENVIRONMENT = "environment"
    CONFIG = CONFIG_NAME


# Values of a switch in an environment variable.
ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
# Other names for the precisions.
SYNONYMS = {"fp16": "amp", "float16": "amp", "half": "amp", "bfloat16": "bf16", "float32": "fp32", "float": "fp32"}
SYNTHETIC, CIFAR10, IMAGENETTE = "synthetic", "cifar10", "imagenette"
CIFAR10_IMAGE_SIZE = 32
IMAGENET_IMAGE_SIZE = 224
MAX_DEFAULT_WORKERS = 8
# 100 steps of resnet18 take half a second on an H100: too short for the GPU's clock and power to settle, and for
# telemetry, which samples once a second. On a CPU 20 steps take longer than half a second, except for the smallest
# models.
GPU_MIN_SECONDS = 3.0
# Options that a run of the user's own script has too; all others control our trainer.
SCRIPT_OPTIONS = frozenset(
    {
        *("device", "warmup", "iterations", "min_seconds", "repeats", "ceilings", "fresh_ceilings", "samples_per_step"),
        *("samples", "devices", "machines", "profile", "profile_steps", "ncu_metrics", "change"),
    }
)
SCRIPT_ONLY_OPTIONS = frozenset({"samples_per_step", "change"})
# Reasons why a script refuses an option. For other options, the reason is "the script decides its NAME".
WHY_REFUSED_FOR_SCRIPT = {
    **dict.fromkeys(("profile_step_bytes", "profile_throughput"), "in a script only the kernels are counted"),
    **dict.fromkeys(
        ("dataset", "data_dir", "download", "subset"), "the script reads its own data; --data gives their place"
    ),
    "compile": "the script decides whether it compiles",
    "deterministic": "the script decides whether it is deterministic",
    "channels_last": "the script decides its memory format",
    "no_augment": "the script decides its augmentation",
    "pin_memory": "the script decides whether it pins memory",
    "persistent_workers": "the script decides whether its workers persist",
}


class DefaultSteps(NamedTuple):
    """Default numbers of steps, and least seconds of all measured steps together; names as in `RunSpec`."""

    warmup: int
    iterations: int
    min_seconds: float


def default_steps(device: Device) -> DefaultSteps:
    """Default numbers of warm-up and measured steps on a device, for our trainer and for a user's script."""
    if device is Device.CPU:
        return DefaultSteps(warmup=3, iterations=20, min_seconds=0.0)
    return DefaultSteps(warmup=10, iterations=100, min_seconds=GPU_MIN_SECONDS)


AMOUNT = re.compile(r"([0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]{1,16}(?:\.[0-9]{1,9})?(?:[eE]\+?[0-9]{1,2})?)([kKmMbB]?)")
MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
# Counts above 2**53 would not be exact in the floating-point columns of a table.
MOST_AMOUNT = 10**15


def parse_amount(value: object) -> int:
    """Amount of work from `50000`, `50,000`, `1.28M`, `1e9` or `1B`, or a number of TOML.

    Raises `UsageError` unless it is a whole number from 1 to 1e15.
    """
    match = None if isinstance(value, bool) else AMOUNT.fullmatch(str(value))
    number = Decimal(re.sub("[,_]", "", match[1])) * MULTIPLES[match[2].lower()] if match else Decimal(0)
    if not 1 <= number <= MOST_AMOUNT or number % 1:
        raise UsageError(
            f"samples must be a whole number such as 50000, 1.28M or 1B, from 1 to 1e15; got '{value}'",
            hint="--samples 50000",
        )
    return int(number)


def _option(default: Any, description: str, **more: Any) -> Any:
    """Field of `RunSpec` that is also a command-line option; `more`: fields of `Option`."""
    return field(default=default, metadata={"help": description, **more})


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Configuration of a run. Sizes are counts; `image_size` is the edge of a square image in pixels."""

    model: str = _option("resnet18", "any torchvision classifier", example="resnet50")
    device: Device = _option(Device.AUTO, "device to compute on; auto: the best device found", example="cpu")
    batch_size: int | None = _option(None, "images per forward pass (32; 16 on a CPU)", minimum=1, example="32")
    precision: Precision = _option(Precision.FP32, "fp32 has TF32 off; amp is fp16 with a GradScaler", example="fp32")
    dataset: str = _option(SYNTHETIC, "synthetic, cifar10, imagenette, or a folder of images", example="synthetic")
    data_dir: str = _option("~/.cache/rooflaunch", "folder of cifar10 and imagenette", example="~/data")
    download: bool = _option(False, "download cifar10 or imagenette if it is missing")
    subset: int | None = _option(None, "use N images of the data set, drawn with the seed", minimum=1, example="1000")
    image_size: int | None = _option(None, "width and height in pixels (224; 32 for cifar10)", minimum=1, example="224")
    warmup: int | None = _option(
        None, "warm-up steps, not counted in the results (10; 3 on a CPU)", minimum=0, example="10"
    )
    iterations: int | None = _option(
        None, "least number of measured steps (100; 20 on a CPU)", minimum=1, example="100"
    )
    min_seconds: float | None = _option(
        None, "measure for at least this number of seconds (3; 0 on a CPU)", minimum=0, example="3"
    )
    devices: int = _option(1, "GPUs, or shares of the CPUs, that train together", minimum=1, example="2")
    machines: int = _option(1, "machines that train together, each with --devices", minimum=1, example="2")
    repeats: int = _option(1, "run the configuration this many times, each in a new process", minimum=1, example="3")
    profile: Profile = _option(
        Profile.NONE, "profile after the run: ncu counts FLOP and bytes, torch traces", example="ncu"
    )
    profile_steps: int = _option(1, "number of profiled steps; the profile has their mean", minimum=1, example="4")
    profile_step_bytes: bool = _option(False, "with ncu: also the bytes of the whole step, with warm caches")
    profile_throughput: bool = _option(False, "with ncu: also SM, memory and DRAM throughput; 7 to 18 passes")
    ncu_metrics: str | None = _option(
        None,
        "with ncu: further metrics, a list or a file of names",
        example="dram__bytes.sum",
        read=parse_metrics,
    )
    channels_last: bool = _option(False, "NHWC memory format for the model and the images")
    compile: bool = _option(False, "torch.compile the model; needs a C++ compiler on a CPU")
    deterministic: bool = _option(False, "deterministic algorithms only, no cuDNN autotuning")
    no_augment: bool = _option(False, "resize and centre crop instead of random crop and flip")
    grad_accumulation: int = _option(1, "forward and backward passes per optimizer step", minimum=1, example="4")
    workers: int | None = _option(
        None, "DataLoader processes (one per CPU, at most 8; 0 if synthetic)", minimum=0, example="4"
    )
    prefetch_factor: int | None = _option(None, "batches that each worker loads ahead (2)", minimum=1, example="4")
    pin_memory: bool | None = _option(None, "load batches into pinned memory (on for CUDA)")
    persistent_workers: bool | None = _option(None, "keep the workers from one epoch to the next (on)")
    optimizer: Optimizer = _option(Optimizer.SGD, "which of PyTorch's optimizers", example="sgd")
    seed: int = _option(0, "seed of weights, data order and labels", minimum=0, example="0")
    ceilings: bool = _option(True, "measure the best rates of this machine")
    fresh_ceilings: bool = _option(False, "measure the best rates again, even if a run of the last hour did")
    samples_per_step: int | None = _option(
        None, "samples per step of a script without a DataLoader", minimum=1, example="64"
    )
    samples: int | None = _option(
        None,
        "your amount of work, for its time and cost: 50000, 1.28M or 1B (one epoch)",
        minimum=1,
        example="50000",
        read=parse_amount,
    )
    change: str | None = _option(
        None,
        "change the script from outside, as torch.compile; repeatable",
        example="DataLoader(num_workers=2)",
        read=changes.parse,
        is_repeatable=True,
    )
    # The user's own training script with its arguments, in place of our trainer. Not an option: it follows `--`.
    script: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name in a plan: `resnet18, batch 16, fp32`, or the script with its arguments."""
        devices = f", {self.devices} devices" if self.devices > 1 else ""
        if self.machines > 1:
            devices += f"{' on each of' if devices else ','} {self.machines} machines"
        if self.script:
            changed = f", with {self.change}" if self.change else ""
            return f"{scripts.command_line(self.script)}{devices}{changed}"
        batch = "the device's default batch" if self.batch_size is None else f"batch {self.batch_size}"
        return f"{self.model}, {batch}, {self.precision}{devices}"

    @property
    def where(self) -> str:
        """Device, in words for a plan."""
        if self.script and self.device is Device.CPU:
            return "the CPU (NVIDIA GPUs are hidden from the script)"
        usual = "the device that it chooses" if self.script else "the best device found"
        return usual if self.device is Device.AUTO else self.device

    @property
    def ranks(self) -> int:
        """Number of processes that train together, on all machines."""
        return self.machines * self.devices

    @property
    def images_per_step(self) -> int:
        """Images per optimizer step of a filled spec."""
        assert self.batch_size is not None
        return self.batch_size * self.grad_accumulation

    def filled(self, device: Device, *, cpus: int) -> "RunSpec":
        """Copy this spec, with values for the fields that depend on the device, the data set or the usable CPUs."""
        defaults: dict[str, Any] = {
            "batch_size": 16 if device is Device.CPU else 32,
            **default_steps(device)._asdict(),
            "image_size": CIFAR10_IMAGE_SIZE if self.dataset == CIFAR10 else IMAGENET_IMAGE_SIZE,
            "workers": 0 if self.dataset == SYNTHETIC else min(cpus, MAX_DEFAULT_WORKERS),
        }
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return replace(self, device=device, **missing)

    def checked(self) -> "RunSpec":
        """Return this spec. Raises `UsageError` if two values contradict each other."""
        for is_broken, message, hint in self._rules():
            if is_broken:
                raise UsageError(message, hint=hint)
        return self

    def _rules(self) -> Iterator[tuple[bool, str, str]]:
        """Rules on several values: whether the rule is broken, the message, and the hint."""
        without_cuda, is_synthetic = self.device in (Device.CPU, Device.MPS), self.dataset == SYNTHETIC
        yield (
            self.precision is Precision.TF32 and without_cuda,
            f"precision tf32 needs an NVIDIA GPU of compute capability 8.0 or newer; got '{self.device}'",
            "--precision fp32, or --precision bf16",
        )
        yield (
            self.download and self.dataset not in (CIFAR10, IMAGENETTE),
            f"only cifar10 and imagenette can be downloaded; the data set is '{self.dataset}'",
            "--dataset cifar10 --download",
        )
        yield (
            is_synthetic and self.subset is not None,
            f"synthetic data has no subset; got --subset {self.subset}",
            "--dataset PATH, or leave --subset out",
        )
        yield (
            self.fresh_ceilings and not self.ceilings,
            "--fresh-ceilings and --no-ceilings contradict each other",
            "leave out --fresh-ceilings or --no-ceilings",
        )
        yield (
            self.samples_per_step is not None and not self.script,
            f"--samples-per-step is only for your own script; got --samples-per-step {self.samples_per_step}",
            "launch local --samples-per-step 64 -- train.py",
        )
        yield (
            self.change is not None and not self.script,
            f"--change is only for your own script; got --change '{self.change}'",
            "launch local --change 'DataLoader(num_workers=2)' -- train.py",
        )
        for change in changes.changes_of(self.change):
            yield (
                change.row.device == Device.CUDA and without_cuda,
                f"--change '{change.text}' needs an NVIDIA GPU; got '{self.device}'",
                "leave it out",
            )
        yield (
            self.devices > 1 and self.device is Device.MPS,
            f"a Mac has one GPU; got --devices {self.devices}",
            "--cpu, or leave --devices out",
        )
        for name, number in (("devices", self.devices), ("machines", self.machines)):
            yield (
                number > 1 and self.profile is not Profile.NONE,
                f"only a run of one device can be profiled; got --profile {self.profile} --{name} {number}",
                f"leave --profile out, or profile the same configuration without --{name}",
            )
        for name in ("profile_step_bytes", "profile_throughput", "ncu_metrics"):
            flag = f"--{name.replace('_', '-')}"
            yield (
                bool(getattr(self, name)) and self.profile is not Profile.NCU,
                f"{flag} needs --profile ncu; got --profile {self.profile}",
                f"--profile ncu {flag}, or leave {flag} out",
            )
        for flag, is_given in (
            (f"--prefetch-factor {self.prefetch_factor}", self.prefetch_factor),
            ("--persistent-workers", self.persistent_workers),
            ("--pin-memory", self.pin_memory),
        ):
            yield (
                bool(is_given) and is_synthetic,
                f"synthetic data needs no DataLoader; got {flag}",
                f"--dataset PATH, or leave out {flag}",
            )
            yield (
                bool(is_given) and self.workers == 0 and flag != "--pin-memory",
                f"{flag} needs workers; got --workers 0",
                f"--workers 4, or leave out {flag}",
            )
        yield (
            bool(self.pin_memory) and without_cuda,
            f"--pin-memory needs a GPU of NVIDIA or AMD; got '{self.device}'",
            "leave out --pin-memory",
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return {**asdict(self), "script": list(self.script)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RunSpec":
        """Build a spec from the output of `to_json`.

        Raises `UsageError` for a value that breaks its option's rule. Unknown names and values that are None are left
        out: an option newer than `values` has its default.
        """
        known = {option.name: option for option in options()}
        words = values.get("script") or ()
        if isinstance(words, str | Mapping) or not all(isinstance(word, str) for word in words):
            words = ()  # in a bundle, `script` is an object with facts of the script
        return cls(
            **{name: known[name].parse(value) for name, value in values.items() if name in known and value is not None},
            script=tuple(words),
        )


@dataclass(frozen=True, kw_only=True)
class Option:
    """A field of `RunSpec` as a command-line option. `read`: parses its value, in place of the rule of its type.

    `is_repeatable`: the command line may have it several times; `read` then gets a list.
    """

    name: str
    kind: type
    default: object
    help: str
    minimum: int | None = None
    example: str = ""
    read: Callable[[object], Any] | None = None
    is_repeatable: bool = False

    @property
    def flag(self) -> str:
        """Command-line flag, `--batch-size`; for a switch the flag that turns it on."""
        return "--" + self.name.replace("_", "-")

    @property
    def off_flag(self) -> str:
        """Flag that turns a switch off: `--no-compile`, and `--augment` for `no_augment`."""
        return "--" + self.name.removeprefix("no_") if self.name.startswith("no_") else f"--no-{self.flag[2:]}"

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed values of an option with a closed set, else empty."""
        return tuple(self.kind) if issubclass(self.kind, StrEnum) else ()

    @property
    def is_number(self) -> bool:
        """Whether the value is an integer or a float."""
        return self.kind in (int, float)

    @property
    def group(self) -> Group:
        """Heading of this option in a command's help."""
        if self.name in ("device", "devices", "machines"):
            return Group.PLACE
        if self.name in SCRIPT_ONLY_OPTIONS:
            return Group.SCRIPT
        return Group.MEASURING if self.name in SCRIPT_OPTIONS else Group.MODEL

    @property
    def label(self) -> str:
        """Name for error messages: `batch size`."""
        return self.name.replace("_", " ")

    def parse(self, value: object) -> Any:
        """Convert a shell's text or a TOML value to this option's type. Raises `UsageError` if it breaks the rule."""
        if self.read is not None:
            return self.read(value)
        if self.kind is bool:
            return self._parse_switch(value)
        if self.kind is int:
            return self._parse_count(value)
        if self.kind is float:
            try:
                number = math.nan if isinstance(value, bool) else float(str(value))
            except ValueError:
                number = math.nan
            if not (self.minimum or 0) <= number < math.inf:
                raise self._refuse(f"must be a number of at least {self.minimum or 0}", value)
            return number
        if not isinstance(value, str) or not value:
            raise self._refuse("must be text that is not empty", value)
        if not self.choices:
            return value
        if value not in self.choices:
            raise self._refuse(f"must be one of {', '.join(self.choices)}", value, example=self._meant(value))
        return self.kind(value)

    def arguments(self, value: object) -> list[str]:
        """Command-line words that set this option to `value`."""
        if self.kind is bool:
            return [self.flag if value else self.off_flag]
        return [self.flag, str(value)]

    def _parse_switch(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str) or value.lower() not in (*ON, *OFF):
            raise self._refuse("must be true or false", value)
        return value.lower() in ON

    def _parse_count(self, value: object) -> int:
        rule = "must be a positive integer" if self.minimum == 1 else f"must be an integer of at least {self.minimum}"
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number and not (isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", value)):
            raise self._refuse(rule, value)
        number = int(str(value))
        if self.minimum is not None and number < self.minimum:
            raise self._refuse(rule, value)
        return number

    def _meant(self, value: str) -> str:
        name = SYNONYMS.get(value.lower(), value.lower())
        return next(iter(difflib.get_close_matches(name, self.choices, n=1, cutoff=0.7)), self.example)

    def _refuse(self, rule: str, value: object, *, example: str | None = None) -> UsageError:
        shown = example or self.example
        example = f" {shown}" if shown else ""
        return UsageError(f"{self.label} {rule}; got '{value}'", hint=f"{self.flag}{example}")


@cache
def options() -> tuple[Option, ...]:
    """Every run option, in the order of `RunSpec`."""
    # The type of an optional field is the first part of `int | None`.
    return tuple(
        Option(name=item.name, kind=(get_args(item.type) or (item.type,))[0], default=item.default, **item.metadata)
        for item in fields(RunSpec)
        if item.metadata
    )


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A spec, and the origin of each field that is not at its default."""

    spec: RunSpec
    origin: Mapping[str, Origin]


def resolve(
    typed: Mapping[str, object],
    environment: Mapping[str, str],
    config_folder: Path | None,
    *,
    script: Sequence[str] = (),
) -> Resolved:
    """Spec from options, environment variables, `rooflaunch.toml` in `config_folder` and defaults, in this priority.

    `typed` holds only the options of the command line. Raises `UsageError` for an unknown key or a value that breaks
    its rule. With a script, options of our trainer raise `UsageError` if typed, and are ignored in the environment and
    in the file.
    """
    if script:
        _require_script_options(typed)
    names = {ENVIRONMENT_PREFIX + option.name.upper(): option.name for option in options()}
    ours = {key for key in environment if key.startswith(ENVIRONMENT_PREFIX)} - OTHER_VARIABLES
    for key in sorted(ours - names.keys()):
        raise UsageError(
            f"unknown environment variable '{key}'", hint=f"unset {key}{did_you_mean(key, names, before='; ')}"
        )
    sources: list[tuple[Origin, Mapping[str, object]]] = [
        (Origin.OPTION, typed),
        (Origin.ENVIRONMENT, {names[key]: environment[key] for key in ours}),
        (Origin.CONFIG, _from_config(config_folder / CONFIG_NAME) if config_folder else {}),
    ]
    values: dict[str, Any] = {}
    origin: dict[str, Origin] = {}
    for option in options():
        for source, table in sources:
            if option.name in table and not (script and option.name not in SCRIPT_OPTIONS):
                values[option.name] = _parse_from(source, option, table[option.name])
                origin[option.name] = source
                break
    return Resolved(spec=RunSpec(**values, script=tuple(script)).checked(), origin=origin)


def why_not_for_script(option: Option) -> str:
    """Reason why a run of the user's own script refuses an option that only our trainer has."""
    return WHY_REFUSED_FOR_SCRIPT.get(option.name, f"the script decides its {option.label.removeprefix('no ')}")


def _require_script_options(typed: Mapping[str, object]) -> None:
    if typed.get("device") == Device.MPS:
        raise UsageError("--mps is only for our own trainer: a script chooses its own device", hint="leave --mps out")
    for option in options():
        if option.name in typed and option.name not in SCRIPT_OPTIONS:
            flag = option.flag if typed[option.name] is not False else option.off_flag
            why = why_not_for_script(option)
            raise UsageError(f"{flag} is only for our own trainer: {why}", hint=f"leave {flag} out")


def _parse_from(source: Origin, option: Option, value: object) -> Any:
    try:
        return option.parse(value)
    except UsageError as error:
        match source:
            case Origin.OPTION:
                raise
            case Origin.ENVIRONMENT:
                name = ENVIRONMENT_PREFIX + option.name.upper()
                raise UsageError(f"{name}: {error}", hint=f"export {name}={option.example or 'true'}") from error
            case Origin.CONFIG:
                example = option.example if option.is_number else f'"{option.example}"'
                text = "true" if option.kind is bool else example
                raise UsageError(f"{CONFIG_NAME}: {error}", hint=f"{option.name} = {text}") from error


def _from_config(path: Path) -> dict[str, object]:
    import tomllib  # noqa: PLC0415 - milliseconds that a help text has no use for

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a readable TOML file: {error}", hint="batch_size = 32") from error
    names = {option.name for option in options()}
    for key, value in table.items():
        # A table holds the settings of a backend; the launcher checks it.
        if key not in names and not isinstance(value, dict):
            raise UsageError(
                f"{path}: unknown key '{key}'",
                hint="the keys are the options of `launch local`, with _ for -" + did_you_mean(key, names, before="; "),
            )
    return table


def arguments(spec: RunSpec) -> list[str]:
    """Options of `python -m workload train`, or of `script`, for the fields of `spec` that differ from the defaults."""
    # A script chooses its device, and each repeat of a script is a separate process.
    left_out = ("device", "repeats") if spec.script else ()
    return [
        word
        for option in options()
        if getattr(spec, option.name) != option.default and option.name not in left_out
        for word in option.arguments(getattr(spec, option.name))
    ]
