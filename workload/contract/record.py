"""run.json as typed values: one definition, one reader, one writer. Standard library only.

Each field is declared once. Its name holds its unit; its declaration holds its type, its range and its column in the
analysis (`workload.contract.fields`). `json_schema` describes them. None stands for an unknown
fact. Reading drops keys that this schema does not have.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from statistics import fmean, median, quantiles, stdev
from typing import Annotated, Any, ClassVar

from workload.contract import script_words as scripts
from workload.contract.errors import BundleError
from workload.contract.fields import (
    Findings,
    Flag,
    Kind,
    MeasuredNumber,
    MeasuredSeconds,
    MeasuredShare,
    Number,
    Rate,
    Share,
    Text,
    Texts,
    Time,
    column,
    decode,
    encode,
    leaves,
    schema,
)
from workload.contract.ranks import LinkRate, Ranks
from workload.contract.record_sections import Constructor, Energy, Environment, Imported, ProfileResult
from workload.contract.spec import SCRIPT_OPTIONS, RunSpec

# Schema history: see the top of workload/contract/bundle.py.
SCHEMA_VERSION = 3
RUN_AGAIN = "copy the bundle again from the machine that made it, or run again"


class Status(StrEnum):
    """How a run ended; `running` is seen only in a bundle without a manifest."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed_out"


# --- the request


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """Position of this run in its series of repeats; the first is 1."""

    index: Number = column("repeat")
    of: Number = column("repeats")


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """The user's own training script; secrets in its arguments are left out.

    `files`: SHA-256 of the script and of the modules that it imported from its own folder, `sha256`: hash of all of
    them. `packages`: versions of other imported packages. `commit`: commit of the script's repository. `step`:
    definition of a step; `unit`: unit of `images` everywhere in this record: images, tokens, samples or steps.
    `dataset_samples`: samples in one pass over the data of a step, of all ranks together. `constructors`: DataLoaders
    and optimizers that it made, after changes; `settings`: settings of torch, by the form of their change
    (`workload.contract.changes`). `losses`: those of its first backward passes as `float.hex`, if a change is judged;
    `distinct_samples`: share of different samples among those of counted steps; `replaced`: functions that measure time
    and that the script had replaced at the end.
    """

    SPARSE: ClassVar[bool] = True
    argv: Texts = None
    command: Text = column("script")
    files: Mapping[str, Text] | None = None
    sha256: Text = column("script_sha256")
    commit: Text = column("script_commit")
    dirty: Flag = None
    packages: Mapping[str, Text] | None = None
    packages_sha256: Text = column()
    step: Text = None
    unit: Text = column()
    dataset_samples: Number = None
    constructors: Sequence[Constructor] | None = None
    settings: Mapping[str, Text] | None = None
    losses: Texts = None
    distinct_samples: Number = None
    replaced: Texts = None


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Fields of `RunSpec`, filled; an imported run has only the fields that its file or the user gave.

    `prefetch_factor`, `pin_memory` and `persistent_workers` are None if the user left the choice to our trainer.
    For a user's own script the fields are as observed: `model` is the script's name, and `batch_size` the number of
    `script.unit`, or of sequences of tokens if known, in each of the `grad_accumulation` batches of a step. `samples`:
    the user's own amount of work, in the unit of throughput. `change`: changes made to a script from outside, separated
    by `; `. `dataset_images`: images of our trainer's data set. `devices`: on each of the `machines`.
    """

    model: Annotated[str, Kind.TEXT] = field(metadata={"column": ""})
    device: Text = None
    batch_size: Annotated[int, Kind.COUNT] = field(metadata={"column": ""})
    precision: Text = column()
    dataset: Text = column()
    data_dir: Text = None
    download: Flag = None
    subset: Number = None
    image_size: Number = column()
    warmup: Number = column()
    iterations: Number = column()
    min_seconds: Number = None
    devices: Number = None
    machines: Number = None
    repeats: Number = None
    profile: Text = None
    profile_steps: Number = None
    profile_step_bytes: Flag = None
    profile_throughput: Flag = None
    ncu_metrics: Text = None
    channels_last: Flag = column()
    compile: Flag = column()
    deterministic: Flag = column()
    no_augment: Flag = None
    grad_accumulation: Number = column()
    workers: Number = column()
    prefetch_factor: Number = column()
    pin_memory: Flag = column()
    persistent_workers: Flag = column()
    optimizer: Text = column()
    seed: Number = column()
    ceilings: Flag = None
    fresh_ceilings: Flag = None
    samples_per_step: Number = None
    samples: Number = column()
    change: Text = column()
    dataset_images: Number = None
    script: ScriptFacts | None = None

    @property
    def ranks(self) -> int:
        """Number of processes that trained together, on all machines."""
        return int((self.devices or 1) * (self.machines or 1))

    @classmethod
    def from_run_spec(cls, spec: RunSpec) -> "Spec":
        """Spec of a filled `RunSpec`; for a script, the facts known before it runs."""
        if not spec.script:
            return cls(**{**asdict(spec), "script": None})
        argv = scripts.redacted(spec.script)
        own = {name: value for name, value in asdict(spec).items() if name in SCRIPT_OPTIONS}
        facts = ScriptFacts(argv=argv, command=shlex.join(argv))
        return cls(**own, model=scripts.script_name(spec.script), batch_size=1, script=facts)

    def run_spec(self) -> RunSpec:
        """Convert to a `RunSpec`, newer options at their defaults. Raises `UsageError` for a bad value.

        For a script, only its options: other fields are observed, such as its optimizer's class.
        """
        values = encode(self)
        return RunSpec.from_json({name: values[name] for name in SCRIPT_OPTIONS} if self.script else values)


@dataclass(frozen=True, kw_only=True)
class JobPlace:
    """Place of the run in a job: its task, its block of the matrix and its position in the block.

    `variant`: A or B of a duel, whose blocks are its quadruples.
    """

    name: Text = column("job_name")
    task: Number = None
    block: Number = column()
    position: Number = column()
    variant: Text = None


# --- measurements


@dataclass(frozen=True, kw_only=True)
class Settling:
    """Cooling of the device before the warm-up, if the run is one of several configurations in a task.

    `target_c`: temperature in degrees Celsius before the first run of the task. `is_reached`: the device cooled
    down to at most 5 degrees above the target.
    """

    SPARSE: ClassVar[bool] = True
    target_c: Number = None
    before_c: Number = None
    after_c: Number = None
    waited_s: Number = None
    is_reached: Flag = None
    why: Text = None


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """Times of the measured steps in seconds, without waits for data; `stdev` is the sample standard deviation."""

    n: MeasuredNumber = column("steps")
    median: MeasuredSeconds = column("step_median_s")
    mean: MeasuredSeconds = column("step_mean_s")
    stdev: MeasuredNumber = column("step_stdev_s")
    min: MeasuredSeconds = column("step_min_s")
    max: MeasuredSeconds = column("step_max_s")
    p5: MeasuredSeconds = column("step_p5_s")
    p95: MeasuredSeconds = column("step_p95_s")

    @classmethod
    def from_seconds(cls, seconds: Sequence[float]) -> "StepSeconds":
        """Summary of at least one step time; a figure that needs more steps is None."""
        several = len(seconds) > 1
        twentieths = quantiles(seconds, n=20, method="inclusive") if several else None
        return cls(
            n=len(seconds),
            median=median(seconds),
            mean=fmean(seconds),
            stdev=stdev(seconds) if several else None,
            min=min(seconds),
            max=max(seconds),
            p5=twentieths[0] if twentieths else None,
            p95=twentieths[-1] if twentieths else None,
        )


@dataclass(frozen=True, kw_only=True)
class SkippedSteps:
    """Numbers of steps in which AMP left out the optimizer because the gradient overflowed in fp16."""

    SPARSE: ClassVar[bool] = True
    warmup: MeasuredNumber = None
    measured: MeasuredNumber = column("skipped_steps")


@dataclass(frozen=True, kw_only=True)
class GapSeconds:
    """Gaps of one kind between a script's measured steps: their number and total seconds."""

    number: Number = None
    seconds: Number = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Measured region, from the beginning of its first step to the end of its last complete one.

    `cpus_used`, `cpus_waited`, `cpus_in_kernel`: number of CPUs that were used, waited for, and used by the kernel, on
    average. `page_faults_per_s`: page faults of the trainer that needed no disk.
    `images_per_s`: images over wall time; `tokens`: without padding; `samples`: sequences, if the unit
    is tokens and their number is known; `explained_fraction`: share of the wall time that
    steps and data waits account for. `gaps`: pauses between the steps of a user's own script, by kind (validation,
    checkpoint, irregular), not part of `measured_s`. `phases`: beginning of each phase in seconds since the trainer's
    first line ran. `interpreter_s`: seconds from the start of the process to that line; unknown outside Linux.
    """

    started_at: Time = column()
    measured_s: MeasuredSeconds = column()
    cpus_used: MeasuredNumber = column()
    cpus_waited: MeasuredNumber = None
    cpus_in_kernel: MeasuredNumber = None
    page_faults_per_s: MeasuredNumber = None
    images: MeasuredNumber = column()
    images_per_s: MeasuredNumber = column("stated_images_per_s")
    tokens: MeasuredNumber = None
    samples: MeasuredNumber = None
    step_s: StepSeconds | None = None
    data_wait_fraction: MeasuredShare = column()
    explained_fraction: MeasuredShare = column()
    skipped_steps: SkippedSteps | None = None
    gaps: Mapping[str, GapSeconds] | None = None
    setup_s: MeasuredNumber = column()
    phases: Mapping[str, Number] | None = None
    interpreter_s: Number = None

    @property
    def samples_per_s(self) -> float | None:
        """Sequences over wall time; None if the unit is not tokens, or their number is unknown."""
        return self.samples / self.measured_s if self.samples and self.measured_s else None


@dataclass(frozen=True, kw_only=True)
class ComplexityRecord:
    """Work of a step: FLOP by formula (1 fused multiply-add is 2 FLOP), bytes as a modelled interval.

    `theoretical_step_s`: the step's FLOP over the measured ceiling. `flop_by_precision`: FLOP by the type of the
    factors. `recomputed_flop_per_step`: the part of `train_flop_per_step` by which gradient checkpointing repeats
    forward passes; None if nothing is repeated. `copied_to_device_bytes`: bytes copied from the host to a GPU. A user's
    own script and a trace also have `unattributed`: for each operation without a formula, its share of all operations'
    time. `unattributed_share`: sum of these shares; in a script on a GPU, the time of a small operation is mostly the
    host's time to start its kernels. `uncounted_share`: for a trace, the sum over those operations that may compute.
    `flop_by_module`, `bytes_by_module` (upper bound): of the ten modules with most FLOP.
    """

    parameters: Number = column()
    forward_mac_per_image: Number = column()
    forward_flop_per_image: Number = column()
    train_flop_per_step: Number = column()
    recomputed_flop_per_step: Number = column()
    train_flop_per_image: Number = column()
    flop_by_op: Mapping[str, Number] | None = None
    bytes_per_step_lower: Number = column("bytes_lower_per_step")
    bytes_per_step_upper: Number = column("bytes_upper_per_step")
    fvcore_mac_per_image: Number = None
    uncounted: Texts = None
    method: Text = None
    theoretical_step_s: Number = None
    unattributed_share: Share = column()
    uncounted_share: Share = column()
    unattributed: Mapping[str, Number] | None = None
    flop_by_precision: Mapping[str, Number] | None = None
    copied_to_device_bytes: Number = None
    copied_to_device_s: Number = None
    flop_by_module: Mapping[str, Number] | None = None
    bytes_by_module: Mapping[str, Number] | None = None


# Least share of the wanted CPUs for a rate by the clock. On an idle virtual machine of two CPUs, products and copies
# got 92 % to 99.7 % of the CPUs (2026-11, analysis/example).
LEAST_CPU_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """FLOP or bytes per second over `samples` samples; see `workload.measure.ceiling_rates.MeasuredRate`."""

    median: Rate = None
    best: Rate = None
    min: Rate = None
    p5: Rate = None
    p95: Rate = None
    samples: Rate = None
    size: Number = None
    load_s: Number = None
    first_third: Number = None
    last_third: Number = None
    burst: Rate = None
    sustained: Rate = None
    conditions: Mapping[str, Number] | None = None
    conditions_at_start: Mapping[str, Number] | None = None
    conditions_at_end: Mapping[str, Number] | None = None
    cpus: Number = None
    cpus_waited: Number = None
    cpus_wanted: Number = None

    @property
    def is_by_cpu_time(self) -> bool:
        """Whether other processes took CPUs that the samples could have used: the rate is then one of CPU time."""
        return self.cpus is not None and self.cpus < LEAST_CPU_SHARE * (self.cpus_wanted or 0.0)

    @property
    def roof_per_s(self) -> float | None:
        """Rate to compare a run with: the sustained rate if the device slowed down under load, else the median."""
        return self.median if self.sustained is None else self.sustained


@dataclass(frozen=True, kw_only=True)
class CeilingsRecord:
    """Highest rates that this machine reached in measurements: of FLOP by precision, of bytes by kind of copy.

    `unavailable`: why a rate is missing.

    `links`: rates between the ranks of several devices, measured in each run.
    """

    flop_per_s: Mapping[str, MeasuredRate] | None = None
    bytes_per_s: Mapping[str, MeasuredRate] | None = None
    unavailable: Mapping[str, Text] | None = None
    method: Text = None
    measured_at: Time = None
    elapsed_s: Number = None
    device: Text = None
    machine_id: Text = None
    software: Text = None
    threads: Number = None
    age_s: Number = None
    links: Sequence[LinkRate] | None = None

    def compute(self, precision: str | None) -> MeasuredRate | None:
        """FLOP rate measured for a precision; None if there is none."""
        return (self.flop_per_s or {}).get(precision or "")

    def copy(self) -> MeasuredRate | None:
        """Rate of a memory copy, which is the roof for bandwidth; None if not measured."""
        return (self.bytes_per_s or {}).get("copy")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Limit of the run, the reason, and the deciding figures: shares of the roofs (1: at the roof) and of time.

    `bound` is one of `workload.contract.verdict.Bound`; if None, `why` tells why the limit is unknown. `busy`:
    disturbance of the measurement by other work, None if undisturbed. `roof`: `measured` or the vendor's `peak`.
    `cpu_time_share`: part of the median step that is left without its waits for a CPU, by which shares of the roofs are
    computed; 1 if only the roof was measured by CPU time, None on an idle machine.
    `device_busy_share`: part of the step in which the device runs kernels; None if unknown.
    """

    bound: Text = column()
    why: Text = column("bound_why")
    busy: Text = column()
    flop_per_s: Number = None
    compute_fraction: Share = column()
    memory_fraction_low: Share = column()
    memory_fraction_high: Share = column()
    roof: Text = None
    data_wait_fraction: Share = None
    device_busy_share: Share = column()
    cpu_time_share: Share = column()


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Device memory: torch's peak, and its allocator's retries. A CPU's peak is in `usage`."""

    SPARSE: ClassVar[bool] = True
    peak_allocated_bytes: Number = None
    peak_reserved_bytes: Number = None
    allocator_retries: Number = None
    driver_allocated_bytes: Number = None


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of the tensors of one training step, counted by following each storage from birth to death.

    `peak_bytes`: most bytes alive at a time on the step's device, the sum of the six kinds at that moment
    (`workload.contract.allocations.Kind`). `peak_op`: operation that set the peak, on `peak_line` of the user's code
    (`train.py:41`). `samples`: samples of one forward pass, sequences for language models; `bytes_per_sample`: growth
    of the peak with each further one, None if unknown. `growth_bytes`: bytes by which each step leaves more than the
    one before, None if it does not. `lower_bound`: reasons why the true peak may be higher. The allocations themselves
    are in `allocations.csv`.
    """

    SPARSE: ClassVar[bool] = True
    peak_bytes: Number = column("counted_peak_bytes")
    weights_bytes: Number = None
    gradients_bytes: Number = None
    optimizer_bytes: Number = None
    activations_bytes: Number = column()
    temporaries_bytes: Number = None
    inputs_bytes: Number = None
    peak_op: Text = None
    peak_line: Text = None
    samples: Number = None
    bytes_per_sample: Number = None
    growth_bytes: Number = None
    lower_bound: Texts = None
    method: Text = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Resource usage of the process and its reaped children, as `/usr/bin/time -v` reports it.

    Figures are sums over processes, except `max_rss_bytes`, which is of the largest process, on Linux without the
    memory for measuring the ceilings. `fs_inputs`: blocks of 512 bytes that were read.
    """

    user_s: Number = None
    system_s: Number = None
    elapsed_s: Number = None
    max_rss_bytes: Number = None
    major_faults: Number = None
    minor_faults: Number = None
    voluntary_context_switches: Number = None
    involuntary_context_switches: Number = None
    fs_inputs: Number = None


# --- cost, and origin of an imported run


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Time and price of this run on a rented machine; `usd` is None if the price is unknown."""

    usd_per_h: Number = column()
    disk_usd_per_h: Number = None
    address_usd_per_h: Number = None
    price_date: Text = None
    billed_from: Time = None
    billed_to: Time = None
    billed_s: Number = None
    usd: Number = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run. `error` tells why it did not complete, `hint` what to do. What does not apply is None."""

    run_id: Annotated[str, Kind.TEXT] = field(metadata={"column": ""})
    status: Annotated[Status, Kind.TEXT] = field(metadata={"column": ""})
    error: Text = column()
    hint: Text = None
    imported: Imported | None = None
    job: JobPlace | None = None
    run_key: Text = None
    repeat: Repeat | None = None
    spec: Spec
    spec_origin: Mapping[str, Text] | None = None
    environment: Environment = field(default_factory=Environment)
    settling: Settling | None = None
    timing: Timing = field(default_factory=Timing)
    ranks: Ranks | None = None
    complexity: ComplexityRecord | None = None
    ceilings: CeilingsRecord | None = None
    bound: Verdict | None = None
    memory: Memory | None = None
    step_memory: StepMemory | None = None
    usage: Usage | None = None
    energy: Energy | None = None
    profile: ProfileResult = field(default_factory=ProfileResult)
    cost: Cost | None = None
    notes: Texts = column(default=())


FIELDS = tuple(leaves(Record))
COLUMNS = tuple(leaf for leaf in FIELDS if leaf.column)
# Labels of a run in lists, see `labels_of`.
STATUS_LABEL, KEY_LABEL, JOB_LABEL, SECONDS_LABEL = "status", "run_key", "job", "seconds"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A record, and remarks on the values of run.json that could not be read."""

    record: Record
    remarks: Sequence[str]


def read(document: Mapping[str, Any]) -> Reading:
    """Parse the content of a run.json of this schema.

    A value of the wrong type or outside its range is left out, with a remark that names the field and its rule. Raises
    `BundleError` if a required field is missing, or if a timing figure is impossible, because every figure is then in
    doubt. Callers may rely on the types and ranges of the result.
    """
    findings = Findings()
    record = decode(Record, document, findings)
    for name in findings.missing:
        raise _unusable(f"run.json has no usable {name}")
    if record.status not in set(Status):
        raise _unusable(f"run.json has the unknown status '{record.status}'")
    if findings.impossible:
        raise BundleError("; ".join(f"run.json: {why}" for why in findings.impossible), hint=RUN_AGAIN)
    known = replace(record, status=Status(record.status))
    return Reading(record=known, remarks=[f"run.json: {why}; left out" for why in dict.fromkeys(findings.wrong)])


def to_json(record: Record) -> dict[str, Any]:
    """Content of run.json."""
    return {"schema_version": SCHEMA_VERSION, **encode(record)}


def labels_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Labels of a run as text: its status, its `run_key`, its job's name and its process time in seconds.

    Labels that run.json lacks are left out.
    """
    name, ended_s = (_inner(document, path) for path in (("job", "name"), ("timing", "phases", "end")))
    labels = {STATUS_LABEL: document.get("status"), KEY_LABEL: document.get("run_key"), JOB_LABEL: name}
    texts = {label: value for label, value in labels.items() if isinstance(value, str)}
    return texts | ({SECONDS_LABEL: f"{ended_s:.1f}"} if isinstance(ended_s, float) else {})


def why_other_labels(labels: Any, document: Mapping[str, Any]) -> str:
    """How the `labels` of a run contradict its run.json; empty if they do not, or if there are none."""
    own = labels_of(document)
    for name in (STATUS_LABEL, KEY_LABEL):
        if isinstance(labels, Mapping) and labels and labels.get(name) != own.get(name):
            return f"its label {name} is {labels.get(name)!r}, and run.json says {own.get(name)!r}"
    return ""


def _inner(document: Mapping[str, Any], path: Iterable[str]) -> Any:
    value: Any = document
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def json_schema() -> dict[str, Any]:
    """JSON Schema of run.json."""
    described = schema(Record)
    version = {"const": SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"run.json of a rooflaunch bundle, schema {SCHEMA_VERSION}",
        **described,
        "properties": {"schema_version": version, **described["properties"], "status": {"enum": list(Status)}},
        "required": ["schema_version", *described["required"]],
    }


def _unusable(why: str) -> BundleError:
    return BundleError(why, hint="this folder is not a run of rooflaunch; move it away")
