"""`launch`: plan a run, send it to a machine and bring its results home."""
