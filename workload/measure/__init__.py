"""Clocks, the recorder of steps, telemetry, CPU time, and the ceilings of this machine."""
