"""The instrumented trainer: `python -m workload train|profile|ceilings|…`.

`import rooflaunch` is what a training script says of itself; `workload.step()` and `workload.step_done()` are the same.
"""

from rooflaunch import step, step_done

__version__ = "0.2.0"
__all__ = ["step", "step_done"]
