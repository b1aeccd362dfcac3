"""Roofs of devices, steps below them, and what limits each step, for `analyze roofline`."""
