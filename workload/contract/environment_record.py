"""The `environment` section of run.json: everything about the place of a run. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from workload.contract.fields import Flag, Number, Numbers, Text, Texts, Time, column


@dataclass(frozen=True, kw_only=True)
class VirtualizationFacts:
    """`hypervisor` under systemd's names, and the source of this fact."""

    hypervisor: Text = column()
    source: Text = None


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

    mount_point: Text = None
    file_system: Text = None
    device: Text = None
    rotational: Flag = None
    free_bytes: Number = None


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Operating system, processor and memory; in a container, as the container sees them."""

    hostname: Text = column()
    os: Text = column()
    kernel: Text = column()
    architecture: Text = None
    virtualization: VirtualizationFacts | None = None
    cpu_model: Text = column()
    cpu_family: Number = None
    cpu_model_number: Number = None
    cpu_stepping: Number = None
    cpu_microcode: Text = None
    cpu_flags: Texts = None
    sockets: Number = None
    physical_cores: Number = None
    logical_cpus: Number = None
    cpus_allowed: Number = None
    cpus_allowed_list: Text = None
    caches: Sequence[CacheFacts] | None = None
    cpu_governor: Text = None
    cgroup_cpu_limit: Number = None
    cgroup_memory_limit_bytes: Number = None
    memory_total_bytes: Number = None
    memory_available_bytes: Number = None
    numa_nodes: Number = None
    load_average: Numbers = None
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
    bus_id: Text = None
    serial: Text = None
    driver_version: Text = column()
    vbios_version: Text = None
    compute_capability: Text = column()
    sm_count: Number = None
    cuda_cores: Number = None
    memory_total_bytes: Number = None
    memory_bus_width_bits: Number = None
    ecc_enabled: Flag = None
    mig_enabled: Flag = None
    persistence_enabled: Flag = None
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
    usable_memory_bytes: Number = None
    l2_cache_bytes: Number = None
    shared_memory_per_sm_bytes: Number = None
    registers_per_sm: Number = None
    max_threads_per_sm: Number = None
    warp_size: Number = None
    rocm_architecture: Text = None
    nvml: Flag = None
    visible_devices: Text = None


@dataclass(frozen=True, kw_only=True)
class SoftwareFacts:
    """Versions and builds, numbers of threads, and the environment variables that change speed.

    `packages`: `name==version` of each installed package; None in bundles from before there was this list.
    """

    rooflaunch: Text = column()
    commit: Text = column()
    commit_dirty: Flag = column()
    python: Text = column()
    torch: Text = column()
    torchvision: Text = column()
    numpy: Text = None
    torch_commit: Text = None
    cuda_build: Text = column()
    cudnn: Number = column()
    onednn_available: Flag = None
    blas: Text = None
    mkl: Text = None
    onednn: Text = None
    openmp: Text = None
    cpu_capability: Text = None
    intra_op_threads: Number = None
    inter_op_threads: Number = None
    variables: Mapping[str, Text] | None = None
    packages: Texts = None
    colab: Text = None


@dataclass(frozen=True, kw_only=True)
class CloudFacts:
    """Rented machine. `spot`: the provider may reclaim it; `phases`: times of the steps of its boot and its runs.

    On EC2, `zone` is the zone's id, `life_cycle` says how the instance was bought (`spot`, `on-demand`), and
    `physical_host` is the serial number or the UUID of the GPU: EC2 does not tell the host of a GPU instance.
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
    maintenance_event: Text = None
    on_host_maintenance: Text = None
    physical_host: Text = column()
    physical_host_topology: Mapping[str, Text] | None = None
    preempted: Flag = None
    automatic_restart: Flag = None
    life_cycle: Text = None
    spot: Flag = column()
    phases: Mapping[str, Time] | None = None


@dataclass(frozen=True, kw_only=True)
class ContainerFacts:
    """Container of the run; the limits of CPU and memory are the same as in `HostFacts`."""

    SPARSE: ClassVar[bool] = True
    runtime: Text = None
    os: Text = None
    engine: Text = None
    image: Text = None
    image_digest: Text = column()
    registry_digest: Text = None
    base: Text = None
    cgroup_cpu_limit: Number = None
    cgroup_memory_limit_bytes: Number = None
    shm_bytes: Number = None


@dataclass(frozen=True, kw_only=True)
class SlurmFacts:
    """Slurm job, from Slurm's own variables."""

    job_id: Text = None
    job_name: Text = None
    step_id: Text = None
    array_job_id: Text = None
    array_task_id: Text = None
    cluster: Text = None
    partition: Text = None
    qos: Text = None
    constraint: Text = None
    node_list: Text = None
    node_name: Text = None
    tasks_per_node: Text = None
    gpus: Text = None
    gpus_on_node: Text = None
    job_gpus: Text = None
    step_gpus: Text = None
    cpu_binding: Text = None
    nodes: Number = None
    tasks: Number = None
    task_rank: Number = None
    cpus_per_task: Number = None
    cpus_on_node: Number = None
    memory_per_node_mib: Number = None
    memory_per_cpu_mib: Number = None
    restart_count: Number = None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Facts of the run's place that could explain a difference between runs. A section that does not apply is None.

    `start`: `forked` if the process is a fork of one that had imported torch, else `fresh`; None, from before there
    were forks, means `fresh`.
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
