"""Table of `analyze compare`: pairs of runs that differ in one fact, their ratio of throughput, its interval."""
