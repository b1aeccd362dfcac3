"""The instrumented trainer: `python -m workload train|ceilings|env|models`."""

__version__ = "0.1.0"
