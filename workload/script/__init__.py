"""Measures a user's own training script: `python -m rooflaunch script -- train.py ARGS`.

`command` reads the command line, `program` runs the script, `hooks` observes its batches, backward passes and optimizer
steps, `pattern` groups them into steps, `session` times the steps, `work` counts the operations of one, and `run`
writes the bundle.
"""
