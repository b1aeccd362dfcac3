"""Facts of a run's hardware and software: `collect` gathers them; `cloud` has those that a container cannot see."""
