"""Transfer of bundles to a store and back. google-cloud-storage is imported only inside functions."""
