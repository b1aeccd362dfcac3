import importlib.metadata
import os
from pathlib import Path

import pytest

from workload.environment.packages import installed


def package(folder: Path, name: str, metadata: str, *, kind: str = "dist-info/METADATA") -> None:
    path = folder / f"{name}.{kind}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(metadata)


def test_the_same_as_importlib_finds_here() -> None:
    expected = {f"{each.metadata['Name']}=={each.version}" for each in importlib.metadata.distributions()}
    assert set(installed()) == expected
    assert installed() == sorted(installed(), key=lambda text: text.partition("==")[0].lower().replace("_", "-"))


def test_names_and_versions_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    url = "https://user:secret@index.internal/simple"
    package(
        first,
        "Zed_lib-2.0+cu128",
        f"Metadata-Version: 2.1\nName: Zed_lib\nVersion: 2.0+cu128\nHome-page: {url}\n\nName: no\n",
    )
    package(first, "mine-1.0", "Name: mine\nVersion: 1.0\n")
    (first / "mine-1.0.dist-info" / "direct_url.json").write_text(f'{{"url": "file:///home/me/mine", "x": "{url}"}}')
    package(first, "old", "Name: old\nVersion: 0.1\n", kind="egg-info/PKG-INFO")
    package(first, "older-0.2", "Name: older\nVersion: 0.2\n", kind="egg-info")
    # Imported from the first folder; the name may be written in another way.
    package(second, "zed.lib-3.0", "Name: zed.lib\nVersion: 3.0\n")
    package(second, "b-1", "Name: b\r\nVersion: 1\r\n")
    assert installed([str(first), str(second), str(tmp_path / "absent")]) == [
        *("b==1", "mine==1.0", "old==0.1", "older==0.2", "Zed_lib==2.0+cu128"),
    ]


@pytest.mark.parametrize(
    "metadata",
    ["", "Name: a\n", "Version: 1\n", "Name: a b\nVersion: 1\n", f"Name: {'a' * 300}\nVersion: 1\n", "\0" * 99],
)
def test_damaged_metadata_is_left_out(tmp_path: Path, metadata: str) -> None:
    package(tmp_path, "a-1", metadata)
    package(tmp_path, "b-1", "Name: b\nVersion: 1\n")
    (tmp_path / "empty-1.dist-info").mkdir()
    (tmp_path / "link-1.dist-info").symlink_to("nowhere")
    assert installed([str(tmp_path), "", os.devnull]) == ["b==1"]
