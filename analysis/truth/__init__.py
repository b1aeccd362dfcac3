"""What the evidence of `python -m workload gpu-truth` says about this project's claims on GPUs."""
