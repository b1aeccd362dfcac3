import errno
import os

import pytest

from workload.contract.errors import OutOfDeviceMemoryError, RunFailedError, explain_shortage

NO_MEMORY = (
    OutOfDeviceMemoryError,
    "the trainer ran out of memory before its first step",
    "more memory (--memory for a container, `ulimit -v` for a process), or a smaller --batch-size",
)
NO_THREADS = (
    RunFailedError,
    (
        "the trainer could not start another thread or process before its first step: a limit of this machine "
        "was reached"
    ),
    "raise the limit (`ulimit -u`, or pids.max of the control group), or fewer --workers",
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), NO_MEMORY),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), NO_MEMORY),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), NO_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 4 bytes"), NO_MEMORY),
        (RuntimeError("std::bad_alloc"), NO_MEMORY),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), NO_MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), NO_MEMORY),
        (RuntimeError("FIND was unable to find an engine to execute this computation"), None),
        (RuntimeError("can't start new thread"), NO_THREADS),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), NO_THREADS),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ValueError("out of memory"), None),
        (ImportError("No module named 'torch'"), None),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None),
    ],
    ids=str,
)
def test_what_is_a_shortage(error: Exception, expected: tuple[type[Exception], str, str] | None) -> None:
    found = explain_shortage(error, "before its first step")
    assert (found and (type(found), str(found), found.hint)) == expected
