"""Variation of steps, runs, hosts and zones, and its causes, for `analyze variance`."""
