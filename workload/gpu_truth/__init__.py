"""The evidence of one GPU: which of this project's assumptions about GPUs hold on it. `analyze gpu-truth` reads it.

It needs torch, torchvision, numpy, psutil, nvidia-ml-py and Nsight Compute, and nothing else.
"""
