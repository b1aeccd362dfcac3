"""Reads traces of torch.profiler: operators and kernels, their time, FLOP and bytes, and the model that ran."""
