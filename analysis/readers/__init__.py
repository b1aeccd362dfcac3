"""Readers of files that other programs wrote: encodings, tables, logs, profiles and traces. They make no bundles."""
