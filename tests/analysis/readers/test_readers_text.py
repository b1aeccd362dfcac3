import codecs
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.readers.tables import decode, looks_like, needs_decoding

TEXT = "step_s,gpu\n0.25,Tesla é\n"


@pytest.mark.parametrize(
    ("content", "encoding", "remark"),
    [
        (TEXT.encode(), "utf-8", None),
        (TEXT.encode("utf-8-sig"), "utf-8-sig", None),
        # PowerShell's `>`: little-endian with a mark.
        (TEXT.encode("utf-16"), "utf-16", None),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "utf-16", None),
        (TEXT.encode("cp1252"), "cp1252", "byte 22 is no UTF-8: the file was read as Windows-1252"),
        (gzip.compress(TEXT.encode(), mtime=0), "utf-8", None),
        (gzip.compress(TEXT.encode("utf-16"), mtime=0), "utf-16", None),
        (gzip.compress(TEXT[:8].encode(), mtime=0) + gzip.compress(TEXT[8:].encode(), mtime=0), "utf-8", None),
    ],
)
def test_every_encoding_gives_the_same_text(content: bytes, encoding: str, remark: str | None) -> None:
    decoded = decode(content)
    assert decoded.text == TEXT
    assert decoded.encoding == encoding
    assert decoded.remarks == ((remark,) if remark else ())
    assert needs_decoding(content) is (encoding not in {"utf-8", "cp1252"} or content.startswith(b"\x1f\x8b"))


def test_gzip_that_breaks_off_gives_what_is_there() -> None:
    text = "\n".join(str(number) for number in range(20_000))
    decoded = decode(gzip.compress(text.encode(), mtime=0)[:-2000])
    assert text.startswith(decoded.text)
    assert decoded.text
    assert decoded.remarks == ("the gzip file ends too early: its beginning was read",)


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded(content: bytes) -> None:
    assert isinstance(decode(content).text, str)


@pytest.mark.parametrize(
    ("raw", "text", "suffix", "what"),
    [
        (b"PK\x03\x04", "", "", "a ZIP archive or a spreadsheet"),
        (b"SQLite format 3\0", "", "", "a database, as Nsight Systems exports"),
        (b"anything", "", ".nsys-rep", "a report of Nsight Systems"),
        (b"\0\1", "", "", "a binary file"),
        (b"\xfd7zXZ", "", "", "compressed with xz"),
        (b"", '{"schemaVersion": 1, "traceEvents": []}', "", "a trace of torch.profiler"),
        (b"", "<!DOCTYPE html>", "", "a web page, not the file"),
        (b"", "version https://git-lfs.github.com/spec/v1\n", "", "a Git LFS pointer, not the file"),
        (b"", "==17== NVPROF is profiling process 17\n", "", "output of nvprof"),
        (b"", " 10%|█   | 12/100 [00:10<01:00]", "", "a progress bar (tqdm), which redraws itself"),
        (b"", "Epoch 1/10 loss: 0.3", "", "a training log without the time of an iteration"),
        (b"", "Time (%),Total Time (ns),Instances,Avg (ns)", "", "a summary of Nsight Systems, without single kernels"),
        (b"", '{"a": 1}', "", "a JSON document"),
    ],
)
def test_what_an_unreadable_file_looks_like(raw: bytes, text: str, suffix: str, what: str) -> None:
    seen = looks_like(raw, text, suffix)
    assert seen is not None
    assert seen[0] == what
    assert seen[1]
