"""What identifies the place of a run; `collect` gathers it, `outside` what a container cannot see of its host."""
