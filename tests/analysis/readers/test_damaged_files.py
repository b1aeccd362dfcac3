"""One corpus of damage for all readers: a file of any kind is read, or refused with an error of ours."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.importing import UserFacts, import_file
from analysis.readers import ncu, training_logs
from analysis.readers.tables import decode
from tests.analysis.importing import like_public
from tests.analysis.readers.logs import trainer_logs
from tests.analysis.readers.ncu.foreign_profiles import NSYS
from tests.analysis.readers.ncu.ncu_files import DRAM, FFMA, READ, STARTED, TIME, long, save, wide
from tests.analysis.readers.traces.kineto_traces import gpu_trace
from workload.contract import bundle
from workload.contract.errors import RooflaunchError

LOG = "model,batch_size,iter_idx,iter_time_ms,imgs_per_sec,timestamp\n" + "".join(
    f"resnet50,64,{step},200.0,320.0,{1763159640 + 0.2 * step:.1f}\n" for step in range(20)
)
STEP_0 = '1  "<default domain>:step 0 forward:none:none:none:none:none:none" '
PROFILES = {
    "wide": wide({TIME: "us", FFMA: "inst"}, [["1.5", "2,433"], ["n/a", "7"]], names=("a, b", 'c"d')),
    "long": long([(0, TIME, "ns", "1,005"), (0, READ, "Mbyte", "1.08"), (1, TIME, "us", "7")]),
    "ranges": wide({STARTED: "", TIME: "ns"}, [[STEP_0, "5"]]),
    "two tables": f"==PROF== x\n==ERROR== y\n{wide({TIME: 'ns'}, [['5']])}==PROF== z\n{wide({DRAM: 'byte'}, [['6']])}",
    "nsys": NSYS,
    **like_public.readable_profiles(),
}
LOGS = {make.__name__: make() for make in trainer_logs.EVERY}
TEXTS = {**PROFILES, **LOGS, "log": LOG, "trace": gpu_trace(1)}
FILES = {kind: text if isinstance(text, bytes) else text.encode() for kind, text in TEXTS.items()}
PIECES = [
    *(b'"', b'""', b",", b";", b"\t", b"-", b"''", b"\n", b"\r", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf"),
    *(b"\xe2\x80\xa8", b'"ID",', b"Kernel Name", b"Metric Name", b"Metric Value", b"==ERROR==", b"n/a", b"nan"),
    *(b"1e999", b"9" * 30),
]
EDITS = st.lists(
    st.tuples(st.integers(0, 9000), st.integers(0, 30), st.sampled_from(PIECES) | st.binary(max_size=8)),
    min_size=1,
    max_size=6,
)


def read(path: Path, kind: str) -> None:
    """Read a file with the reader of its kind."""
    if kind in PROFILES:
        kernels = ncu.read(path).kernels
        assert list(kernels["launch"]) == list(range(len(kernels)))
        assert len(kernels)
    elif kind in LOGS:
        log = training_logs.read(decode(path.read_bytes()).text)
        assert log is None or log.figures or all(len(row) == len(log.header) for _, row in log.rows)


def imported(path: Path, _: str) -> None:
    for folder in import_file(path, UserFacts(model="m", batch_size=4), output=path.parent / "results"):
        assert bundle.read(folder).document["imported"]["file"] == path.name


def refusal(action: Callable[[Path, str], None], path: Path, kind: str) -> RooflaunchError | None:
    try:
        action(path, kind)
    except RooflaunchError as error:
        return error
    return None


def check(path: Path, kind: str) -> None:
    for action in (read, imported):
        if error := refusal(action, path, kind):
            assert str(error)
            assert error.hint
            assert "\x1b" not in error.report()


def broken_off(content: bytes, position: int, _: bytes) -> bytes:
    return content[:position]


def without_its_beginning(content: bytes, position: int, _: bytes) -> bytes:
    return content[position:]


def with_another_end(content: bytes, _: int, tail: bytes) -> bytes:
    return content.partition(b"\n")[0] + b"\n" + tail


@pytest.mark.parametrize("kind", FILES)
@given(edits=EDITS)
def test_changed_bytes(kind: str, edits: list[tuple[int, int, bytes]], tmp_path: Path) -> None:
    content = FILES[kind]
    for position, removed, inserted in edits:
        at = position % (len(content) + 1)
        content = content[:at] + inserted + content[at + removed :]
    check(save(tmp_path, content, "file.txt"), kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("damage", [broken_off, without_its_beginning, with_another_end])
@given(position=st.integers(0, 3000), tail=st.binary(max_size=2000))
def test_missing_parts(
    kind: str, damage: Callable[[bytes, int, bytes], bytes], position: int, tail: bytes, tmp_path: Path
) -> None:
    content = FILES[kind]
    check(save(tmp_path, damage(content, position % len(content), tail), "file.txt"), kind)
