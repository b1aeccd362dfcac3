"""One run from start to end: prepare, warm up, measure, finish or fail."""
