"""Bundles into a bucket, each complete or absent."""
