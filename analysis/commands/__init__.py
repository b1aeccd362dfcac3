"""Commands of `analyze`, a module each, with their options; dependencies are imported when a command runs."""
