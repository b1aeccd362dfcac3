"""`launch duel`: two variants in turn on this machine, until one is known to be slower."""

# Run options that a duel has not: it repeats by itself, and a profile is no part of what is timed.
LEFT_OUT = ("repeats", "profile", "profile_steps", "profile_step_bytes", "profile_throughput")
