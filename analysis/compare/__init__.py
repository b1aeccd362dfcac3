"""Ratios between runs that differ in one fact, for `analyze compare`: which pairs, and how certain."""
