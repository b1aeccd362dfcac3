import os
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload.storage.store import why_unsafe


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("run.json", ""),
        ("ncu/kernels.csv", ""),
        (".hidden", ""),
        ("a..b/c...d", ""),
        ("ab:c", ""),
        ("a:b", "a drive letter"),
        ("ncu/C:evil", "a drive letter"),
        ("messungen/größe.csv", ""),
        ("x" * 255, ""),
        ("x" * 256, "a part of more than 255 bytes"),
        ("ü" * 128, "a part of more than 255 bytes"),
        ("/etc/passwd", "an absolute path"),
        ("../evil", "leaves its folder"),
        ("a/../../evil", "leaves its folder"),
        ("..", "leaves its folder"),
        ("a\\..\\evil", "a backslash"),
        ("C:/evil", "a drive letter"),
        ("c:evil", "a drive letter"),
        ("-rf", "a part that begins with a dash"),
        ("ncu/-rf", "a part that begins with a dash"),
        ("a-b/c-", ""),
        ("a//b", "an empty part"),
        ("a/", "an empty part"),
        ("", "an empty part"),
        ("nul\0x", "a control character"),
        ("line\nfeed", "a control character"),
        ("\x1b[31mred", "a control character"),
        ("\x9b31mred", "a control character"),
        ("a/./b", "a part that ends in a dot or a space"),
        ("run.json.", "a part that ends in a dot or a space"),
        ("folder /run.json", "a part that ends in a dot or a space"),
        ("\ud800", "no valid Unicode"),
    ],
)
def test_unsafe_names(name: str, reason: str) -> None:
    assert why_unsafe(name) == reason


@given(st.text(st.sampled_from("ab./\\:C \0\n~é\ud800")) | st.text())
def test_a_safe_name_stays_below_its_folder_everywhere(name: str) -> None:
    if why_unsafe(name):
        return
    posix, windows = Path("/base") / name, PureWindowsPath("D:\\base") / name
    assert os.path.normpath(posix) == str(posix)
    assert posix.is_relative_to("/base")
    assert posix != Path("/base")
    assert windows.is_relative_to("D:\\base")
    assert ".." not in windows.parts
