"""`analyze` in the process of a test."""

from collections.abc import Callable

# The fixture `analyze` takes the words of a command line, and returns exit code, stdout and stderr.
Analyze = Callable[..., tuple[int, str, str]]
