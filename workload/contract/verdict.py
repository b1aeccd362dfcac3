"""Rule that decides what limits a training step: the same for runs, scripts, imports, tables and pages.

Limits are tried in this order: `input`, `overhead`, `compute` or `memory`, `neither`. A roof counts as a limit
only if the step reaches at least half of the roof. Bytes may be modelled as an interval: at its lower end every tensor
is moved once, at its upper end every operation reads and writes memory. A busy machine is not a limit but a state of
the measurement: `Verdict.busy`, given in addition to the limit. On a busy CPU, work is compared with the CPU time that
the step got, and the limit is called probable.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from workload.contract import peaks
from workload.contract.peaks import Gpu
from workload.contract.record import LEAST_CPU_SHARE, Record, Verdict
from workload.contract.record_sections import ProfileResult
from workload.contract.spec import Precision
from workload.contract.text import percent, percent_range, plain, seconds, si

# Share of the wall time spent on waits for data above which the input pipeline, not the step, limits the throughput.
INPUT_BOUND_FRACTION = 0.10
# From this share of a roof on, the roof limits the step: without all other limits, the step is at most twice as fast.
# Nsight Compute asks for 60 % before it calls a kernel bound by compute or memory
# (docs.nvidia.com/nsight-compute/ProfilingGuide, speed of light). A step reaches a smaller share than its kernels,
# because the device is not full at its beginning and its end.
LEAST_OF_ROOF = 0.5
# Share of the step in which the device runs kernels. Below one half, the device is idle for most of the step.
LEAST_DEVICE_BUSY = 0.5
# A ceiling is a median with a few per cent of noise. If a run reaches more than this share, the ceiling is wrong.
ABOVE_CEILING = 1.05
# The same limits by CPU time, on a busy machine: threads that wait for each other spin, so a step and the tests of the
# roofs need more CPU time, short calls more than long ones. With 6 other processes on two CPUs, a copy took 2.2 times
# its CPU time, a triad 1.6 times; a step of products that reached 85 % of an idle machine's roof reached 54 % to 66 %.
LEAST_BY_CPU_TIME, ABOVE_BY_CPU_TIME = 0.4, 2.0
# Busy share of a run's threads: 90 % to 100 % if the run is alone on a machine, about half if two runs share it.
COMPETED_SHARE = 0.75
# Waits for a CPU, as a share of the time in which the run wanted one. On an idle machine this share was less than
# 5 % (24 runs of analysis/example on two CPUs). If fewer threads are busy than there are CPUs, but waits exceed this
# share, other processes used the CPUs.
LEAST_WAITED_SHARE = 0.10
# Waits for a CPU over the wall time, summed over threads. Shorter waits cannot slow a run by more than this share.
LEAST_WAITED_CPUS = 0.10
# Kernel's share of a CPU run's time without page faults, at most, and share of the time that page faults take beside it
# from which on they are worth a note: the default margin of a duel.
USUAL_KERNEL_SHARE, LEAST_FAULTS_SHARE = 0.01, 0.02
# Most time of a page fault; on a virtual machine with two CPUs one took 0.8 to 3 µs.
MOST_FAULT_S = 5e-6
FAULTS_WHY = "because memory that a step frees goes back to the system"
FAULTS_CURE = "on Linux, MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=4294967296 prevent them"
# The same for all runs, so that a summary of several shows it once.
FAULTS_NOTE = f"page faults take {percent(LEAST_FAULTS_SHARE)} of the time or more; {FAULTS_CURE}"
# Share of a trace's time up to which operators without a formula change no verdict.
MOST_UNATTRIBUTED = 0.05
# A host needs about 5 us to launch a kernel: kernels shorter than two launches cannot fill a GPU.
SMALL_KERNEL_S = 10e-6
# A precision with a smaller share of the FLOP changes no roof: at a sixteenth of the rate (fp32 beside amp on an A100),
# this share takes less than 2 % of the time.
LEAST_OF_FLOP = 0.001
# CPU flags by precision: a CPU with none of a precision's flags emulates each operation in fp32.
NATIVE_FLAGS: Mapping[str, frozenset[str]] = {
    "bf16": frozenset({"avx512_bf16", "amx_bf16", "avx10", "bf16", "svebf16"}),
    "amp": frozenset({"avx512_fp16", "amx_fp16", "avx10", "asimdhp"}),
}


class Bound(StrEnum):
    """Limit of a step."""

    INPUT = "input"
    OVERHEAD = "overhead"
    COMPUTE = "compute"
    MEMORY = "memory"
    NEITHER = "neither"


# Beginning of a reason if the run, or the test of its roof, waited for CPUs: of shares of time, and of shares of roofs.
PROBABLY, BY_CPU_TIME = "probably, on a busy machine: ", "probably, by CPU time on a busy machine: "
# Default reason why a step's limit is unknown.
UNKNOWN = "FLOP, bytes or roofs of the step are unknown"
# Printed names of bounds, where the value of `Bound` is not clear by itself.
NAMES: Mapping[str | None, str] = {None: "unknown", Bound.NEITHER: "neither compute nor memory"}


class RoofKind(StrEnum):
    """Origin of a roof: reached by this machine, or claimed by its vendor."""

    MEASURED = "measured"
    PEAK = "peak"


ROOF_NAMES: Mapping[str, tuple[str, str]] = {
    RoofKind.MEASURED: ("the measured compute ceiling", "the bandwidth"),
    RoofKind.PEAK: ("the vendor's compute peak", "the vendor's bandwidth"),
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Facts of a step that decide what limits it; None if unknown.

    `step_s`: wall time of a step without waits for data; with `kernels_alone`, the kernels' own time, so that gaps
    between kernels are unknown. `device_busy_share`: share of the step in which kernels (on a CPU operators) run; an
    upper limit of this share if `device_busy_is_upper_limit`. `running`: `kernels` or `operators`. `flop`: FLOP per
    step. `bytes_low`, `bytes_high`: fewest and most bytes per step, equal if the bytes were counted.
    `tf32_flop_per_s`: compute roof of TF32, if the label fp32 may mean TF32. `possible_causes`: sentences for a step
    that no roof limits. `cpu_time_share`: see `Verdict`.
    """

    step_s: float | None
    data_wait_fraction: float | None = None
    device_busy_share: float | None = None
    device_busy_is_upper_limit: bool = False
    running: str = "kernels"
    flop: float | None = None
    bytes_low: float | None = None
    bytes_high: float | None = None
    roof: str | None = None
    roof_flop_per_s: float | None = None
    roof_bytes_per_s: float | None = None
    tf32_flop_per_s: float | None = None
    kernels_alone: bool = False
    possible_causes: Sequence[str] = ()
    cpu_time_share: float | None = None

    @property
    def undisturbed_s(self) -> float | None:
        """Seconds of the step that are compared with the roofs: without waits for a CPU, if there were any."""
        return self.step_s * (self.cpu_time_share or 1.0) if self.step_s else None

    @property
    def least(self) -> float:
        """Share of a roof from which on the roof limits the step."""
        return LEAST_OF_ROOF if self.cpu_time_share is None else LEAST_BY_CPU_TIME

    @property
    def most(self) -> float:
        """Share of a roof above which the share is wrong."""
        return ABOVE_CEILING if self.cpu_time_share is None else ABOVE_BY_CPU_TIME

    @property
    def fractions(self) -> "Shares | None":
        """Reached shares of the roofs: compute, memory with the fewest bytes, memory with the most bytes.

        Both shares of memory are None if bytes or bandwidth are unknown; all are None if the share of compute is.
        """
        step_s = self.undisturbed_s
        if self.flop is None or not step_s or not self.roof_flop_per_s:
            return None
        compute = self.flop / self.roof_flop_per_s / step_s
        if self.bytes_low is None or self.bytes_high is None or not self.roof_bytes_per_s:
            return compute, None, None
        movable = self.roof_bytes_per_s * step_s
        return compute, self.bytes_low / movable, self.bytes_high / movable


Shares: TypeAlias = tuple[float, float | None, float | None]


def decide(figures: Figures, why_unknown: str = UNKNOWN) -> Verdict:
    """Decide what limits a step; return the limit with the figures that decided it.

    `why_unknown`: why the step's shares of the roofs are unknown.
    """
    shares = figures.fractions
    bound, why = _decided(figures, shares, why_unknown)
    is_known = shares is not None and bound is not None
    compute, low, high = shares if shares and is_known else (None, None, None)
    if bound is not None and figures.cpu_time_share is not None:
        why = (PROBABLY if bound in (Bound.INPUT, Bound.OVERHEAD) else BY_CPU_TIME) + why
    return Verdict(
        bound=bound,
        why=why,
        flop_per_s=figures.flop / figures.step_s if figures.flop and figures.step_s else None,
        compute_fraction=compute,
        memory_fraction_low=low,
        memory_fraction_high=high,
        roof=figures.roof if is_known else None,
        data_wait_fraction=figures.data_wait_fraction,
        device_busy_share=figures.device_busy_share,
        cpu_time_share=figures.cpu_time_share,
    )


def _decided(figures: Figures, shares: Shares | None, why_unknown: str) -> tuple[Bound | None, str]:
    waits, device_busy = figures.data_wait_fraction, figures.device_busy_share
    if waits is not None and waits > INPUT_BOUND_FRACTION:
        return Bound.INPUT, (
            f"waits for data take {percent(waits)} of the wall time; above {percent(INPUT_BOUND_FRACTION)}, they are "
            "named first, as they can be avoided"
        )
    if device_busy is not None and device_busy < LEAST_DEVICE_BUSY and not figures.kernels_alone:
        return Bound.OVERHEAD, f"{_device_busy(figures, device_busy)}, and the device is idle in the rest"
    return _by_roofs(figures, shares, why_unknown) if shares else (None, why_unknown)


def _by_roofs(figures: Figures, shares: Shares, why_unknown: str) -> tuple[Bound | None, str]:
    compute, low, high = shares
    compute_roof, memory_roof = ROOF_NAMES[figures.roof or RoofKind.MEASURED]
    bound = by_fractions(compute=compute, low=low or 0.0, least=figures.least, most=figures.most)
    if bound is Bound.COMPUTE and figures.tf32_flop_per_s:
        share = percent(compute * (figures.roof_flop_per_s or 0.0) / figures.tf32_flop_per_s)
        return None, (
            f"{percent(compute)} of {compute_roof} in fp32, or {share} of that in TF32, in which PyTorch computes "
            "convolutions on this GPU by default: nothing shows that the run had TF32 off"
        )
    if compute > figures.most:
        return None, (
            f"{percent(compute)} of {compute_roof} was reached, which is impossible: the ceiling is too low, "
            "the precision is wrong, or the kernels execute fewer FLOP than the model has (Winograd)"
        )
    if low is None or high is None:
        return _by_compute_alone(figures, compute, why_unknown)
    is_modelled = high > low
    if low > figures.most and not is_modelled:
        return None, (
            f"{percent(low)} of {memory_roof} was counted, which is impossible: the roof is too low, or the "
            "kernels moved more bytes in the profile, where each starts with a cold cache, than in the run"
        )
    reached = f"{percent(compute)} of {compute_roof}, {memory_share_text(low, high, figures.most)} of {memory_roof}"
    reached += " (modelled)" if is_modelled else ""
    if figures.kernels_alone:
        reached = f"these kernels reach {reached.replace(', ', ' and ', 1)}; gaps between them are unknown"
    why = [reached] if bound is not Bound.NEITHER else _neither(figures, reached, low=low, high=high)
    return bound, "; ".join(why)


def _by_compute_alone(figures: Figures, compute: float, why_unknown: str) -> tuple[Bound | None, str]:
    """Limit and reason if the share of the bandwidth is unknown: `compute` from half of its roof on, else unknown.

    Unknown too if the bytes of a step are unknown, because then memory may be the nearer limit on any machine.
    """
    reached = f"{percent(compute)} of {ROOF_NAMES[figures.roof or RoofKind.MEASURED][0]}"
    step_s = figures.undisturbed_s
    if compute < figures.least or not step_s or figures.bytes_low is None:
        return None, f"{reached}; {why_unknown}"
    # Below this bandwidth, the step would reach a larger share of it than of the compute roof.
    least = si(figures.bytes_low / step_s / compute, "B/s")
    return Bound.COMPUTE, f"{reached}; memory would be the limit only with a bandwidth below {least}; {why_unknown}"


def by_fractions(*, compute: float, low: float, least: float = LEAST_OF_ROOF, most: float = ABOVE_CEILING) -> Bound:
    """Decide which roof limits a step.

    `compute`: share of the compute roof. `low`: share of the memory roof, by the fewest bytes that the step can have
    moved. Compute is the limit from the share `least` of its roof on. Memory is the limit if the fewest bytes reach
    `least` of the memory roof: further bytes may have stayed in caches. If even the fewest bytes exceed the bandwidth
    (share above `most`), caches hold the tensors and memory is not the limit.
    """
    is_memory = least <= low <= most
    if is_memory and low > compute:
        return Bound.MEMORY
    return Bound.COMPUTE if compute >= least else Bound.NEITHER


def memory_share_text(low: float, high: float, most: float = ABOVE_CEILING) -> str:
    """Share of the bandwidth as text: `12 % to 30 %`; `60 % or more` if `high` is above `most`.

    `an unknown share` if `low` is above `most` too: bytes above the bandwidth stayed in caches.
    """
    if low > most:
        return "an unknown share"
    return f"{percent(low)} or more" if high > most else percent_range(low, high)


def _neither(figures: Figures, reached: str, *, low: float, high: float) -> Iterator[str]:
    """Reasons why no roof is the limit, then possible causes; `reached`: shares of the roofs as text."""
    if figures.kernels_alone:
        yield reached
    elif low > figures.most:
        yield f"{reached}: the caches hold the tensors, so the traffic to memory is unknown"
    elif high >= figures.least:
        yield f"{reached}: the bytes are not known well enough to tell whether memory is the limit"
    else:
        yield f"{reached}, less than {'half' if figures.least == LEAST_OF_ROOF else percent(figures.least)} of each"
    if figures.device_busy_share is not None and not figures.kernels_alone:
        yield _device_busy(figures, figures.device_busy_share)
    yield from figures.possible_causes


def _device_busy(figures: Figures, share: float) -> str:
    most = "at most " if figures.device_busy_is_upper_limit else ""
    return f"{figures.running} run in {most}{percent(share)} of the step"


# --- a run


def from_record(run: Record) -> Verdict | None:
    """Verdict on a run; None if no step was timed and the machine was not busy."""
    figures = figures_of(run)
    busy = competition(run)
    if figures is None:
        return Verdict(busy=busy) if busy else None
    return replace(decide(figures, _why_unknown(run, figures)), busy=busy)


def figures_of(run: Record) -> Figures | None:
    """Facts of a run that decide what limits it; None if no step was timed."""
    profile, complexity = run.profile, run.complexity
    step_s = _step_s(run)
    traced_s = traced_step_s(profile.wall_s_per_step, profile.busy_s_per_step) if run.imported else None
    if step_s is None and traced_s is None:
        return None
    roof, flop_per_s, bytes_per_s = _roof(run)
    is_traced = step_s is None
    # Operators without a formula may compute or move bytes, so FLOP or bytes of the step are unknown.
    unattributed, uncounted = (
        (share or 0.0) if is_traced and complexity else 0.0
        for share in (complexity and complexity.unattributed_share, complexity and complexity.uncounted_share)
    )
    has_flop, has_bytes = uncounted <= MOST_UNATTRIBUTED, unattributed - uncounted <= MOST_UNATTRIBUTED
    return Figures(
        step_s=step_s or traced_s,
        data_wait_fraction=run.timing.data_wait_fraction,
        device_busy_share=device_busy_share(run),
        device_busy_is_upper_limit=run.imported is None,
        running="operators" if run.environment.device.type == "cpu" else "kernels",
        flop=complexity.train_flop_per_step if complexity and has_flop else None,
        bytes_low=complexity.bytes_per_step_lower if complexity and has_bytes else None,
        bytes_high=complexity.bytes_per_step_upper if complexity and has_bytes else None,
        roof=roof,
        roof_flop_per_s=flop_per_s,
        roof_bytes_per_s=bytes_per_s,
        tf32_flop_per_s=tf32_instead(run),
        kernels_alone=is_traced and not profile.wall_s_per_step,
        possible_causes=list(possible_causes(run)),
        cpu_time_share=cpu_time_share(run),
    )


def _step_s(run: Record) -> float | None:
    """Median step in seconds; for an imported table of rates, which has no step times, batch size over images/s."""
    timing = run.timing
    if timing.step_s is not None or run.imported is None:
        return timing.step_s.median if timing.step_s else None
    is_rate = run.spec.batch_size and timing.images and timing.measured_s
    return (run.spec.batch_size or 0) * (timing.measured_s or 0.0) / (timing.images or 1.0) if is_rate else None


def traced_step_s(wall_s: float | None, busy_s: float | None) -> float | None:
    """Seconds of a step timed by torch.profiler alone: its wall time or its kernels' time, whichever is longer.

    None if both are unknown. A step that begins before the kernels of the previous step have ended may last longer than
    the time between the profiler's marks.
    """
    return max(wall_s or 0.0, busy_s or 0.0) or None


def device_busy_share(run: Record) -> float | None:
    """Share of a step in which the device runs kernels (on a CPU operators); None if no profile has it.

    Our own profile is a separate pass, in which overlapping kernels count in full and no kernel runs faster than
    without a profiler. The share is therefore an upper limit, and None if it reaches 100 %.
    """
    profile = run.profile
    if run.imported is not None:
        wall_s, busy_s = profile.wall_s_per_step, profile.busy_s_per_step
        return min(1.0, busy_s / wall_s) if wall_s and busy_s else None
    step_s = run.timing.step_s.median if run.timing.step_s else None
    running_s = profile.time_s_per_step or profile.kernel_time_s_per_step
    checks = profile.checks
    has_all = profile.status == "completed" and not (checks and checks.backward and checks.backward.present is False)
    if not has_all or not step_s or not running_s:
        return None
    return running_s / step_s if running_s < step_s else None


def possible_causes(run: Record) -> Iterator[str]:
    """Sentences on facts of a run that may explain why its step is far from both roofs."""
    device, host, precision = run.environment.device, run.environment.host, run.spec.precision or ""
    flags = set(host.cpu_flags or ()) if host else set()
    if device.type == "cpu" and flags and not flags & NATIVE_FLAGS.get(precision, flags):
        yield f"this CPU has no instructions for {'fp16' if precision == 'amp' else precision} and emulates it"
    if device.type == "cpu":
        return
    number, mean_s = _kernels(run.profile)
    if number and mean_s is not None and mean_s < SMALL_KERNEL_S:
        yield f"small kernels: {number:.0f} in a step, {seconds(mean_s, 2)} each on average"
    if run.imported is None and mean_s is None:
        yield "gaps between kernels are unknown (--profile torch times them)"


def _kernels(profile: ProfileResult) -> tuple[float | None, float | None]:
    for number, all_s in (
        (profile.calls_per_step, profile.time_s_per_step),
        (profile.kernels_per_step, profile.kernel_time_s_per_step),
    ):
        if number and all_s:
            return number, all_s / number
    return None, None


def _roof(run: Record) -> tuple[str | None, float | None, float | None]:
    """Kind of roof, FLOP/s and bytes/s: measured on this machine, else the vendor's peaks; None if unknown.

    Without either's bandwidth, the measured FLOP/s alone.
    """
    compute, copy = compute_roof_per_s(run), run.ceilings.copy() if run.ceilings else None
    device = run.environment.device
    # A run may use few of a CPU's cores, so the vendor's peak is no better than a measured ceiling without a bandwidth.
    if compute and ((copy and copy.roof_per_s) or device.type == "cpu"):
        return RoofKind.MEASURED, compute, copy.roof_per_s if copy else None
    if (gpu := _gpu(run)) and (peak := peak_flop_per_s(run)):
        return RoofKind.PEAK, peak, gpu.bytes_per_s
    return (RoofKind.MEASURED, compute, None) if compute else (None, None, None)


def _why_unknown(run: Record, figures: Figures) -> str:
    if not figures.roof_bytes_per_s:
        ceilings, precision = run.ceilings, run.spec.precision
        if run.imported is not None:
            gpu = _gpu(run) if precision else None
            unknown = f"{gpu.gpu} has no units for {precision}" if gpu else "the peaks of the device are unknown"
            return f"no ceiling was measured, and {unknown}"
        if ceilings is None:
            is_of_duel = run.job is not None and run.job.variant is not None
            return "a run of a duel measures no ceilings" if is_of_duel else "no ceilings were measured (--no-ceilings)"
        unavailable = ceilings.unavailable or {}
        name, what = (
            (precision or "", f"{precision} ceiling") if compute_roof_per_s(run) is None else ("copy", "bandwidth")
        )
        return f"the {what} was not measured: {unavailable.get(name) or 'unknown reason'}"
    names = {"FLOP": figures.flop, "bytes": figures.bytes_low and figures.bytes_high}
    missing = " and ".join(name for name, value in names.items() if not value)
    return f"the {missing} of a step are unknown"


# --- a busy machine


def cpu_time_share(run: Record) -> float | None:
    """Part of a CPU run's median step that is left without its waits for a CPU; see `Verdict`.

    The mean step is used, because the waits are known as a mean: many short steps do not wait at all.
    """
    timing, ceilings = run.timing, run.ceilings
    step_s, used, waited = timing.step_s, timing.cpus_used, timing.cpus_waited
    # Waits that a run's own data workers cause look like waits for others, until much of the CPUs' time is missing.
    is_short = lacks_cpus(run, COMPETED_SHARE if run.spec.workers else LEAST_CPU_SHARE)
    if is_short and used and waited is not None and is_starved(run):
        mean_over_median = step_s.mean / step_s.median if step_s and step_s.mean and step_s.median else 1.0
        return min(1.0, mean_over_median * used / (used + waited))
    roofs = (ceilings.compute(run.spec.precision), ceilings.copy()) if ceilings else ()
    return 1.0 if any(roof and roof.is_by_cpu_time for roof in roofs) else None


def competition(run: Record) -> str | None:
    """Sentence on a CPU run that lost CPUs to other processes; None for other runs."""
    used, waited, threads = run.timing.cpus_used, run.timing.cpus_waited, run.environment.device.threads or 0
    if not lacks_cpus(run) or used is None or waited is None or not is_starved(run):
        return None
    share = percent(min(1.0, waited / threads))
    if threads == 1:
        return f"other processes used the CPU: this run got {percent(used)} of one, and waited {share} of the wall time"
    got = f"this run got {plain(used, 2)} of {threads:.0f}"
    return f"other processes used the CPUs: {got}, and its threads waited {share} of the wall time"


def is_starved(run: Record) -> bool:
    """Whether a run waited for CPUs longer than on an idle machine, and long enough to be slowed down.

    Unknown, and thus False, if it has more threads than CPUs: these threads wait for each other.
    """
    used, waited = run.timing.cpus_used, run.timing.cpus_waited
    if used is None or waited is None or has_surplus_threads(run):
        return False
    return waited >= LEAST_WAITED_SHARE * (used + waited) and waited >= LEAST_WAITED_CPUS


def has_surplus_threads(run: Record) -> bool:
    """Whether a CPU run has more threads than the CPUs that it may use; False if that is unknown."""
    host = run.environment.host
    cpus = host.cpus_allowed if host else None
    return run.spec.device == "cpu" and cpus is not None and (run.environment.device.threads or 0) > cpus


def lacks_cpus(run: Record, least: float = COMPETED_SHARE) -> bool:
    """Whether a CPU run kept a smaller share than `least` of its threads busy, for any reason."""
    used, threads = run.timing.cpus_used, run.environment.device.threads or 0
    return run.spec.device == "cpu" and used is not None and used < least * threads


@dataclass(frozen=True, kw_only=True)
class PageFaults:
    """Page faults that slow a CPU run down: `per_step`, their number in a step on average.

    `share`: part of the run's CPU time that they take.
    """

    per_step: float
    share: float


def page_faults(run: Record) -> PageFaults | None:
    """Find out whether page faults slow a CPU run down; None if they are too few for that, or not recorded.

    Whether glibc gives freed memory back depends on how the memory happens to lie in the process: two runs of one
    configuration may have thousands of page faults in each step, or none. With data workers it is unknown, because each
    batch of a worker causes page faults too.
    """
    timing = run.timing
    per_s, kernel, used, step_s = timing.page_faults_per_s, timing.cpus_in_kernel, timing.cpus_used, timing.step_s
    if run.spec.device != "cpu" or not (per_s and kernel and used and timing.measured_s and step_s and step_s.n):
        return None
    share = min(1.0, kernel / used) - USUAL_KERNEL_SHARE
    if run.spec.workers or share < LEAST_FAULTS_SHARE or kernel > per_s * MOST_FAULT_S:
        return None
    return PageFaults(per_step=per_s * timing.measured_s / step_s.n, share=share)


def faults_note(run: Record) -> list[str]:
    """Note on page faults that slow a CPU run down; [] on a busy machine, where other work matters more."""
    return [FAULTS_NOTE] if page_faults(run) and not competition(run) else []


def busy_sentence(busy: Collection[str | None]) -> str | None:
    """Text on how many runs were on a busy machine; None if no run was. `busy`: `Verdict.busy` of each run."""
    reasons = [why for why in busy if why]
    if not reasons:
        return None
    if len(busy) == 1:
        return f"on a busy machine: {reasons[0]}"
    which = "" if len(set(reasons)) == 1 else ", of the first"
    return f"{len(reasons)} of {len(busy)} runs on a busy machine{which}: {reasons[0]}"


# --- figures of a run


def flop_per_s(run: Record) -> float | None:
    """FLOP of a step over its median time; unlike images/s, this rate excludes waits for data."""
    flop = run.complexity.train_flop_per_step if run.complexity else None
    median_s = run.timing.step_s.median if run.timing.step_s else None
    return None if flop is None or median_s is None else flop / median_s


def share_of_ceiling(run: Record) -> float | None:
    """FLOP/s of the median step over the measured ceiling of its precision; None if either is unknown."""
    reached, roof = flop_per_s(run), compute_roof_per_s(run)
    return None if reached is None or roof is None else reached / roof


def compute_roof_per_s(run: Record) -> float | None:
    """Measured ceiling of the run's step in FLOP/s, over all its precisions; None if not measured."""
    rates = {name: rate.roof_per_s for name, rate in ((run.ceilings and run.ceilings.flop_per_s) or {}).items()}
    return _over_precisions(run, rates)


def peak_flop_per_s(run: Record) -> float | None:
    """Vendor's peak for the run's step in FLOP/s, over all its precisions; None if unknown."""
    return _over_precisions(run, _peaks(run))


def _peaks(run: Record) -> Mapping[str, float]:
    gpu = _gpu(run)
    return {row.precision: row.tflop_per_s * 1e12 for row in gpu.peaks} if gpu else {}


def _gpu(run: Record) -> Gpu | None:
    device = run.environment.device
    return peaks.find_gpu(device.name, memory_bytes=device.memory_total_bytes)


def shares_of_flop(run: Record) -> Mapping[str, float]:
    """Share of each precision in the FLOP of the run's step, largest first, without negligible shares."""
    counted = (run.complexity and run.complexity.flop_by_precision) or {}
    total = sum(flop or 0.0 for flop in counted.values())
    shares = {name: (flop or 0.0) / total for name, flop in counted.items() if total}
    shares = {name: share for name, share in shares.items() if share >= LEAST_OF_FLOP}
    return dict(sorted(shares.items(), key=lambda item: -item[1])) or {run.spec.precision or "": 1.0}


def _over_precisions(run: Record, roofs: Mapping[str, float | None]) -> float | None:
    """FLOP/s of a step whose FLOP take the shortest time that their precisions' roofs allow, one after the other.

    A precision without a roof is compared with the roof of the run's own precision.
    """
    own = roofs.get(run.spec.precision or "")
    known = [(share, roofs.get(name) or own) for name, share in shares_of_flop(run).items()]
    if len(known) == 1:
        return known[0][1]
    return None if any(not roof for _, roof in known) else 1 / sum(share / roof for share, roof in known if roof)


def tf32_instead(run: Record) -> float | None:
    """TF32's peak in FLOP/s if a run that is labelled fp32 may have used TF32, and TF32 is faster there; else None.

    PyTorch uses TF32 for convolutions unless it is told otherwise, so a label in another program's log proves nothing.
    """
    is_proved = run.imported is None or (run.complexity and run.complexity.flop_by_precision)
    fp32, tf32 = (_peaks(run).get(precision, 0.0) for precision in (Precision.FP32, Precision.TF32))
    return tf32 if not is_proved and run.spec.precision == Precision.FP32 and tf32 > fp32 else None
