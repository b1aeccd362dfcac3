"""Runs on Compute Engine: planned here, done by a VM that deletes itself, followed through a bucket."""
