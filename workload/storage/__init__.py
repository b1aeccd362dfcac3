"""Transfer of bundles to a store and back. google-cloud-storage and boto3 are imported only inside functions."""
