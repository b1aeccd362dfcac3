"""Starts the profile of a timing run, in a separate process. Standard library only."""

from collections.abc import Sequence

from workload import log
from workload.contract.errors import ExitCode, InterruptedRunError
from workload.contract.interrupt import run_child
from workload.contract.invocation import SCRIPTS


def profile_first(folder: str, script: Sequence[str] = (), *, data: str | None = None) -> int:
    """Profile the bundle. A failed profile is logged and leaves a complete run; only Ctrl-C changes the exit code.

    `script`: a user's own script and its arguments, which the bundle keeps without secrets; `data`: value for `{data}`.
    """
    command = [*SCRIPTS, "profile", folder]
    command += [] if data is None else ["--data", data]
    command += ["--", *script] if script else []
    # The folder has been printed already.
    ended = run_child(command, on_line=lambda _: None)
    failure = ended.error()
    if isinstance(failure, InterruptedRunError):
        raise failure
    if failure:
        log.LOGGER.error("note       no profile, and the run is complete: %s", failure)
    return ExitCode.INTERRUPTED if ended.code == ExitCode.INTERRUPTED else ExitCode.DONE
