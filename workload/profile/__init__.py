"""The profile pass: a second, separate process after the timing run, by Nsight Compute or torch.profiler.

Only `profiled` imports torch: whoever starts a profile holds no GPU while it runs.
"""
