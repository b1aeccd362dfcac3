"""Torchvision's models, and the FLOP of PyTorch's operations."""
