"""Sections of a report, a module each: pure functions of the evidence."""
