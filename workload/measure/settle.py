"""Lets the device cool down before the warm-up of a run, so that no run profits from an early position in its task.

Each run of a task waits, within a limit, until the device is about as cool as before the first run. The bundle records
the target and the time waited.
"""

import time
from collections.abc import Callable

import psutil

from workload.contract.process import raise_if_interrupted
from workload.contract.record import Settling
from workload.contract.spec import Device
from workload.measure.ceilings import Report, sensors_of

# Sensors report whole degrees; on an idle device the reading varies by one or two degrees.
TOLERANCE_C = 5.0
# Longest wait, an assumption: the colder the device, the more slowly it cools, and a rented machine costs money during
# the wait. A missed target is recorded.
LIMIT_S = 60.0
LOOK_EVERY_S = 1.0
# Sensors of the CPU's package, by the kernel's driver: Intel, AMD, AMD with zenpower, ARM.
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")

Thermometer = Callable[[], float | None]


def thermometer_of(device: Device) -> Thermometer:
    """Function that reads the device's temperature in degrees Celsius: NVML's for a GPU, the kernel's for a CPU."""
    if device is Device.CPU:
        return _cpu_temperature_c
    sample = sensors_of(device)

    def read() -> float | None:
        value = sample().get("temperature_c") if sample else None
        return float(value) if isinstance(value, int | float) else None

    return read


def _cpu_temperature_c() -> float | None:
    """Temperature of the CPU's hottest sensor; None without a sensor (virtual machines), or if not on Linux."""
    read = getattr(psutil, "sensors_temperatures", dict)
    readings = [sensor.current for name, sensors in read().items() if name in CPU_SENSORS for sensor in sensors]
    return max(readings, default=None)


def settle(
    thermometer: Thermometer,
    target_c: float | None,
    *,
    report: Report = lambda _: None,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Settling:
    """Wait up to a minute for a temperature of at most `target_c` + 5 degrees; `report` receives a message."""
    before_c = after_c = thermometer()
    if before_c is None or target_c is None:
        return Settling(target_c=target_c, before_c=before_c, waited_s=0.0, why="the device reports no temperature")
    began_s, looks = now_s(), 0
    while after_c is not None and after_c > target_c + TOLERANCE_C and now_s() - began_s < LIMIT_S:
        raise_if_interrupted()
        sleep(LOOK_EVERY_S)
        after_c, looks = thermometer(), looks + 1
    waited_s = round(now_s() - began_s, 3) if looks else 0.0
    is_reached = after_c is not None and after_c <= target_c + TOLERANCE_C
    why = None
    if after_c is None:
        why = "the device stopped reporting its temperature"
    elif not is_reached:
        why = f"still {after_c - target_c:.0f} degrees above after {waited_s:.0f} s"
    if waited_s:
        outcome = why or f"{before_c:.0f} to {after_c:.0f} °C in {waited_s:.0f} s"
        report(f"settle     towards {target_c:.0f} °C, as before the first run of the task: {outcome}")
    return Settling(
        target_c=target_c, before_c=before_c, after_c=after_c, waited_s=waited_s, is_reached=is_reached, why=why
    )
