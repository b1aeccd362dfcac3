"""What a machine runs out of, told apart from mistakes in the configuration. Standard library only."""

import errno

from workload.contract.errors import OutOfDeviceMemoryError, RooflaunchError, RunFailedError

# torch's allocators, C++ and the dynamic loader; a library that cannot be mapped is an ImportError to Python.
NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Cannot allocate memory",
    "bad_alloc",
    "failed to map segment from shared object",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
# How cuDNN words it that no algorithm's workspace fits; with memory left it means that it has no such algorithm.
NO_WORKSPACE = (
    "FIND was unable to find an engine",
    "GET was unable to find an engine",
    "Unable to find a valid cuDNN algorithm",
)
NO_THREADS = ("can't start new thread", "Resource temporarily unavailable", "pthread_create")


def is_of_memory(error: BaseException) -> bool:
    """Whether memory was refused, the device's or the host's."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError | ImportError) and any(words in str(error) for words in NO_MEMORY)


def is_of_workspace(error: BaseException) -> bool:
    """Whether cuDNN found no algorithm, which is for want of memory where little of it is free."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_WORKSPACE)


def is_of_threads(error: BaseException) -> bool:
    """Whether a thread or a process was refused."""
    return isinstance(error, RuntimeError | OSError) and any(words in str(error) for words in NO_THREADS)


def explain(error: BaseException, when: str) -> RooflaunchError | None:
    """The error a user can act on, with `when` it came; None for what is no shortage."""
    if is_of_memory(error):
        return OutOfDeviceMemoryError(
            f"the trainer ran out of memory {when}",
            hint="more memory (--memory for a container, `ulimit -v` for a process), or a smaller --batch-size",
        )
    if is_of_threads(error):
        return RunFailedError(
            f"the trainer could not start another thread or process {when}: a limit of this machine is reached",
            hint="raise the limit (`ulimit -u`, or pids.max of the control group), or fewer --workers",
        )
    return None
