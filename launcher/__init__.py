"""`launch`: plans a run, sends it somewhere and brings it home."""
