"""Checks of claims about rates, power, memory and failures against collected evidence."""

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import quantiles
from typing import Any

from benchmarks.gpu_truth.judging import NotSettledError, Observation, figures, mean, middle
from workload.contract.errors import ExitCode
from workload.contract.peaks import find

# Compute capabilities for which the usual power query returns a mean of the last second: Ampere except A100, and newer.
AVERAGED_FROM, NOT_AVERAGED = (8, 6), ("8.0",)
# Seconds after the start of a load in which a mean over one second still includes idle time.
RISING_FROM_S, RISING_TO_S = 0.2, 0.6
LAG_BELOW = 0.9
# Ratio of first to last third above which the first is a burst, and the last third is the roof.
BURST_ABOVE = 1.03
# Tolerance between two measurements of one roof with matrices of different sizes.
ROOF_WITHIN = 0.1
# Products reach 80 to 90 % of the vendor's peak; half of the peak indicates a fault, more than the peak a wrong peak.
PEAK_FROM, PEAK_TO = 0.5, 1.05
# Tolerance as a factor: published figures for one GPU, model and precision differ up to 2.2 times between authors.
BAND = 1.6
TF32_OVER_FP32 = 1.2
LEAST_MEASURED_S = 3.0
INSTRUMENTS_UP_TO = 1.01
# Most interquartile range of the pairs' ratios: with more, the machine was too busy to settle the claim.
NOISE = 0.05


def _rows(loads: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = loads["loads"][name]["rows"]
    return rows


def power_lag(machine: Mapping[str, Any], ceilings: Mapping[str, Any]) -> Observation:
    """Usual power reading over the instant one while the load rises."""
    ratios = {}
    for name in ceilings["loads"]:
        rising = [row for row in _rows(ceilings, name) if RISING_FROM_S <= row["t_s"] <= RISING_TO_S]
        usual, instant = (mean([row.get(key) for row in rising]) for key in ("power_usual_w", "power_instant_w"))
        if usual is not None and instant:
            ratios[name] = usual / instant
    if not ratios:
        raise NotSettledError("NVML tells no instant power here")
    capability = machine["gpu"]["capability"]
    pair = tuple(int(part) for part in capability.split("."))
    averaged = pair >= AVERAGED_FROM and capability not in NOT_AVERAGED
    lags = min(ratios.values()) < LAG_BELOW
    return Observation(found=figures(ratios), holds=lags == averaged)


def _thirds(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Median seconds per call in the first and in the last third of a load."""
    size = len(rows) // 3
    if not size:
        raise NotSettledError("the load was too short")
    return middle([row["call_s"] for row in rows[:size]]), middle([row["call_s"] for row in rows[-size:]])


def bursts(ceilings: Mapping[str, Any]) -> Observation:
    """Rate of the first third over that of the last."""
    ratios = {}
    for name in ceilings["loads"]:
        first_s, last_s = _thirds(_rows(ceilings, name))
        ratios[name] = last_s / first_s
    return Observation(found=figures(ratios), holds=all(ratio <= BURST_ABOVE for ratio in ratios.values()))


def below_peak(machine: Mapping[str, Any], ceilings: Mapping[str, Any]) -> Observation:
    """Sustained rates over the vendor's peaks."""
    gpu, shares = machine["gpu"], {}
    for name, load in ceilings["loads"].items():
        peak = find(gpu["name"], precision="fp32" if name == "copy" else name, memory_bytes=gpu["memory_bytes"])
        if peak:
            vendor = peak.bytes_per_s if name == "copy" else peak.flop_per_s
            shares[name] = load["work"] / _thirds(load["rows"])[1] / vendor
    if not shares:
        raise NotSettledError(f"the table of peaks has no {gpu['name']}")
    return Observation(found=figures(shares), holds=all(PEAK_FROM <= share <= PEAK_TO for share in shares.values()))


def roof_is_sustained(ceilings: Mapping[str, Any]) -> Observation:
    """Our measured roofs over the rates in the last third of a load."""
    own, ratios = ceilings["ceilings"], {}
    for name, rate in {**own["flop_per_s"], "copy": own["bytes_per_s"].get("copy")}.items():
        if rate and name in ceilings["loads"]:
            sustained = ceilings["loads"][name]["work"] / _thirds(_rows(ceilings, name))[1]
            ratios[name] = (rate.get("sustained") or rate["median"]) / sustained
    return Observation(found=figures(ratios), holds=all(abs(ratio - 1) <= ROOF_WITHIN for ratio in ratios.values()))


# --- training


def _completed(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Precision, run and record of each completed run."""
    for precision, run in part["runs"].items():
        record = run.get("record") or {}
        if record.get("status") == "completed":
            yield precision, run, record


def in_band(part: Mapping[str, Any]) -> Observation:
    """Images/s compared with published figures for this GPU."""
    texts, holds = [], True
    for precision, run, record in _completed(part):
        others = [row["images_per_s"] for row in run["published"]]
        if others:
            own = record["timing"]["images_per_s"]
            texts.append(f"{precision} {own:.4g} (published {min(others):g} to {max(others):g})")
            holds = holds and min(others) / BAND <= own <= max(others) * BAND
    if not texts:
        rates = {precision: record["timing"]["images_per_s"] for precision, _, record in _completed(part)}
        raise NotSettledError(f"no published band: {figures(rates)} images/s")
    return Observation(found=", ".join(texts), holds=holds)


def all_complete(part: Mapping[str, Any]) -> Observation:
    """How the runs ended; tf32 may be refused before compute capability 8.0."""
    ends = {
        name: (run.get("record") or {}).get("status") or f"exit code {run['exit_code']}"
        for name, run in part["runs"].items()
    }
    refused = ("completed", f"exit code {int(ExitCode.USAGE)}")
    holds = all(end == "completed" or (name == "tf32" and end in refused) for name, end in ends.items())
    return Observation(found=", ".join(f"{name} {end}" for name, end in ends.items()), holds=holds)


def fp32_is_not_tf32(part: Mapping[str, Any]) -> Observation:
    """Throughput of tf32 training over fp32."""
    rates = {precision: record["timing"]["images_per_s"] for precision, _, record in _completed(part)}
    if "tf32" not in rates or "fp32" not in rates:
        raise NotSettledError("there is no pair of fp32 and tf32")
    ratio = rates["tf32"] / rates["fp32"]
    return Observation(found=f"{ratio:.3g}", holds=ratio >= TF32_OVER_FP32)


def long_enough(part: Mapping[str, Any]) -> Observation:
    """Seconds of each measured region."""
    lengths = {precision: record["timing"]["measured_s"] for precision, _, record in _completed(part)}
    return Observation(found=f"{figures(lengths)} s", holds=min(lengths.values()) >= LEAST_MEASURED_S)


def skipped_counted(part: Mapping[str, Any]) -> Observation:
    """Number of measured steps that AMP skipped."""
    timings = {precision: record["timing"] for precision, _, record in _completed(part)}
    if "amp" not in timings:
        raise NotSettledError("there is no run in amp")
    number = timings["amp"].get("skipped_steps", {}).get("measured")
    return Observation(found="not in run.json" if number is None else f"{number:g}", holds=number is not None)


def instruments(loops: Mapping[str, Any]) -> Observation:
    """Time with instruments over time without."""
    ratios = loops["ratios"]
    low, ratio, high = quantiles(ratios, n=4)
    found = f"{ratio:.4f} (half of {len(ratios)} pairs {low:.4f} to {high:.4f}), {loops['model']} on {loops['device']}"
    if high - low > NOISE:
        raise NotSettledError(f"the pairs are too far apart: {found}")
    return Observation(found=found, holds=ratio <= INSTRUMENTS_UP_TO)


# --- what goes wrong


def _ended(run: Mapping[str, Any]) -> str:
    status = (run.get("record") or {}).get("status")
    return f"exit code {run['exit_code']}" + (f", {status}" if status else "")


def out_of_memory(failures: Mapping[str, Any]) -> Observation:
    """How runs that exceed the memory end."""
    runs = {name: failures["cases"][name] for name in ("a little too large", "much too large")}
    holds = all(
        run["exit_code"] == ExitCode.OUT_OF_MEMORY and (run["record"] or {}).get("status") == "out_of_memory"
        for run in runs.values()
    )
    return Observation(found="; ".join(f"{name}: {_ended(run)}" for name, run in runs.items()), holds=holds)


def completes(failures: Mapping[str, Any], *, case: str) -> Observation:
    """Whether the run named `case` completes."""
    run = failures["cases"][case]
    return Observation(found=_or_why(run), holds=run["exit_code"] == ExitCode.DONE)


def completes_or_explains(failures: Mapping[str, Any], *, case: str) -> Observation:
    """Whether the run named `case` completes, or prints a hint."""
    run = failures["cases"][case]
    return Observation(found=_or_why(run), holds=run["exit_code"] == ExitCode.DONE or "hint: " in run["said"])


def _or_why(run: Mapping[str, Any]) -> str:
    if run["exit_code"] == ExitCode.DONE:
        return _ended(run)
    error = next((line for line in run["said"].splitlines() if line.startswith("error: ")), "no error in words")
    return f"{_ended(run)}, {error}"


def interrupted(interrupt: Mapping[str, Any]) -> Observation:
    """State of a profile after Ctrl-C: exit code, status and processes left."""
    if interrupt["ended_before_the_signal"]:
        raise NotSettledError("the profile ended before the signal")
    if "before a kernel" in ((interrupt.get("profile") or {}).get("reason") or ""):
        raise NotSettledError("the signal came before ncu profiled a kernel")
    left = len(interrupt["left_over"])
    said = f"{left} process{'' if left == 1 else 'es'} left"
    found = f"exit code {interrupt['exit_code']}, the run is {interrupt['status']}, {said}"
    holds = (interrupt["exit_code"], interrupt["status"], left) == (ExitCode.INTERRUPTED, "completed", 0)
    return Observation(found=found, holds=holds)


def refused(refusals: Mapping[str, Any]) -> Observation:
    """Whether absent devices are refused, requested by name or by `auto`."""
    cases = refusals["cases"]
    wanted = {"mps": ExitCode.USAGE, "cuda, hidden": ExitCode.USAGE, "auto, hidden": ExitCode.DONE}
    words = {"mps": "no MPS device", "cuda, hidden": "no CUDA device"}
    holds = all(cases[name]["exit_code"] == code for name, code in wanted.items())
    holds = holds and all(text in cases[name]["said"] for name, text in words.items())
    return Observation(found="; ".join(f"{name}: {_or_why(cases[name])}" for name in wanted), holds=holds)


def driver(machine: Mapping[str, Any]) -> Observation:
    """Whether `auto` computes on the GPU, or says why it cannot."""
    if machine["gpu"]:
        return Observation(found=f"auto is {machine['auto']}", holds=machine["auto"] == "cuda")
    if not machine["driver"] and not machine["wsl"]:
        raise NotSettledError("no NVIDIA driver is loaded there")
    return Observation(found=machine["obstacle"] or "nothing", holds=bool(machine["obstacle"] and machine["notes"]))


def wsl(machine: Mapping[str, Any], run: Mapping[str, Any]) -> Observation:
    """Hint under WSL, where Windows controls access to the counters."""
    if not machine["wsl"]:
        raise NotSettledError("it is not WSL")
    profile = (run.get("record") or {}).get("profile") or {}
    found = f"{profile.get('status')}: {profile.get('hint') or profile.get('reason')}"
    return Observation(
        found=found, holds=profile.get("status") == "completed" or "Windows" in (profile.get("hint") or "")
    )


def tests_pass(tests: Mapping[str, Any]) -> Observation:
    """The last line of pytest's output, and whether all tests passed."""
    last = (tests["said"].splitlines() or ["nothing"])[-1]
    if tests["exit_code"] not in (0, 1) or not re.search("passed|failed", last):
        raise NotSettledError(f"no test ran: {last}")
    return Observation(found=last, holds=tests["exit_code"] == 0)
