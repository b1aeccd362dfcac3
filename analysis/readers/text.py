"""Read the text of a file (unpack gzip, convert to UTF-8), and recognize unreadable files. Standard library only."""

import codecs
import gzip
import io
import re
import zlib
from dataclasses import dataclass

# Value of `Decoded.encoding` for content that is no text, because it contains zero bytes.
BINARY = "binary"
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
