"""Kernels and operators of profiles: sums, shares and tables, for `analyze kernels`."""
