"""Compute Engine: the launcher plans a run, a VM does the run and deletes itself, and a bucket receives the results."""
