"""The commands of `analyze`: a module each, with its options; what it needs is imported when it runs."""
