"""The instrumented trainer: `python -m workload train|profile|ceilings|…`.

Training scripts import `rooflaunch`. `workload.step()` and `workload.step_done()` are the same functions.
"""

from rooflaunch import step, step_done

__version__ = "0.2.0"
__all__ = ["step", "step_done"]
