"""Backend for a cluster with Slurm: a launch is an element of a job array."""
