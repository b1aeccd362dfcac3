"""What a VM does with its request, in a container of the run's image: run, profile, upload."""
