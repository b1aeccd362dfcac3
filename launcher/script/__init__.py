"""A user's own training script instead of our trainer: its command line, and how its files get to other machines."""
