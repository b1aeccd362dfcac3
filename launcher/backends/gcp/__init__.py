"""Compute Engine: a run is planned here, done by a VM that deletes itself, and followed through a bucket."""
