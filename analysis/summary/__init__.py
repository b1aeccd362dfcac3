"""Throughput and cost of each configuration in each place, for `analyze summary` and the report."""
