"""`python -m rooflaunch`: the commands of `python -m workload`, also beside a user's own module `workload`."""

import sys

if __name__ == "__main__":
    # Python has looked for `rooflaunch` in the working folder first, as `python train.py` never does.
    if not sys.flags.safe_path:
        del sys.path[0]
    from rooflaunch.programs import trainer

    # A script that is run takes the place of __main__, so this is found out before.
    is_alone = vars(sys.modules["__main__"]) is globals()
    code = trainer()
    from workload.contract import process

    process.end(code, is_alone=is_alone)
