"""Text and tables in files of other programs: unpack, convert to UTF-8, split into cells. Standard library only."""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from workload.contract.errors import UsageError
from workload.contract.ncu_csv import ID, NAME, PROCESS

# Value of `Decoded.encoding` for content that is no text, because it contains zero bytes.
BINARY = "binary"
# Reports of Nsight Compute.
NCU_REPORT_SUFFIX = ".ncu-rep"
GZIP = b"\x1f\x8b"
# A header of ncu has some thousand metrics, and its end shows the kind of line ends.
LOOKED_AT_BYTES = 1 << 16
# Logs and profiles of 2 GB exist; a file that unpacks to more than this is probably a decompression bomb.
MOST_BYTES = 4 << 30
_CHUNK_BYTES = 16 << 20
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Windows' encoding before UTF-8; tried last, because it has a character for nearly every byte.
_LAST_RESORT = "cp1252"
_AS_WINDOWS = "the file was read as Windows-1252"


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Content as UTF-8 without a byte order mark; `remarks`: parts that could not be converted unchanged."""

    content: bytes
    encoding: str
    remarks: tuple[str, ...] = ()

    @property
    def losses(self) -> tuple[str, ...]:
        """Remarks on missing content; a different code page is no loss."""
        return tuple(remark for remark in self.remarks if not remark.endswith(_AS_WINDOWS))

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content.decode("utf-8", "replace")


def needs_decoding(head: bytes) -> bool:
    """Whether a file with this beginning is anything but plain UTF-8 lines without a byte order mark."""
    return head.startswith((GZIP, *_BYTE_ORDER_MARKS)) or _has_cr_alone(head)


def _has_cr_alone(content: bytes) -> bool:
    """Whether lines end in a carriage return without a line feed, as spreadsheets of Apple write them."""
    return b"\r" in content[:LOOKED_AT_BYTES] and b"\n" not in content[:LOOKED_AT_BYTES]


def decode(content: bytes) -> Decoded:
    """Unpack and convert to UTF-8; never raises, because callers recognize content that is no text."""
    remarks: list[str] = []
    if content.startswith(GZIP):
        content, remark = _unpacked(content)
        remarks += [remark] if remark else []
    if _has_cr_alone(content):
        content = content.replace(b"\r", b"\n")
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if content.startswith(mark)), "utf-8")
    if encoding == "utf-8":
        if b"\0" in content[:LOOKED_AT_BYTES]:
            return Decoded(content=content, encoding=BINARY, remarks=tuple(remarks))
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            text = content.decode(_LAST_RESORT, "replace")
            remarks.append(f"byte {error.start} is no UTF-8: {_AS_WINDOWS}")
            return Decoded(content=text.encode(), encoding=_LAST_RESORT, remarks=tuple(remarks))
        return Decoded(content=content, encoding=encoding, remarks=tuple(remarks))
    text = content.decode(encoding, "replace")
    if "\N{REPLACEMENT CHARACTER}" in text:
        remarks.append(f"some characters are no {encoding.upper()} and were replaced")
    return Decoded(content=text.encode(errors="replace"), encoding=encoding, remarks=tuple(remarks))


def _unpacked(content: bytes) -> tuple[bytes, str | None]:
    """The unpacked content of a gzip file, and a remark if the file breaks off, is damaged or too large."""
    parts, total = list[bytes](), 0
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        try:
            # `read1`, because `read` returns nothing of a chunk that breaks off.
            while total < MOST_BYTES and (part := file.read1(_CHUNK_BYTES)):
                parts.append(part)
                total += len(part)
        except EOFError:
            # Drop the incomplete last line, which may end within a number. A part of the line may remain in UTF-16,
            # and is refused later if it is invalid.
            lines, newline, _ = b"".join(parts).rpartition(b"\n")
            return lines + newline, "the gzip file ends too early: its beginning was read"
        except (OSError, zlib.error) as error:
            before = ": the part before the damage was read" if parts else ""
            return b"".join(parts), f"the gzip file is damaged ({error}){before}"
    too_large = f"the gzip file unpacks to more than {MOST_BYTES >> 30} GiB: the rest was left out"
    return b"".join(parts), too_large if total >= MOST_BYTES else None


# --- files that cannot be read

READABLE = (
    "readable are CSV logs with a row per iteration or per run, logs of pytorch/examples, timm, torchvision,"
    " Megatron-LM and nanoGPT, Hugging Face's trainer_state.json, traces of torch.profiler, and what ncu (--csv,"
    " .ncu-rep) and nsys stats --report cuda_gpu_trace write"
)
_NSYS = "nsys stats --report cuda_gpu_trace --format csv FILE.nsys-rep > trace.csv"
# First bytes of a file, or (below) a pattern in its text; the first match wins.
_MAGIC = (
    (b"PK\x03\x04", "a ZIP archive or a spreadsheet", "save the sheet as CSV, or unpack the archive"),
    (b"SQLite format 3", "a database, as Nsight Systems exports", _NSYS),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard", "zstd -d it first"),
    (b"\xfd7zXZ", "compressed with xz", "xz -d it first"),
)
_TEXTS = (
    (r'"traceEvents"', "a trace of torch.profiler", "analyze import FILE, then analyze kernels results"),
    (r"(?i)\A\s*<(?:!doctype|html)", "a web page, not the file", "download the raw file"),
    (r"\A\s*version https://git-lfs", "a Git LFS pointer, not the file", "git lfs pull"),
    (r"(?m)^\"?Time ?\(%\)\"?,|Total Time \(", "a summary of Nsight Systems, without single kernels", _NSYS),
    (r"==\d+== (?:NVPROF|Profiling)", "output of nvprof", "profile with ncu or nsys"),
    (r"(?m)^[^\w\n]{0,3}(?:\d+: )?DLLL? [{\d]|:::MLLOG", "a log of NVIDIA's dllogger or of MLPerf",
     "write its figures as a table: gpu,model,precision,batch,img_per_s"),
    (r'"log_history"', "the state of Hugging Face's Trainer before the end of its training, without times",
     "import trainer_state.json of the whole training"),
    (r"\d%\|[^|\n]*\| {0,3}\d+/\d+ \[", "a progress bar (tqdm), which redraws itself",
     "let the program print a line per iteration"),
    (r"Epoch ?:?\s?\[?\d", "a training log without the time of an iteration", "log the time of each iteration"),
    (r'\A\s*(?:\{\s*["}]|\[\s*[\[{"\]])', "a JSON document", "write the log as CSV, with a row per iteration"),
)  # fmt: skip


def looks_like(raw: bytes, text: str, suffix: str = "") -> tuple[str, str] | None:
    """Likely kind of an unreadable file and a hint on what to do; None if nothing is recognized."""
    if suffix in {".nsys-rep", ".qdrep"}:
        return "a report of Nsight Systems", _NSYS
    if known := next(((what, hint) for magic, what, hint in _MAGIC if raw.startswith(magic)), None):
        return known
    if b"\0" in raw[:4096]:
        return "a binary file", "import text"
    return next(((what, hint) for pattern, what, hint in _TEXTS if re.search(pattern, text[: 1 << 20])), None)


DELIMITERS = (",", ";", "\t", "|")
# With more lines of output before the table, a file is a log that contains a table.
MOST_LINES_BEFORE = 200
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
# Range of Unix time from 2001 to 2286, in seconds and in milliseconds.
UNIX_S, UNIX_MS = (1e9, 1e10), (1e12, 1e13)
# Pandas' names for the column of row numbers; the name is empty in a file that pandas wrote.
PANDAS_INDEX = frozenset({"", "unnamed: 0"})


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Figures that a file gives for a whole run without steps."""

    images_per_s: float | None
    step_s: float | None = None
    images: float | None = None
    wall_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ForeignTable:
    """Cells under a header, each row with its line number in the file.

    `cut`: rows left out because the file breaks off in them. `iterations`: number of iterations that each row of a log
    represents. `wall_s`: seconds of all rows after the first together, if the log has running means. `figures`: figures
    of a log that has no rows.
    """

    kind: str
    header: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]
    cut: int = 0
    iterations: Sequence[int] | None = None
    wall_s: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    figures: RunFigures | None = None


def split_line(text: str, delimiter: str = ",") -> list[str]:
    """Cells of one line; empty if the line cannot be split."""
    try:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
    except csv.Error:
        return []


def find_header(text: str, is_header: Callable[[Sequence[str]], bool]) -> tuple[int, str] | None:
    """Line number, from 0, of the first line that `is_header` accepts, and its delimiter; None if there is none."""
    for number, line in enumerate(io.StringIO(text, newline=None)):
        if number > MOST_LINES_BEFORE:
            return None
        for delimiter in DELIMITERS:
            if is_header([cell.strip() for cell in split_line(line.strip("\r\n"), delimiter)]):
                return number, delimiter
    return None


def read(text: str, *, file: str, is_header: Callable[[Sequence[str]], bool]) -> ForeignTable:
    """Parse a CSV file; if `is_header` accepts no line, the first line is the header.

    Raises `UsageError`, which names the first line that does not fit.
    """
    if "\0" in text:
        raise UsageError(f"'{file}' is not text: it contains a zero byte", hint="import a CSV file")
    before, delimiter = find_header(text, is_header) or (0, ",")
    lines = io.StringIO(text, newline="")
    for _ in range(before):
        lines.readline()
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        header = [name.strip() for name in next(reader, [])]
        rows = [(reader.line_num + before, row) for row in reader if any(cell.strip() for cell in row) or len(row) > 1]
    except csv.Error as error:
        raise UsageError(
            f"'{file}' is no CSV: line {reader.line_num + before}: {error}",
            hint="import a file with a row per iteration",
        ) from error
    cut = bool(rows) and len(rows[-1][1]) < len(header) and not text.endswith("\n")
    if cut:
        rows.pop()
    for line, row in rows:
        if len(row) != len(header):
            raise UsageError(
                f"'{file}' line {line} has {len(row)} cells under {len(header)} columns",
                hint="import a file with a row per iteration",
            )
    remarks = [f"{before} lines before the table were left out"] if before > 1 else []
    remarks += ["the line before the table was left out"] if before == 1 else []
    return ForeignTable(kind="csv", header=header, rows=rows, cut=int(cut), remarks=tuple(remarks))


def unix_time(text: str) -> tuple[float, bool]:
    """Unix time in seconds of a cell, and whether it gives its time zone; a time without a zone is read as UTC.

    Raises `ValueError`, whose text says why the cell is no time.
    """
    if NUMBER.fullmatch(text.replace(",", ".")):
        value = float(text.replace(",", "."))
        if UNIX_S[0] <= value < UNIX_S[1]:
            return value, True
        if UNIX_MS[0] <= value < UNIX_MS[1]:
            return value / 1e3, True
        raise ValueError("is no Unix time in seconds or milliseconds")
    try:
        # Python's `logging` writes a comma before milliseconds; some logs have slashes between year, month and day.
        parsed = datetime.fromisoformat(re.sub(r"^(\d{4})/(\d\d)/(\d\d)", r"\1-\2-\3", text).replace(",", "."))
    except ValueError as error:
        raise ValueError("is neither Unix time nor ISO 8601") from error
    has_zone = parsed.tzinfo is not None
    value = (parsed if has_zone else parsed.replace(tzinfo=UTC)).timestamp()
    if not UNIX_S[0] <= value < UNIX_S[1]:
        raise ValueError("is an impossible date")
    return value, has_zone


def without_second_half(text: str) -> tuple[str, bool]:
    """The text without its second half if both halves have equal lines; and whether the halves are equal."""
    lines = text.splitlines(keepends=True)
    half, odd = divmod(len(lines), 2)
    if odd or half < 2 or [line.rstrip() for line in lines[:half]] != [line.rstrip() for line in lines[half:]]:  # noqa: PLR2004
        return text, False
    return "".join(lines[:half]), True


# --- traces of Nsight Systems

_WIDE = (
    *(ID, PROCESS, NAME, "Block Size", "Grid Size", "Device"),
    *("device__attribute_display_name", "gpu__time_duration.sum"),
)
_START, _DURATION = re.compile(r"Start ?\(\w+\)"), re.compile(r"Duration ?\((\w+)\)")
_HEADER = re.compile(r"^.*Duration ?\(\w+\).*$", re.MULTILINE)
# Units of nsys in ncu's spelling; `--timeunit` chooses one.
_UNITS = {
    "ns": "ns", "nsec": "ns", "us": "us", "usec": "us", "μs": "us", "ms": "ms", "msec": "ms", "s": "s", "sec": "s",
}  # fmt: skip
_DEVICE = re.compile(r"^(.*?)\s*\((\d+)\)$")
_NAME, _COPY = "Name", "["
_GRID, _BLOCK = ("GrdX", "GrdY", "GrdZ"), ("BlkX", "BlkY", "BlkZ")


def is_gpu_trace(text: str) -> bool:
    """Whether the text has the header of a trace with kernel names."""
    return _header(text) is not None


def _header(text: str) -> tuple[int, str] | None:
    """Position of the header in the text, and its delimiter."""
    for line in _HEADER.finditer(text):
        for delimiter in DELIMITERS:
            names = [name.strip() for name in split_line(line[0].strip("\r"), delimiter)]
            if _NAME in names and any(map(_START.fullmatch, names)) and any(map(_DURATION.fullmatch, names)):
                return line.start(), delimiter
    return None


def gpu_trace_as_csv(text: str) -> str:
    """CSV in ncu's wide layout: warnings that count omitted copies and rows, then a row per kernel."""
    header = _header(text)
    assert header is not None
    reader = csv.DictReader(io.StringIO(text[header[0] :], newline=""), delimiter=header[1], restkey="more")
    reader.fieldnames = names = [name.strip() for name in reader.fieldnames or ()]
    duration, unit = next((name, match[1]) for name in names if (match := _DURATION.fullmatch(name)))
    kernels = list[tuple[str, ...]]()
    seen = set[tuple[str, ...]]()
    copies, broken, doubled = 0, 0, 0
    for row in reader:
        if None in row.values() or "more" in row or not row[duration].strip():
            broken += 1
        elif row[duration].strip() == duration:
            continue
        elif row[_NAME].startswith(_COPY):
            copies += 1
        elif tuple(row.values()) in seen:
            # An identical row is a duplicate: a kernel starts only once.
            doubled += 1
        else:
            seen.add(tuple(row.values()))
            device = row.get("Device", "").strip()
            named = _DEVICE.match(device)
            label, ordinal = (named[1], named[2]) if named else (device, "0" if device else "")
            block, grid = (_size([row[axis].strip() for axis in axes if axis in row]) for axes in (_BLOCK, _GRID))
            kernels.append((str(len(kernels)), "", row[_NAME], block, grid, ordinal, label, row[duration].strip()))
    messages = []
    if copies:
        messages.append(
            f"==WARNING== {copies} copies and memsets of the trace are left out, because they are not kernels"
        )
    if doubled:
        messages.append(f"==WARNING== {doubled} rows are in the file twice (same start): each is counted once")
    if broken:
        messages.append(f"==WARNING== {broken} broken rows left out: the file is cut off or damaged")
    units = ["" for _ in _WIDE[:-1]] + [_UNITS.get(unit, unit)]
    out = io.StringIO()
    out.writelines(f"{message}\n" for message in messages)
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([_WIDE, units, *kernels])
    return out.getvalue()


def _size(axes: Sequence[str]) -> str:
    return f"({', '.join(axes)})" if axes else ""
