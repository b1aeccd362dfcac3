"""Facts of a run's hardware and software: `collect` gathers them; `outside` adds facts that a container cannot see."""
