"""Collects the evidence of one GPU: which of this project's assumptions about GPUs hold. `analyze gpu-truth` reads it.

Requires torch, torchvision, numpy, psutil, nvidia-ml-py and Nsight Compute, and nothing else.
"""
