"""Sections of run.json: environment, energy, profile, and for an imported run how its file was read.

Standard library only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from workload.contract.fields import Flag, Number, Numbers, Share, Text, Texts, Time, column

# --- a user's script


@dataclass(frozen=True, kw_only=True)
class Constructor:
    """A DataLoader or optimizer of a script, with its settings when the training step was known.

    `name`: its class; `line`: the user's line that made it, `train.py:41`, None inside a library. `is_in_step`: the
    training step fetches from it, or steps with it. `is_iterable`: its data set has no index. `lacks`: those of
    `foreach` and `fused` that an optimizer does not take.
    """

    SPARSE: ClassVar[bool] = True
    name: Text = None
    line: Text = None
    is_in_step: Flag = None
    is_iterable: Flag = None
    num_workers: Number = None
    prefetch_factor: Number = None
    persistent_workers: Flag = None
    pin_memory: Flag = None
    foreach: Flag = None
    fused: Flag = None
    lacks: Texts = None


# --- the environment


@dataclass(frozen=True, kw_only=True)
class CacheFacts:
    """An instance of a processor's cache."""

    level: Number = None
    type: Text = None
    size_bytes: Number = None
    shared_by_cpus: Number = None


@dataclass(frozen=True, kw_only=True)
class DatasetStorage:
    """Storage that holds the data set."""

    file_system: Text = None
    device: Text = None
    rotational: Flag = None
    free_bytes: Number = None


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Operating system, processor and memory; in a container, as the container sees them.

    `hypervisor`: name as systemd gives it, `none` on bare metal.
    """

    hostname: Text = column()
    os: Text = column()
    kernel: Text = column()
    hypervisor: Text = column()
    cpu_model: Text = column()
    cpu_microcode: Text = None
    cpu_flags: Texts = None
    physical_cores: Number = None
    logical_cpus: Number = None
    cpus_allowed: Number = None
    caches: Sequence[CacheFacts] | None = None
    cpu_governor: Text = None
    cgroup_cpu_limit: Number = None
    cgroup_memory_limit_bytes: Number = None
    memory_total_bytes: Number = None
    memory_available_bytes: Number = None
    numa_nodes: Number = None
    transparent_hugepages: Text = None
    dataset_storage: DatasetStorage | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """Computing device: a CPU has `threads`, a GPU the facts from NVML and torch.

    `index`: torch's number of the device, among the devices that the process sees. `gpu_index`: nvidia-smi's number,
    among all GPUs of the machine. `sm_count`: for Apple's GPUs the number of their cores.
    """

    SPARSE: ClassVar[bool] = True
    type: Text = column("device_type")
    name: Text = column("device_name")
    threads: Number = column()
    index: Number = None
    gpu_index: Number = None
    uuid: Text = None
    serial: Text = None
    driver_version: Text = column()
    vbios_version: Text = None
    compute_capability: Text = column()
    sm_count: Number = None
    memory_total_bytes: Number = None
    memory_bus_width_bits: Number = None
    ecc_enabled: Flag = None
    mig_enabled: Flag = None
    virtualization_mode: Text = None
    power_limit_default_w: Number = None
    power_limit_enforced_w: Number = None
    sm_clock_max_mhz: Number = None
    memory_clock_max_mhz: Number = None
    sm_clock_application_mhz: Number = None
    memory_clock_application_mhz: Number = None
    pcie_generation: Number = None
    pcie_generation_max: Number = None
    pcie_width: Number = None
    pcie_width_max: Number = None


@dataclass(frozen=True, kw_only=True)
class SoftwareFacts:
    """Versions and builds, numbers of threads, and the environment variables that change speed.

    `packages`: `name==version` of each installed package.
    """

    rooflaunch: Text = column()
    commit: Text = column()
    commit_dirty: Flag = column()
    python: Text = column()
    torch: Text = column()
    torchvision: Text = column()
    cuda_build: Text = column()
    cudnn: Number = column()
    blas: Text = None
    mkl: Text = None
    onednn: Text = None
    openmp: Text = None
    cpu_capability: Text = None
    variables: Mapping[str, Text] | None = None
    packages: Texts = None
    colab: Text = None


@dataclass(frozen=True, kw_only=True)
class CloudFacts:
    """Rented machine. `spot`: the provider may reclaim it; `phases`: times of the steps of its boot and its runs.

    On EC2, `zone` is the zone's id, and `physical_host` is the serial number or the UUID of the GPU: EC2 does not tell
    the host of a GPU instance.
    """

    SPARSE: ClassVar[bool] = True
    provider: Text = None
    region: Text = None
    zone: Text = column()
    instance_id: Text = None
    instance_name: Text = None
    machine_type: Text = column()
    image: Text = None
    vm_image: Text = None
    cpu_platform: Text = column()
    physical_host: Text = column()
    preempted: Flag = None
    spot: Flag = column()
    phases: Mapping[str, Time] | None = None


@dataclass(frozen=True, kw_only=True)
class ContainerFacts:
    """Container of the run; its limits of CPU and memory are in `HostFacts`."""

    SPARSE: ClassVar[bool] = True
    runtime: Text = None
    engine: Text = None
    image: Text = None
    image_digest: Text = column()
    registry_digest: Text = None
    base: Text = None
    shm_bytes: Number = None


@dataclass(frozen=True, kw_only=True)
class SlurmFacts:
    """Slurm job, from Slurm's own variables."""

    job_id: Text = None
    cluster: Text = None
    partition: Text = None
    constraint: Text = None
    node_name: Text = None
    gpus_on_node: Text = None
    cpus_per_task: Number = None
    restart_count: Number = None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Facts of the run's place that could explain a difference between runs. A section that does not apply is None.

    `start`: `forked` if the process is a fork of one that had imported torch, else `fresh`; None for imported runs.
    """

    place: Text = column()
    backend: Text = column()
    runtime: Text = column()
    runtime_reason: Text = None
    start: Text = column()
    host: HostFacts | None = None
    device: DeviceFacts = field(default_factory=DeviceFacts)
    software: SoftwareFacts | None = None
    cloud: CloudFacts | None = None
    container: ContainerFacts | None = None
    slurm: SlurmFacts | None = None


# --- energy


class EnergySource(StrEnum):
    """Origin of the energy: a GPU's counter, power samples of a GPU, or the counters of the CPU's packages."""

    NVML_COUNTER = "nvml counter"
    NVML_POWER = "nvml power"
    RAPL = "rapl"


# Longest time between two updates of a counter. NVML's: 20 to 100 ms on newer GPUs,
# petsc.org/main/manualpages/Log/PetscLogGpuEnergyMeter. RAPL's: about 1 ms, Intel SDM volume 3B, section 16.10.3.
LONGEST_UPDATE_S: Mapping[str, float] = {EnergySource.NVML_COUNTER: 0.1, EnergySource.RAPL: 0.001}


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Energy of the measured steps, in joules, of all devices of the run; None if the energy of any is unknown.

    Whole GPUs or, from RAPL, all packages of the machine with their memory, other programs included. Idle power is not
    subtracted. `source`: an `EnergySource`. `seconds`: time of the steps, without pauses. `idle_w`: power of the device
    without load before the steps.
    """

    joules: Number = None
    source: Text = column("energy_source")
    seconds: Number = None
    idle_w: Number = column()


# --- the profile


@dataclass(frozen=True, kw_only=True)
class NcuTool:
    """Nsight Compute of the profile."""

    version: Text = None
    path: Text = None


@dataclass(frozen=True, kw_only=True)
class LongestKernel:
    """A kernel or operator among those that take most of the time."""

    name: Text = None
    calls_per_step: Number = None
    time_s_per_step: Number = None
    share: Share = None


@dataclass(frozen=True, kw_only=True)
class PartOfStep:
    """Figures of a part of the step, for example the forward pass."""

    kernels_per_step: Number = None
    kernel_time_s_per_step: Number = None
    flop_per_step: Number = None
    dram_bytes_per_step: Number = None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Counted FLOP of a matrix product over its known FLOP."""

    ratio: Number = None
    verified: Flag = None


@dataclass(frozen=True, kw_only=True)
class BackwardCheck:
    """Whether the kernels of the backward pass are in the profile."""

    kernels_per_step: Number = None
    flop_over_forward: Number = None
    present: Flag = column("backward_kernels")


@dataclass(frozen=True, kw_only=True)
class ModelFlopCheck:
    """Counted FLOP compared with those of the model's formulas."""

    counted_over_model: Number = None
    flagged: Flag = None
    likely_cause: Text = None


@dataclass(frozen=True, kw_only=True)
class ProfileChecks:
    """How far the counters can be trusted."""

    calibration: Mapping[str, Calibration] | None = None
    flop_verified: Flag = column("calibration_verified")
    backward: BackwardCheck | None = None
    model_flop: ModelFlopCheck | None = None
    kernels_outside_steps: Number = None


@dataclass(frozen=True, kw_only=True)
class FurtherPass:
    """Another run under ncu that adds to the profile: the bytes of the whole step, or shares of the peaks."""

    SPARSE: ClassVar[bool] = True
    status: Text = None
    reason: Text = None
    hint: Text = None
    metrics: Texts = None
    missing: Texts = None
    elapsed_s: Number = None
    dram_bytes_per_step: Number = None
    dram_read_bytes_per_step: Number = None
    dram_write_bytes_per_step: Number = None
    l2_bytes_per_step: Number = None
    l1_bytes_per_step: Number = None
    sm_percent_time_weighted: Number = None
    memory_percent_time_weighted: Number = None
    dram_percent_time_weighted: Number = None
    kernels: Number = None
    passes: Number = None


@dataclass(frozen=True, kw_only=True)
class ProfileResult:
    """Result of the profile, which ncu or torch.profiler makes after the measured run.

    Figures are means over `steps_profiled` (ncu) or `steps` (torch.profiler) steps.
    """

    SPARSE: ClassVar[bool] = True
    status: Text = column("profile_status")
    reason: Text = column("profile_reason")
    hint: Text = None
    kind: Text = column("profile_kind")
    steps: Number = None
    warmup_steps: Number = None
    skipped_steps: Number = None
    device: Text = None
    compute_capability: Text = None
    torch: Text = None
    elapsed_s: Number = None
    files: Texts = None
    # Filled by torch.profiler: `rows` is `kernels` or `operators`.
    rows: Text = None
    calls_per_step: Number = None
    step_s: Numbers = None
    step_without_profiler_s: Number = None
    time_s_per_step: Number = None
    # Filled from an imported trace: seconds of a step, and seconds of the step in which a kernel or operator runs.
    wall_s_per_step: Number = column("traced_wall_s")
    busy_s_per_step: Number = column("traced_busy_s")
    top: Sequence[LongestKernel] | None = None
    # Filled by ncu: metrics, number of passes, time. `own_metrics`: those of `metrics` that the user asked for.
    ncu: NcuTool | None = None
    metrics: Texts = None
    own_metrics: Texts = None
    missing: Texts = None
    passes: Number = None
    kernels_profiled: Number = None
    notes: Texts = None
    # Filled by ncu: results.
    steps_profiled: Number = None
    kernels_per_step: Number = None
    kernel_time_s_per_step: Number = None
    flop_per_step: Number = column("counted_flop_per_step")
    flop_by_class: Mapping[str, Number] | None = None
    tensor_flop_per_step: Number = column("counted_tensor_flop_per_step")
    flop_is_lower_bound: Flag = column()
    lower_bound_reason: Text = column("lower_bound_reason")
    dram_bytes_per_step: Number = column("counted_dram_bytes_per_step")
    dram_read_bytes_per_step: Number = None
    dram_write_bytes_per_step: Number = None
    l2_bytes_per_step: Number = column("counted_l2_bytes_per_step")
    l1_bytes_per_step: Number = column("counted_l1_bytes_per_step")
    intensity_flop_per_byte: Number = None
    by_part: Mapping[str, PartOfStep] | None = None
    top_kernels: Sequence[LongestKernel] | None = None
    checks: ProfileChecks | None = None
    step_bytes: FurtherPass | None = None
    throughput: FurtherPass | None = None

    @property
    def is_collected(self) -> bool:
        """Whether the profile has kernels or a trace, even if incomplete."""
        return bool(self.files)


# --- an imported run


@dataclass(frozen=True, kw_only=True)
class ImportedColumn:
    """How a column of a log was read: its values times `factor` are the quantity `field`, in the unit of our files."""

    name: Text = None
    field: Text = None
    factor: Number = None
    includes_data: Flag = None
    source: Text = None


@dataclass(frozen=True, kw_only=True)
class GivenByUser:
    """Facts of an imported run that the user gave as options."""

    SPARSE: ClassVar[bool] = True
    model: Text = None
    batch_size: Number = None
    precision: Text = None
    gpu: Text = None
    profile_steps: Number = None
    driver: Text = None
    torch: Text = None
    dataset: Text = None
    image_size: Number = None
    device: Number = None


@dataclass(frozen=True, kw_only=True)
class Imported:
    """File of an imported measurement, and how it was read.

    `claimed_images_per_s`: mean of the rates in the file; `claimed_measured_images_per_s`: mean without the first rate,
    which is warm-up. `losses`: sentences on what was dropped, duplicated, missing or unclear. `contradictions`:
    sentences on differences between the file and the import's options.
    """

    SPARSE: ClassVar[bool] = True
    file: Text = column("imported_file")
    bytes: Number = None
    sha256: Text = column("imported_sha256")
    kind: Text = None
    given: GivenByUser | None = None
    imported_at: Time = None
    columns: Mapping[str, ImportedColumn] | None = None
    ignored: Texts = None
    labels: Mapping[str, Text] | None = None
    rows: Number = None
    rows_cut: Number = None
    claimed_images_per_s: Number = column()
    claimed_measured_images_per_s: Number = column()
    losses: Texts = None
    contradictions: Texts = None
