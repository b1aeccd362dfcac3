"""`launch`: plan a run, send it to a machine and copy its results back."""
