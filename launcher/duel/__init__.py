"""`launch duel`: two variants in turn on this machine, until one is known to be slower."""

# Run options that a duel has not: it repeats by itself, a profile is no part of what is timed, and it runs no script.
LEFT_OUT = ("repeats", "profile", "profile_steps", "profile_step_bytes", "profile_throughput", "samples_per_step")
