"""Bundles on their way to a bucket and home. google-cloud-storage is imported by functions alone."""
