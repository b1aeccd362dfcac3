"""`python -m rooflaunch`: the commands of `python -m workload`, also beside a user's own module `workload`."""

import sys

if __name__ == "__main__":
    # Python has looked for `rooflaunch` in the working folder first, as `python train.py` never does.
    if not sys.flags.safe_path:
        del sys.path[0]
    from rooflaunch.programs import trainer

    sys.exit(trainer())
