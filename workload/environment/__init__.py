"""Facts that identify the place of a run; `collect` gathers them, `outside` adds facts that a container cannot see."""
