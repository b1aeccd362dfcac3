"""The `profile` section of run.json: status and results of the pass under a profiler. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from workload.contract.fields import Flag, Number, Numbers, Share, Text, Texts, column


@dataclass(frozen=True, kw_only=True)
class NcuTool:
    """Nsight Compute of the profile, and the chip or device whose list of metrics was used."""

    version: Text = None
    path: Text = None
    metrics_known_of: Text = None


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
    """Known and counted FLOP of a matrix product of known size."""

    known_flop: Number = None
    counted_flop: Number = None
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

    model_flop_per_step: Number = None
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
    replay_mode: Text = None
    cache_control: Text = None
    bytes_are: Text = None
    metrics: Texts = None
    missing: Texts = None
    elapsed_s: Number = None
    dram_bytes_per_step: Number = None
    dram_read_bytes_per_step: Number = None
    dram_write_bytes_per_step: Number = None
    l2_bytes_per_step: Number = None
    l1_bytes_per_step: Number = None
    range_time_s_per_step: Number = None
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
    # Filled by ncu: settings, number of passes, time. `own_metrics`: those of `metrics` that the user asked for.
    ncu: NcuTool | None = None
    replay_mode: Text = None
    cache_control: Text = None
    bytes_are: Text = None
    l2_bytes_are: Text = None
    clock_control: Text = None
    metrics: Texts = None
    own_metrics: Texts = None
    missing: Texts = None
    passes: Number = None
    expected_passes: Number = None
    kernels_profiled: Number = None
    notes: Texts = None
    expected_kernels: Number = None
    expected_kernels_per_step: Number = None
    expected_s: Number = None
    limit_s: Number = None
    step_s_without_profiler: Number = None
    free_bytes: Number = None
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
