"""Recognize files that cannot be read, and suggest a readable format."""

import re

READABLE = (
    "readable are CSV logs with a row per iteration or per run, logs of pytorch/examples, timm, dllogger and MLPerf,"
    " traces of torch.profiler, and what ncu (text, --csv, .ncu-rep) and nsys stats --report cuda_gpu_trace write"
)
# First bytes of a file, or (below) a pattern in its text; the first match wins.
_MAGIC = (
    (b"PK\x03\x04", "a ZIP archive or a spreadsheet", "save the sheet as CSV, or unpack the archive"),
    (
        b"SQLite format 3",
        "a database, as Nsight Systems exports",
        "nsys stats --report cuda_gpu_trace --format csv FILE",
    ),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard", "zstd -d it first"),
    (b"\xfd7zXZ", "compressed with xz", "xz -d it first"),
    (b"BZh", "compressed with bzip2", "bzip2 -d it first"),
    (b"%PDF", "a PDF document", "import the data that it was made from"),
    (b"\x89PNG", "a picture", "import the data that it was drawn from"),
    (b"\xff\xd8\xff", "a picture", "import the data that it was drawn from"),
    (b"PAR1", "a Parquet file", "write it as CSV: pandas.read_parquet(FILE).to_csv(…)"),
)
_NSYS = "nsys stats --report cuda_gpu_trace --format csv FILE > trace.csv"
_SUFFIXES = {
    ".nsys-rep": ("a report of Nsight Systems", _NSYS),
    ".qdrep": ("a report of Nsight Systems", _NSYS),
    ".pt": ("a model that torch saved", "import the log of its training"),
    ".pth": ("a model that torch saved", "import the log of its training"),
}
_TEXTS = (
    (r'"traceEvents"', "a trace of torch.profiler (Kineto)", "analyze import FILE makes a bundle of it"),
    (r'"nbformat"', "a Jupyter notebook", "save the cells' output as text"),
    (r"(?i)\A\s*<(?:!doctype|html)", "a web page", "download the raw file"),
    (r"\A\s*version https://git-lfs", "a Git LFS pointer, not the file", "git lfs pull"),
    (r"(?m)^\"?Time ?\(%\)\"?,|Total Time \(", "a summary of Nsight Systems, without single kernels",
     "nsys stats --report cuda_gpu_trace --format csv REPORT.nsys-rep"),
    (r"==\d+== (?:NVPROF|Profiling)", "output of nvprof", "profile with ncu, or nsys"),
    (r"utilization\.gpu|\bNVIDIA-SMI\b", "output of nvidia-smi", "import the log of the training instead"),
    (r"\d+%\|[^|]*\|\s*\d+/\d+ \[", "a progress bar (tqdm), which redraws itself",
     "have the program print a line per iteration"),
    (r"\bms/step\b|\d+s \d+ms/step", "output of Keras", "log a row per step, with its time"),
    (r"Epoch\s*:?\s*\[?\d+", "a training log without the time of an iteration", "log the time of each iteration"),
    (r"(?m)^(?:import|from|def|class) \w+", "a program", "import what it printed"),
    (r"\A\s*[\[{]", "a JSON document", "write it as CSV, with a row per iteration"),
)  # fmt: skip


def looks_like(raw: bytes, text: str, suffix: str = "") -> tuple[str, str] | None:
    """Likely kind of a file and a hint on what to do; None if nothing is recognized."""
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    for magic, what, hint in _MAGIC:
        if raw.startswith(magic):
            return what, hint
    if b"\0" in raw[:4096]:
        return "a binary file", "import text"
    return next(((what, hint) for pattern, what, hint in _TEXTS if re.search(pattern, text[: 1 << 20])), None)
