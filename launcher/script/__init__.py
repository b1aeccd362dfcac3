"""Somebody's own training script in place of our trainer: its words, and its way to other machines."""
