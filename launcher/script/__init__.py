"""A user's own training script instead of our trainer: its words, and how it gets to other machines."""
