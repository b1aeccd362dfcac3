"""What each command prints for people on a terminal of 100 columns, on results made by hand and on kept bundles."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.api import Results
from benchmarks.synthetic_bundles import make
from tests.analysis.by_hand import noisy, results, run
from tests.analysis.in_process import Analyze
from tests.analysis.readers.ncu.ncu_files import COUNTS, save, wide
from tests.analysis.sentence_runs import Golden

KEPT = Path(__file__).parents[2] / "bundles" / "runs"
STEPS = noisy()


def two_places(**facts: Any) -> Results:
    runs = [
        run(f"{place}{number}", place=place, steps=noisy(seed=number, step_s=0.1 + 0.001 * number), **facts)
        for place in ("here", "there")
        for number in range(3)
    ]
    return results(*runs)


def of_two_models() -> Results:
    odd = run("odd", place="here", driver_version="570.1")
    return results(odd, run("a", place="here"), run("b", place="there"), run("other", model="vgg16", place="here"))


def unlike() -> Results:
    old, new = {"driver_version": "570.1"}, {"torch": "2.16.0"}
    here = [run("a", place="here"), run("b", place="here", **old, **new)]
    return results(*here, run("c", place="there", **old), run("d", place="there", **new))


# Between the steps passes as much time again as in them.
UNEXPLAINED = run("a", steps=STEPS, ended_at_s=5.0 + 2 * np.cumsum(STEPS), measured_s=2 * sum(STEPS), repeats=1)
FEW_STEPS = [run(f"a{number}", steps=noisy(seed=number, n=20, share=0.03)) for number in range(5)]
BY_HAND: dict[str, tuple[str, Results]] = {
    "variance": ("variance results", two_places(data_wait_fraction=0.3)),
    "no cause": ("variance results --part causes", two_places()),
    "compare": ("compare results", two_places()),
    "what is compared and what is kept apart": ("compare results", of_two_models()),
    "the same, pooled": ("compare results --by place --allow-mixed driver_version", of_two_models()),
    "runs that cannot be pooled": ("compare results --by place", unlike()),
    "nothing to compare": ("compare results --by precision", two_places()),
    "nothing found": ("audit results --strict", two_places()),
    "a finding is no failure": ("audit results", two_places(commit_dirty=True)),
    "a finding is one if it is to be": ("audit results --strict", two_places(commit_dirty=True)),
    "a note never is": ("audit results --strict", two_places(imported=True, dataset=None)),
    "findings of one rule": ("audit results", results(UNEXPLAINED)),
    "five runs that break one rule": ("audit results", results(*FEW_STEPS)),
    "a name that moves the cursor": (
        "audit results",
        results(run("a", imported=True, imported_file="vgg16\x1b[2J_x.csv")),
    ),
}


def called(analyze: Analyze, words: str) -> str:
    code, out, err = analyze(*words.split())
    return f"$ analyze {words}\n{out}{err}exit code {code}\n\n"


def test_commands_on_results_made_by_hand(analyze: Analyze, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ""
    for name, (words, made) in BY_HAND.items():
        monkeypatch.setattr("analysis.load", lambda *_, made=made, **__: made)
        text += f"## {name}\n{called(analyze, words)}"
    golden("by_hand.txt", text)


def test_commands_on_bundles(analyze: Analyze, golden: Golden, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(KEPT, tmp_path / "kept")
    for number, batch_size in ((1, 32), (2, 64)):
        make(tmp_path / "two", number, timing__step_s__median=0.09, spec__batch_size=batch_size)
    rows = [[1000, 10, 10, 40, 100], [3000, 0, 0, 200, 100], [1000, 10, 10, 40, 100]]
    names = ["ampere_sgemm_128x128", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "ampere_sgemm_128x128"]
    save(tmp_path, wide(COUNTS, rows, names=names))
    published = "name,device_name,model,peak_flop_per_s\nA,NVIDIA L4,resnet50,242e12\n"
    (tmp_path / "published.csv").write_text(published, encoding="utf-8")
    commands = (
        "summary kept",
        "summary two",
        "roofline two",
        "kernels kernels.csv",
        "kernels kernels.csv --row kernel --top 1",
        "kernels two",
        "audit --claims published.csv --strict",
        "audit",
    )
    golden("on_bundles.txt", "".join(called(analyze, words) for words in commands))
