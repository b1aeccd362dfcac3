"""Google Cloud Batch: its queue gives each task a VM with the image; the agent in the image does the rest."""
