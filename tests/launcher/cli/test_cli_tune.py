"""`launch tune` as it is typed: mistakes, the check, and what reaches the tuning."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.tune import report, session
from launcher.tune.patch import Patch
from tests.launcher.told import Golden, printed
from workload.contract.errors import ExitCode

Launch = Callable[..., int]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\n")
    Path("evidence.json").write_text("{}")


MISTAKES = (
    "tune",
    "tune train.py",
    "tune --losses all -- train.py",
    "tune --margin 0 -- train.py",
    "tune --try lr -- train.py",
    "tune --try 'DataLoader(workers=2)' -- train.py",
    "tune -- train.py --data '{data}'",
    "tune --on box -- train.py",
    "tune --on 'ssh --hosts box' -- train.py",
    "tune --check absent.json",
    "tune --check evidence.json",
    "duel --losses all -- train.py --- train.py --lr 1",
)


def test_mistakes_end_with_a_hint(launch: Launch, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    golden("tune_mistakes.txt", printed(launch, capsys, MISTAKES))


@pytest.mark.world
def test_mistakes_about_another_machine_are_answered_for_its_option(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    on = "ssh --host box --max-run-time 24m --include *.py"
    assert launch("tune", "--on", "ssh --host box", "--", "train.py") == ExitCode.USAGE
    assert "hint: in --on: --include '*.py'\n" in capsys.readouterr().err
    assert launch("tune", "--on", on, "--", "train.py") == ExitCode.USAGE
    text = "error: the machine ends after 24 min, too early for a tuning of 20 min with 5 min around it\n"
    assert text in capsys.readouterr().err


def test_options_reach_the_tuning(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[session.Asked] = []

    def tune(request: session.Asked, **_: Any) -> report.Tuned:
        asked.append(request)
        evidence, patch = Path("out/evidence.json"), Patch(diff="")
        return report.Tuned(rows=(), accepted=(), patch=patch, patch_file=None, evidence=evidence, interrupted=None)

    monkeypatch.setattr(session, "tune", tune)
    words = ("--cpu", "--margin", "5%", "--max-time", "1h", "--losses", "any", "--try", "lr=1,2", "-o", "out")
    assert launch("tune", *words, "--", "python", "train.py", "--lr", "3") == ExitCode.DONE

    [found] = asked
    assert found.words == ("train.py", "--lr", "3")
    assert (found.margin, found.max_time_s, found.losses, found.tries) == (0.05, 3600, "any", ("lr=1,2",))
    plan = found.plan_of(("train.py",), "seeds(shift=1)", True)
    assert (found.output, plan.output, plan.spec.device, plan.spec.change) == (
        Path("out"), Path("out"), "cpu", "seeds(shift=1)",
    )  # fmt: skip
    assert (plan.spec.script, plan.spec.ceilings, plan.context.keeps_losses) == (("train.py",), True, True)
    assert "launch tune --check out/evidence.json" in capsys.readouterr().out
