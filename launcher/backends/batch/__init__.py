"""Google Cloud Batch: starts a VM with the image for each queued task; the agent in the image does the runs."""
