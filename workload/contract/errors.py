"""Every error that a user can cause, one exit code per class. Standard library only; printed by `main()` alone."""

import errno
import sys
from enum import IntEnum
from typing import ClassVar

from workload.contract.invocation import as_typed
from workload.contract.text import cut_long_words, printable


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    BUG = 1
    USAGE = 2
    NOTHING_TO_DO = 3
    TOOL = 4
    NO_CAPACITY = 5
    RUN_FAILED = 6
    OUT_OF_MEMORY = 7
    BAD_BUNDLE = 8
    NOT_POOLABLE = 9
    FINDINGS = 10
    # Results of a duel, B compared with A; if both are equally fast, the exit code is 0.
    SLOWER = 11
    FASTER = 12
    NOT_DECIDABLE = 13
    INTERRUPTED = 130


class RooflaunchError(Exception):
    """Error whose cause is outside the program; each subclass has its own exit code.

    Its message names the thing, its value and the broken rule; its hint gives the next step.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        return str(self.args[0])

    def report(self) -> str:
        """Error and hint, as two lines for the user, with control characters of foreign names escaped.

        A value or a word has at most 200 characters. Commands in the hint are written as the user can type them.
        """
        error, hint = (
            cut_long_words(printable(cut_long_words(text, sys.argv))) for text in (self.headline(), as_typed(self.hint))
        )
        return f"error: {error}\nhint: {hint}"

    def headline(self) -> str:
        """Text after `error:`."""
        return str(self)


class UsageError(RooflaunchError):
    """A bad option, configuration file or input file."""

    exit_code = ExitCode.USAGE


class NothingToDoError(RooflaunchError):
    """The request selects nothing."""

    exit_code = ExitCode.NOTHING_TO_DO


class ToolError(RooflaunchError):
    """A tool or library that the request needs is missing or failed."""

    exit_code = ExitCode.TOOL


class NoCapacityError(RooflaunchError):
    """No zone has the machine now, or the project is not allowed to use it."""

    exit_code = ExitCode.NO_CAPACITY


class RunFailedError(RooflaunchError):
    """The training run failed before its end."""

    exit_code = ExitCode.RUN_FAILED


class LostRankError(RunFailedError):
    """A rank failed because another rank of the same run had ended."""


class OutOfDeviceMemoryError(RunFailedError):
    """The configuration does not fit the device's memory, which is recorded as a result."""

    exit_code = ExitCode.OUT_OF_MEMORY


class BundleError(RooflaunchError):
    """A bundle is incomplete, damaged, of another tool or of another schema."""

    exit_code = ExitCode.BAD_BUNDLE


class InterruptedRunError(RooflaunchError):
    """The user or a program interrupted the run, by Ctrl-C or SIGTERM."""

    exit_code = ExitCode.INTERRUPTED


# --- lack of memory or threads

# Messages of torch's allocators, C++ and the dynamic loader. A library that cannot be mapped raises ImportError.
NO_MEMORY = (
    "can't allocate memory", "not enough memory", "out of memory", "Cannot allocate memory", "bad_alloc",
    "failed to map segment from shared object", "CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED",
)  # fmt: skip
# cuDNN's messages if no algorithm's workspace fits. With free memory they mean that cuDNN has no such algorithm.
NO_WORKSPACE = (
    "FIND was unable to find an engine",
    "GET was unable to find an engine",
    "Unable to find a valid cuDNN algorithm",
)
NO_THREADS = ("can't start new thread", "Resource temporarily unavailable", "pthread_create")


def is_memory_shortage(error: BaseException) -> bool:
    """Whether the error is a refused allocation, of device or host memory."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError | ImportError) and any(words in str(error) for words in NO_MEMORY)


def is_workspace_shortage(error: BaseException) -> bool:
    """Whether cuDNN found no algorithm; if little memory is free, the cause is a lack of memory."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_WORKSPACE)


def is_thread_shortage(error: BaseException) -> bool:
    """Whether the error is a refused thread or process."""
    return isinstance(error, RuntimeError | OSError) and any(words in str(error) for words in NO_THREADS)


def explain_shortage(error: BaseException, when: str) -> RooflaunchError | None:
    """Error that a user can act on; None if `error` has another cause. `when`: time of the error, in words."""
    if is_memory_shortage(error):
        return OutOfDeviceMemoryError(
            f"the trainer ran out of memory {when}",
            hint="more memory (--memory for a container, `ulimit -v` for a process), or a smaller --batch-size",
        )
    if is_thread_shortage(error):
        return RunFailedError(
            f"the trainer could not start another thread or process {when}: a limit of this machine was reached",
            hint="raise the limit (`ulimit -u`, or pids.max of the control group), or fewer --workers",
        )
    return None
