"""Names of Nsight Compute's metrics that a user asks for, as a list or in a file. Standard library only."""

import re
from collections.abc import Iterator
from pathlib import Path

from workload.contract.errors import UsageError

# `dram__bytes.sum.per_second`, `launch__registers_per_thread`.
NAME = re.compile(r"[a-z][a-z0-9_]*__[a-z0-9_]+(\.[a-z0-9_]+)*")
HINT = "--ncu-metrics dram__bytes.sum,l1tex__t_sector_hit_rate.pct, or a file with a name on each line"
# A list of names is some kilobytes: a larger file is another one, typed by mistake.
MOST_BYTES = 1 << 20


def parse(value: object) -> str:
    """Names separated by commas, each once, from such a list or from a file of names.

    A file has names separated by commas or lines, and comments after `#`. It is read here and now, so that the names
    travel with the options to every machine. Raises `UsageError` with the file and the line of a word that is no name.
    """
    text = value if isinstance(value, str) else ""
    listed = [word for _, word in _words(text)]
    if listed and all(map(NAME.fullmatch, listed)):
        return ",".join(dict.fromkeys(listed))
    names = list(_words(_content(text)))
    for line, name in names:
        if not NAME.fullmatch(name):
            raise UsageError(f"'{text}', line {line}: '{name}' is not the name of a metric of ncu", hint=HINT)
    if not names:
        raise UsageError(f"'{text}' names no metric", hint=HINT)
    return ",".join(dict.fromkeys(name for _, name in names))


def names(value: str | None) -> list[str]:
    """The names in a result of `parse`."""
    return value.split(",") if value else []


def _words(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        for word in line.partition("#")[0].split(","):
            yield from ((number, part) for part in word.split())


def _content(value: str) -> str:
    path = Path(value).expanduser()
    try:
        if not value.strip() or not path.is_file():
            raise UsageError(f"'{value}' is neither a file nor a list of metrics of ncu", hint=HINT)
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"'{value}' is no list of metrics: it has more than 1 MB", hint=HINT)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"'{value}' is no list of metrics: it is not text in UTF-8", hint=HINT) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"'{value}' cannot be read: {error}", hint=HINT) from error
