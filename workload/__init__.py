"""The instrumented trainer: `python -m workload train|ceilings|env|models`."""

__version__ = "0.2.0"
