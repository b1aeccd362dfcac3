"""`python -m rooflaunch`: the commands of `python -m workload`, wherever a user has a `workload` of their own."""

import sys
from pathlib import Path

# Python has looked for `rooflaunch` in the working folder first, as `python train.py` never does.
if not sys.flags.safe_path:
    del sys.path[0]
# A folder of PYTHONPATH may hold a `workload` too. Its modules are found by its own path from here on.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import workload.__main__

del sys.path[0]

if __name__ == "__main__":
    sys.exit(workload.__main__.enter())
