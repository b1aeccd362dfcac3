"""The life of a run: prepare, warm up, measure, finish or fail."""
