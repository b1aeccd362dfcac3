"""Detects CPUs that report instructions, for example AMX in a virtual machine, and then fault on them.

PyTorch's oneDNN uses what the CPU reports, and the process dies of SIGILL. Therefore a child process tries a small step
first. If the child dies, oneDNN is limited to an older instruction set,
https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html.
"""

import faulthandler
import os
import signal
import sys
from typing import Any

import torch
from torch import nn

from workload.contract.errors import UsageError

if sys.platform == "win32":
    resource: Any = None
else:
    import resource

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
# oneDNN's names of instruction sets without AMX, newest first.
OLDER_INSTRUCTIONS = ("AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")


def hold_back(dtype: torch.dtype) -> str | None:
    """Make `dtype` usable on this CPU; return a note if instructions had to be disabled, else None.

    Must be called before the first use of oneDNN, which reads the variable ONEDNN_MAX_CPU_ISA only once. Raises
    `UsageError` if no older instruction set helps.
    """
    if not faults(dtype):
        return None
    for name in () if ISA_VARIABLE in os.environ else OLDER_INSTRUCTIONS:
        os.environ[ISA_VARIABLE] = name
        if not faults(dtype):
            return f"programs crash on instructions that this CPU reports: {ISA_VARIABLE}={name} was set"
        del os.environ[ISA_VARIABLE]
    raise UsageError(f"torch's kernels for {dtype} crash on this CPU (SIGILL)", hint="--precision fp32")


def faults(dtype: torch.dtype) -> bool:
    """Whether a small step kills a child process by an illegal instruction.

    Linux only, False elsewhere: another system's libraries do not survive a fork.
    """
    if sys.platform != "linux":
        return False
    child = os.fork()
    if child == 0:
        # No exception may leave the child, because it shares the parent's open files. An exception means that torch
        # refuses the type: the CPU does not fault.
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _small_step(dtype)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGILL


def _small_step(dtype: torch.dtype) -> None:
    """Run a convolution and a matrix product, forward and backward, on one thread: forks have no thread pool."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(32 * 36, 64)).to(dtype)
    model(torch.randn(4, 16, 8, 8, dtype=dtype)).sum().backward()
    torch.mm(*(torch.randn(128, 128, dtype=dtype) for _ in range(2)))
