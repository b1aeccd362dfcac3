import re
import sys
import webbrowser
from importlib import resources
from pathlib import Path

import pytest

from analysis.readers import ncu
from tests.analysis.in_process import Analyze
from workload.contract import bundle

BUNDLES = Path(str(resources.files("analysis") / "example"))
# It comes with every installation.
MOST_BYTES = 1_000_000
# What would name the machine or the person that made it; /opt/rooflaunch is where the code lay.
HERE = str(Path(__file__).parents[2].resolve()).encode()
PRIVATE = re.compile(rb"/home/|/root/|/Users/|@[a-z]+\.|" + re.escape(HERE))


def folders() -> list[Path]:
    return sorted(BUNDLES.glob("2*"))


def ours() -> list[Path]:
    return [folder for folder in folders() if bundle.read_record(folder).imported is None]


def test_the_bundles_are_whole_and_small() -> None:
    assert len(ours()) == 24
    for folder in folders():
        assert bundle.read(folder).document["status"] == "completed"
    assert sum(path.stat().st_size for path in BUNDLES.rglob("*")) < MOST_BYTES


def test_the_bundles_name_no_machine_or_person() -> None:
    for path in BUNDLES.rglob("*"):
        if path.is_file():
            assert not PRIVATE.search(path.read_bytes()), path
    assert {bundle.read(folder).document["environment"]["host"]["hostname"] for folder in ours()} == {"example"}


# FLOP, seconds and bytes of ../shared/data/README.md; the T4's log has its wall time alone.
IMPORTED = {
    "Tesla V100-SXM2-16GB": (25989744540, 10.26816e-3, 1370874016 + 474155872),
    "NVIDIA L4": (4928393620, 7.37625e-3, 607558840 + 102390000),
}


def test_other_peoples_runs_are_sums_with_their_source() -> None:
    imported = [folder for folder in folders() if folder not in ours()]
    records = {bundle.read_record(folder).environment.device.name: folder for folder in imported}
    assert set(records) == {"Tesla T4", *IMPORTED}
    for device, folder in records.items():
        notes = bundle.read_record(folder).notes
        assert notes is not None
        assert "github.com/" in notes[0]
        if device in IMPORTED:
            kernels = ncu.read(folder / "ncu" / "kernels.csv").kernels
            assert len(kernels) < 20
            flop, duration_s, moved = IMPORTED[device]
            assert kernels["flop"].sum() == flop
            assert kernels["duration_s"].sum() == pytest.approx(duration_s, rel=1e-6)
            assert kernels["dram_bytes"].sum() == moved
    said = {device: "; ".join(bundle.read_record(folder).notes or ()) for device, folder in records.items()}
    assert "no profile: FLOP by formula" in said["Tesla T4"]
    assert "no kernel of the backward pass is in the profile" in said["NVIDIA L4"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    return found


@pytest.mark.slow
@pytest.mark.world
def test_the_example_is_written_and_its_name_printed(analyze: Analyze, tmp_path: Path, opened: list[str]) -> None:
    before = sorted(path.name for path in BUNDLES.iterdir())
    page = tmp_path / "example.html"
    assert analyze("example", "-o", page, "--open")[:2] == (0, f"{page}\n")
    assert "Roofline" in page.read_text()
    # Nobody sits at a terminal here, and the package is as it was: no index is written into it.
    assert opened == []
    assert sorted(path.name for path in BUNDLES.iterdir()) == before


def test_a_browser_opens_on_a_terminal_when_asked(
    analyze: Analyze, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, opened: list[str]
) -> None:
    from analysis.commands import report

    monkeypatch.setattr(report, "_report", lambda *_, **__: 0)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    page = tmp_path / "example.html"
    for words, expected in (([], []), (["--open"], [page.as_uri()])):
        assert analyze("example", "-o", page, *words)[0] == 0
        assert opened == expected


def test_an_installation_without_the_bundles_says_so(
    analyze: Analyze, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    code, _, err = analyze("example", "-o", tmp_path / "page.html")
    assert code == 2
    assert err.startswith(
        f"error: the example's bundles are not installed: '{tmp_path / 'example'}' does not exist\nhint: reinstall "
    )
