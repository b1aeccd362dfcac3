"""Google Cloud Batch: its queue gives each task a VM with the image; the agent in it does the rest."""
