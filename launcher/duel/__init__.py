"""`launch duel`: measure two variants in turn on this machine, until it is known whether one of them is slower."""

# Run options that a duel lacks: it repeats runs by itself, and it does not profile.
LEFT_OUT = ("repeats", "profile", "profile_steps", "profile_step_bytes", "profile_throughput", "ncu_metrics")
# Word between the two sides, after `--`.
SEPARATOR = "---"
