"""Collects and judges the evidence of one GPU: which of this project's assumptions about GPUs hold.

Requires torch, torchvision, numpy, psutil, nvidia-ml-py and Nsight Compute, and nothing else.
"""
