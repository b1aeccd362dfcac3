"""Sources of training steps: our own training step, or hooks in a user's script.

`training_step` trains our model, and `complexity` counts the model's FLOP. A user's script is run and ended by
`program`: `hooks` observes its batches, backward passes and optimizer steps, `step_log` buffers these events,
`step_finder` groups them into steps, and `session` has each step counted by `step_work` or timed.
"""
