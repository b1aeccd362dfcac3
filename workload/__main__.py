"""Entry point of the trainer, `python -m workload`."""

import sys

from workload.contract import process, trainer
from workload.contract.errors import InterruptedRunError


def enter() -> int:
    """Run the command in this process's arguments; return its exit code."""
    return process.enter(_start)


def _start() -> int:
    """Run the command; a signal ends it cleanly, even while it imports torch."""
    process.end_with_parent()
    try:
        with process.stoppable():
            from workload.cli import main  # noqa: PLC0415 - takes time, in which Ctrl-C may come

            return main(sys.argv[1:])
    except InterruptedRunError as error:
        from workload.contract.ranks import is_reported_by_parent  # noqa: PLC0415 - needed after a signal only

        if not is_reported_by_parent(sys.argv):
            print(error.report(), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    if sys.argv[1:] == [trainer.SERVER] and sys.platform == "linux":
        from workload.run import start_server

        start_server.serve(enter)
    # A script that is run takes the place of __main__, so this is found out before.
    is_alone = vars(sys.modules["__main__"]) is globals()
    process.end(enter(), is_alone=is_alone)
