"""Convert other programs' measurements into bundles. Every fact in a bundle is from the file or from the user.

An imported bundle is an ordinary sealed bundle. Its run.json has a section `imported`: the file, its sha256, and the
meaning of each column. Every fact that is not stated is None. The bundle contains the file itself.
"""

import hashlib
import re
from pathlib import Path

from analysis.importing import log
from analysis.importing.bundle import File, UserFacts
from analysis.readers import iteration_log, kineto, tables
from analysis.readers.tables import GZIP, NCU_REPORT_SUFFIX, Decoded, decode, is_gpu_trace
from workload.contract.errors import NothingToDoError, UsageError

__all__ = ["UserFacts", "import_file"]

# Lines that ncu prints before its table or without --csv, or column names of the table, quoted or not, in any order.
NCU_MARKS = re.compile(
    rb'^==[A-Z]+==|^"?ID"?[,;\t|]|"Kernel Name"|(?:^|[,;\t|])Kernel Name[,;\t|\r\n]'
    rb"|, Context \d+, Stream \d+",
    re.MULTILINE,
)
LOOKED_AT_BYTES = 1 << 20


def import_file(path: Path, user: UserFacts, *, output: Path) -> list[Path]:
    """Make a bundle of each run in a file, all or none; returns their folders.

    Raises `UsageError` for a file that cannot be understood or lacks required facts, `NothingToDoError` for a file that
    `output` already contains.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}", hint="analyze import FILE.csv") from error
    file = File(path=path, content=content, sha256=hashlib.sha256(content).hexdigest())
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
            trace.make(file, text, user.checked(), output)
            if text
            else trace.make_of_profile(file, user.checked(), output)
        ]
    return log.make(file, user.checked(), output)


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
