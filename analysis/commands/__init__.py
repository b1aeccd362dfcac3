"""What each command of `analyze` does: a module each, imported when the command runs."""
