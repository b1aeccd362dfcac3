"""Judges this project's claims about GPUs by the evidence that `python -m workload gpu-truth` collects."""
