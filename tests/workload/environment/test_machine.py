import sys

import pytest

from tests.workload.conftest import LayOut
from workload.environment.machine import cpu_list, fields, run_tool


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-1,8,10-11", [0, 1, 8, 10, 11]),
        ("", None),
        (None, None),
        ("0-", None),
        ("a-b", None),
        ("0,x", None),
    ],
)
def test_cpu_list(text: str | None, expected: list[int] | None) -> None:
    assert cpu_list(text) == expected


def test_fields_keeps_the_first_of_a_repeated_key_and_skips_other_lines() -> None:
    assert fields("model name\t: A\nno colon\nmodel name\t: B\naddress : a:b\n") == {
        "model name": "A",
        "address": "a:b",
    }
    assert fields(None) == {}


def test_text_of_a_file_and_of_what_is_not_one(lay_out: LayOut) -> None:
    machine = lay_out({"/a/full": " 12\n", "/a/empty": "\n"})
    assert machine.text("/a/full") == "12"
    assert machine.integer("/a/full") == 12
    assert [machine.text(path) for path in ("/a/empty", "/a/absent", "/a", "/a/full/below")] == [None] * 4
    assert machine.exists("/a/full")
    assert not machine.exists("/a/absent")


def test_bytes_that_are_no_text_do_not_raise(lay_out: LayOut) -> None:
    machine = lay_out()
    machine.path("/binary").write_bytes(b"\xff\xfe1")
    assert machine.text("/binary") is not None
    assert machine.integer("/binary") is None


@pytest.mark.world
@pytest.mark.parametrize(
    ("code", "limit_s", "expected"),
    [
        ("print(' out ')", 60, "out"),
        ("import sys; print('none'); sys.exit(1)", 60, "none"),
        ("import sys; print('x', file=sys.stderr)", 60, None),
        ("import sys; sys.stdout.buffer.write(bytes([255]))", 60, "\ufffd"),
        ("import time; print('late', flush=True); time.sleep(600)", 0.5, None),
    ],
    ids=["prints", "prints and fails", "silent", "no text", "hangs"],
)
def test_run_tool(code: str, limit_s: float, expected: str | None) -> None:
    assert run_tool(sys.executable, "-c", code, limit_s=limit_s) == expected


@pytest.mark.world
def test_run_tool_that_is_not_installed() -> None:
    assert run_tool("rooflaunch-no-such-tool") is None
