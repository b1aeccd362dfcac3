"""Reader of a results folder: every bundle below it as a row of one table.

The table is kept, as `.analysis/bundles.parquet`, to read the bundles faster the next time. A row is used
again as long as the source files of its bundle keep their state.

What is in a kept table follows from the files of the bundles, which are part of its keys, and from its version: the
sources of this program, the versions of the libraries, and the peaks in use. A file of another version is ignored, as
is a damaged one, so that nobody can forget to make it again. A file is replaced as a whole, by renaming: other
processes never see a part of it, and of two that write at once the last one wins. A folder that is not writable works
without.
"""

import functools
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.loading.processes import share
from analysis.loading.run_row import CEILING_COLUMNS, RUN_COLUMNS, RunRow, row_of
from analysis.loading.series import LAYOUTS, parse, refusals
from workload.contract import bundle, peaks
from workload.contract.errors import BundleError
from workload.contract.fields import RANGES, Kind, clean
from workload.contract.operating_system import replacing

FOLDER = ".analysis"
VERSION_KEY = b"rooflaunch.version"
# Folders with the code and the tables (TOML, CSV) that results depend on.
CODE_FOLDERS = (Path(__file__).parents[1], Path(bundle.__file__).parent)
ENDINGS = (".py", ".toml", ".csv")
LIBRARIES = ("altair", "numpy", "pandas", "pyarrow", "scipy")
# Least number of bundles for a cache. Fewer are read in a tenth of a second, so that no file needs to be written.
FEWEST = 50


def load_table(path: Path, schema: pa.Schema) -> pa.Table | None:
    """The table in this file; None if it is absent, damaged or of another version, or has other columns."""
    try:
        # Opened once: by its path, pyarrow opens the file twice, and another process may replace it in between.
        with path.open("rb") as file:
            table = pq.read_table(file)
    except (OSError, pa.ArrowException, ValueError):
        return None
    kept = (table.schema.metadata or {}).get(VERSION_KEY)
    return table if kept is not None and kept == version() and table.schema.equals(schema) else None


def store_table(path: Path, table: pa.Table) -> None:
    """Replace the file, unless the version is unknown or the folder cannot be written."""
    current = version()
    if current is None:
        return
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with replacing(path, shared=True, durable=False) as file:
            known = table.replace_schema_metadata({VERSION_KEY: current})
            pq.write_table(known, file, compression="zstd", compression_level=1)


def version() -> bytes | None:
    """Hash of the code and of the peaks in use; None if the code is unknown."""
    code = code_version()
    return None if code is None else hashlib.sha256(code + peaks.digest().encode()).hexdigest().encode()


@functools.cache
def code_version() -> bytes | None:
    """Hash of the sources and of the libraries' versions; None if either is unknown, as in a zip archive."""
    try:
        versions = [sys.version, *map(metadata.version, LIBRARIES)]
    except metadata.PackageNotFoundError:
        return None
    digest, has_sources = hashlib.sha256(repr(versions).encode()), False
    for folder in CODE_FOLDERS:
        for path in sorted(folder.rglob("*")):
            if path.suffix in ENDINGS:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode())
                digest.update(content)
                has_sources = True
    return digest.hexdigest().encode() if has_sources else None


def state(path: str) -> str:
    """Size, modification time and inode of a file, as text; `-` if there is none.

    A change that preserves all three is not seen: `--verify` reads every file again.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - 10,000 bundles: a Path costs more than the call
    except (OSError, ValueError):
        return "-"
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


FILE = "bundles.parquet"
# Files from which a row is made.
SOURCES = (bundle.MANIFEST, bundle.RECORD, bundle.STEPS, bundle.TELEMETRY)
SERIES_FILES = tuple(layout.file for layout in LAYOUTS.values())
# Files with the kernels of a bundle, better source first. They are verified here, and read on request.
PROFILES = "ncu"
KERNEL_FILES = (f"{PROFILES}/kernels.csv", f"{PROFILES}/profile.ncu-rep")
# Bundles parsed together: enough to make joined parsing worthwhile, few enough to keep their text small in memory.
CHUNK = 250
# Fewer bundles are read by this process alone, because starting another one takes longer.
FEWEST_SHARED = 750

NAME, FINGERPRINT, REMARKS, CEILINGS = "_name", "_fingerprint", "_remarks", "_ceilings"
ARROW_TYPES = {
    Kind.TEXT: pa.string(),
    Kind.COUNT: pa.int64(),
    **dict.fromkeys(RANGES, pa.float64()),
    Kind.FLAG: pa.bool_(),
    Kind.TIME: pa.timestamp("us", "UTC"),
    Kind.TEXTS: pa.list_(pa.string()),
}
RUN_SCHEMA = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in RUN_COLUMNS.items()])
CEILING_STRUCT = pa.struct([(name, ARROW_TYPES[kind]) for name, kind in CEILING_COLUMNS.items()])
SCHEMA = pa.schema(
    [
        (NAME, pa.binary()),
        (FINGERPRINT, pa.string()),
        (REMARKS, pa.list_(pa.string())),
        *RUN_SCHEMA,
        (CEILINGS, pa.list_(CEILING_STRUCT)),
        *((f"_{name}", pa.list_(layout.struct)) for name, layout in LAYOUTS.items()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A folder or file that is missing from the tables, in full or in part, and the reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Folder of a complete or incomplete bundle. `name`: path relative to the root.

    `fingerprint`: size, modification time and inode of the bundle's files.
    """

    folder: str
    name: bytes
    fingerprint: str


def load_bundles(root: Path, *, verify: bool = False) -> tuple[pa.Table, list[Problem]]:
    """Every bundle in or below `root` as a row of `SCHEMA`, sorted by path, and problems; `verify`: use no kept row."""
    candidates, problems = find(str(root))
    is_sealed = len(candidates) == 1 and candidates[0].name == b""  # `root` is a bundle itself: write nothing into it
    if is_sealed or len(candidates) < FEWEST:
        table, more = read(candidates)
    else:
        path = root / FOLDER / FILE
        kept = None if verify else load_table(path, SCHEMA)
        table, more = _updated(kept, candidates)
        if kept is None or kept is not table:
            store_table(path, table)
    # `root` may have had another name when the table was kept.
    paths = [clean(os.path.join(root, os.fsdecode(name)) if name else str(root)) for name in table[NAME].to_pylist()]  # noqa: PTH118 - 10,000 bundles: a Path costs more than the call
    return table.set_column(SCHEMA.get_field_index("path"), "path", pa.array(paths, pa.string())), problems + more


def _updated(kept: pa.Table | None, candidates: Sequence[Candidate]) -> tuple[pa.Table, list[Problem]]:
    """The rows of all `candidates` in order of their paths, and problems with those that were read.

    Rows of unchanged bundles are taken from `kept`; if no bundle has changed, `kept` itself is returned.
    """
    known: dict[tuple[bytes, str], int] = {}
    if kept is not None:
        keys = zip(kept[NAME].to_pylist(), kept[FINGERPRINT].to_pylist(), strict=True)
        known = {key: row for row, key in enumerate(keys)}
    rows = [known.get((each.name, each.fingerprint)) for each in candidates]
    if kept is not None and rows == list(range(kept.num_rows)):
        return kept, []
    fresh, problems = read([each for each, row in zip(candidates, rows, strict=True) if row is None])
    # State the type, because an empty array would be of type null.
    valid_rows = pa.array([row for row in rows if row is not None], pa.int64())
    reused = SCHEMA.empty_table() if kept is None else kept.take(valid_rows)
    table = pa.concat_tables([reused, fresh])
    return table.take(pc.sort_indices(table, sort_keys=[(NAME, "ascending")])), problems


# --- the folders


def find(root: str) -> tuple[list[Candidate], list[Problem]]:
    """Folders with a manifest or a run.json, sorted by path, and problems for folders with other files only."""
    candidates, problems, visited, with_other_files = [], [], set[str](), list[str]()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        fingerprint = fingerprint_of(folder)
        if fingerprint is not None:
            name = os.fsencode(os.path.relpath(folder, root)) if folder != root else b""
            candidates.append(Candidate(folder=folder, name=name, fingerprint=fingerprint))
            continue
        try:
            folders, has_files = _children(folder, visited)
        except OSError as error:
            problems.append(Problem(path=folder, reason=f"cannot be listed: {error.strerror}"))
            continue
        waiting += folders
        if has_files:
            with_other_files.append(folder)
    candidates.sort(key=lambda each: each.name)
    problems += _foreign(with_other_files, candidates, root)
    return candidates, problems


def fingerprint_of(folder: str) -> str | None:
    """Size, modification time and inode of each file from which the folder's row is made, as text.

    None if the folder has neither a manifest nor a run.json.
    """
    parts = [state(f"{folder}/{name}") for name in SOURCES]
    if parts[0] == parts[1] == "-":
        return None
    if os.path.isdir(f"{folder}/{PROFILES}"):  # noqa: PTH112 - 10,000 bundles: a Path costs more than the call; most runs have no profile
        parts += [state(f"{folder}/{name}") for name in KERNEL_FILES]
    return ";".join(parts)


def _children(folder: str, visited: set[str]) -> tuple[list[str], bool]:
    """Sub-folders except hidden ones, and whether there are files; a link is followed only once, to end loops."""
    folders, has_files = [], False
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if not entry.is_dir():
                has_files = True
                continue
            if entry.is_symlink():
                target = os.path.realpath(entry.path)
                if target in visited:
                    continue
                visited.add(target)
            folders.append(entry.path)
    return folders, has_files


def _foreign(with_other_files: Sequence[str], candidates: Sequence[Candidate], root: str) -> Iterator[Problem]:
    """A problem for each folder with files and without a bundle below; sub-folders of such a folder are left out."""
    above_bundles = {root}
    for each in candidates:
        folder = os.path.dirname(each.folder)  # noqa: PTH120 - as above
        while folder not in above_bundles and len(folder) > len(root):
            above_bundles.add(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120
    reported: list[str] = []
    # Sort parents directly before their children.
    for folder in sorted(with_other_files, key=lambda each: Path(each).parts):
        if folder in above_bundles or (reported and folder.startswith(f"{reported[-1]}{os.sep}")):
            continue
        reported.append(folder)
        yield Problem(
            path=folder, reason=f"not a rooflaunch bundle: it has neither {bundle.MANIFEST} nor {bundle.RECORD}"
        )


# --- reading bundles


def read(candidates: Sequence[Candidate]) -> tuple[pa.Table, list[Problem]]:
    """Verify and read bundles; a bundle that is incomplete, damaged, foreign or too new gives a problem, and no row."""
    chunks = [candidates[begin : begin + CHUNK] for begin in range(0, len(candidates), CHUNK)]
    is_shared = len(candidates) >= FEWEST_SHARED
    parts = share(_read_chunk, chunks) if is_shared else list(map(_read_chunk, chunks))
    tables = [SCHEMA.empty_table(), *(table for table, _ in parts)]
    return pa.concat_tables(tables), [problem for _, problems in parts for problem in problems]


def _read_chunk(candidates: Sequence[Candidate]) -> tuple[pa.Table, list[Problem]]:
    read_ones: list[tuple[Candidate, RunRow, dict[str, bytes | None]]] = []
    problems = []
    for each in candidates:
        try:
            read_ones.append((each, *_read_one(each.folder)))
        except (BundleError, OSError, ValueError) as error:
            # Without the folder, which is printed before the reason.
            reason = str(error).removeprefix(f"'{each.folder}' ").removeprefix("is ")
            problems.append(Problem(path=each.folder, reason=reason))
    series = {name: parse(layout, [contents[name] for _, _, contents in read_ones]) for name, layout in LAYOUTS.items()}
    rows = [row for _, row, _ in read_ones]
    # Without steps that can be trusted, no figure of a run can.
    impossible = refusals(series["steps"].lists, imported=[row.cells["imported"] for row in rows])
    refused = [
        "; ".join(remarks) or reason for remarks, reason in zip(series["steps"].remarks, impossible, strict=True)
    ]
    remarks = [[*row.remarks, *series["telemetry"].remarks[number]] for number, row in enumerate(rows)]
    columns: dict[str, Any] = {
        NAME: pa.array([each.name for each, _, _ in read_ones], pa.binary()),
        FINGERPRINT: pa.array([each.fingerprint for each, _, _ in read_ones], pa.string()),
        REMARKS: pa.array(remarks, pa.list_(pa.string())),
        **{field.name: pa.array([row.cells[field.name] for row in rows], field.type) for field in RUN_SCHEMA},
        CEILINGS: pa.array([row.ceilings for row in rows], pa.list_(CEILING_STRUCT)),
        **{f"_{name}": each.lists for name, each in series.items()},
    }
    table = pa.table(columns, schema=SCHEMA)
    if any(refused):
        problems += [
            Problem(path=each.folder, reason=f"cannot be: {reason}")
            for (each, _, _), reason in zip(read_ones, refused, strict=True)
            if reason
        ]
        table = table.filter(pa.array([not reason for reason in refused]))
    return table, problems


def _read_one(folder: str) -> tuple[RunRow, dict[str, bytes | None]]:
    sealed = bundle.read(Path(folder), keep=SERIES_FILES)
    listed = {file.name for file in sealed.files}
    row = row_of(sealed.document)
    unlisted = [
        f"{name} is not in {bundle.MANIFEST}: it was not verified and is not read"
        for name in (bundle.STEPS, bundle.TELEMETRY, *KERNEL_FILES)
        if name not in listed and os.path.exists(f"{folder}/{name}")  # noqa: PTH110 - 10,000 bundles, as above
    ]
    kernels = next((name for name in KERNEL_FILES if name in listed), None)
    row = replace(row, cells={**row.cells, "kernels_file": kernels}, remarks=[*row.remarks, *unlisted])
    # A file that the manifest does not list was not verified.
    return row, {name: sealed.contents.get(layout.file) for name, layout in LAYOUTS.items()}
