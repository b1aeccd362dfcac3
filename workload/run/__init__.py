"""The life of one run: prepare, warm up, measure, finish or fail."""
