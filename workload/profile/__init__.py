"""Profile pass: a second, separate process after the timing run, by Nsight Compute or torch.profiler.

Only `profiled_step` and `script_tools` import torch, so that the process which starts a profile holds no GPU while the
profile runs.
"""
