"""Measuring somebody's own training script: `python -m rooflaunch script -- train.py ARGS`.

`command` reads the command line, `program` runs the script, `hooks` hears of its batches, backward passes and optimizer
steps, `pattern` makes steps of them, `session` times the steps, `work` counts what one of them computes, and `bundle`
writes it all down.
"""
