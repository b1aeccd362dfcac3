"""Bundles in folders as tables of runs, steps and telemetry; runs as cases, and groups of runs that may be pooled."""
