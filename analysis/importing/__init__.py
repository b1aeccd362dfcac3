"""Convert other programs' measurements into bundles. Every fact in a bundle is from the file or from the user.

An imported bundle is an ordinary sealed bundle. Its run.json has a section `imported`: the file, its sha256, and the
meaning of each column. Every fact that is not stated is None. The bundle contains the file itself.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from analysis.importing import log
from analysis.importing.bundle import File, UserFacts
from analysis.readers import iteration_log, kineto, tables
from analysis.readers.tables import GZIP, NCU_REPORT_SUFFIX, Decoded, decode, is_gpu_trace
from workload.contract.errors import NothingToDoError, UsageError

__all__ = ["UserFacts", "import_file", "of_runs"]

# Lines that ncu prints before its table or without --csv, or column names of the table, quoted or not, in any order.
NCU_MARKS = re.compile(
    rb'^==[A-Z]+==|^"?ID"?[,;\t|]|"Kernel Name"|(?:^|[,;\t|])Kernel Name[,;\t|\r\n]'
    rb"|, Context \d+, Stream \d+",
    re.MULTILINE,
)
LOOKED_AT_BYTES = 1 << 20


def of_runs(paths: Sequence[Path]) -> list[list[Path]]:
    """Files of each run: traces of several ranks in one folder are of one run, in the order of the ranks.

    Raises `UsageError` if two of these traces are of one rank.
    """
    runs: dict[object, dict[int, Path]] = {}
    for path in paths:
        rank, ranks = _rank(path) or (0, 0)
        of_run = runs.setdefault((path.parent, ranks) if ranks else object(), {})
        if ranks and rank in of_run:
            raise UsageError(
                f"'{of_run[rank]}' and '{path}' are both of rank {rank}", hint="import the traces of one run at a time"
            )
        of_run[rank] = path
    return [[path for _, path in sorted(of_run.items())] for of_run in runs.values()]


def _rank(path: Path) -> tuple[int, int] | None:
    """Rank and number of ranks of a trace; None for other files, and for those that cannot be read."""
    try:
        with path.open("rb") as file:
            start = decode(file.read(LOOKED_AT_BYTES)).content[:LOOKED_AT_BYTES].decode(errors="replace")
    except OSError:
        return None
    return kineto.rank_in(start) if kineto.is_trace(start) else None


def import_file(path: Path, user: UserFacts, *, output: Path, beside: Sequence[Path] = ()) -> list[Path]:
    """Make a bundle of each run in a file, all or none; returns their folders. `beside`: traces of its other ranks.

    Raises `UsageError` for a file that cannot be understood or lacks required facts, `NothingToDoError` for a file that
    `output` already contains.
    """
    file = _file(path)
    held = _imported(output).get(file.sha256)
    if held:
        raise NothingToDoError(
            f"'{file.path}' is imported already: {held}", hint=f"remove {held} first to import it with other options"
        )
    # Modules that load pandas are imported here, and only for a file of the kind that they read.
    text = _trace(file)
    if text or _is_ncu(file):
        from analysis.importing import trace  # noqa: PLC0415

        return [
            trace.make(file, text, user.checked(), output, beside=map(_file, beside))
            if text
            else trace.make_of_profile(file, user.checked(), output)
        ]
    return log.make(file, user.checked(), output)


def _file(path: Path) -> File:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}", hint="analyze import FILE.csv") from error
    return File(path=path, content=content, sha256=hashlib.sha256(content).hexdigest())


def _imported(output: Path) -> dict[str, str]:
    """Folders of the imported bundles in `output`, by sha256 of the imported file."""
    from analysis.loading.index import load_bundles  # noqa: PLC0415 - pyarrow, once the file was found to be there

    if not output.is_dir():
        return {}
    table, _ = load_bundles(output)
    pairs = zip(table["imported_sha256"].to_pylist(), table["path"].to_pylist(), strict=True)
    return {sha256: path for sha256, path in pairs if sha256}


def _trace(file: File) -> Decoded | None:
    """The text of a file in Chrome's trace format; None for another format."""
    start = file.content[:LOOKED_AT_BYTES]
    if not start.startswith(GZIP) and not start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith((b"{", b"[")):
        return None
    decoded = decode(file.content)
    return decoded if kineto.is_trace(decoded.content[:LOOKED_AT_BYTES].decode(errors="replace")) else None


def _is_ncu(file: File) -> bool:
    if file.path.suffix == NCU_REPORT_SUFFIX:
        return True
    head = file.content if file.content.startswith(GZIP) else file.content[:LOOKED_AT_BYTES]
    start = decode(head).content[:LOOKED_AT_BYTES]
    text = start.decode(errors="replace")
    begins_as_log = tables.find_header(text.split("\n", 1)[0], iteration_log.is_log) is not None
    return not begins_as_log and bool(NCU_MARKS.search(start) or is_gpu_trace(text))
