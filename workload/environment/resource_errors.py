"""Recognises errors from a machine's lack of memory or threads, as opposed to a wrong configuration.

Standard library only.
"""

import errno

from workload.contract.errors import OutOfDeviceMemoryError, RooflaunchError, RunFailedError

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


def explain(error: BaseException, when: str) -> RooflaunchError | None:
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
