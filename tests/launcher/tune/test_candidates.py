"""Candidates: what is tried for a script on a machine, what is not and why, and arguments of the script."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.duel.referee import Losses
from launcher.tune import candidates
from launcher.tune.candidates import asked, candidates_of, change_text, joined, placed, with_candidate, words_with
from tests.launcher.tune.script_runs import ADAM, LOADER, a_run
from workload.contract.changes import Effect
from workload.contract.errors import UsageError
from workload.contract.record import Record


@pytest.fixture(autouse=True)
def _plain_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(candidates.shutil, "which", lambda name: name if name == "g++" else None)


def listed(run: Record, folder: Path = Path(), rule: Losses = Losses.ROUNDING, **environment: str) -> dict[str, str]:
    return {each.text: each.why_not for each in candidates_of(run, rule, folder, environment)}


def with_made(**settings: Any) -> Record:
    """A run whose DataLoader has these settings."""
    return a_run(script={"constructors": (replace(LOADER, **settings), ADAM)})


def test_candidates_of_a_script_on_two_cpus() -> None:
    assert listed(a_run()) == {
        "MALLOC_TRIM_THRESHOLD_=4294967296; MALLOC_MMAP_MAX_=0": "",
        "DataLoader(num_workers=2)": "",
        "DataLoader(num_workers=1)": "",
        "DataLoader(pin_memory=True)": "no GPU",
        "optimizer(foreach=True)": "",
        "optimizer(fused=True)": "",
        "torch.compile": "",
        "torch.set_num_threads(1)": "",
        "torch.set_flush_denormal(True)": "",
    }


@pytest.mark.parametrize(
    ("run", "text", "why"),
    [
        pytest.param(with_made(num_workers=2), "DataLoader(num_workers=2)", None, id="as it is: not listed"),
        pytest.param(with_made(num_workers=2), "DataLoader(prefetch_factor=4)", "", id="more batches ahead"),
        pytest.param(with_made(), "DataLoader(prefetch_factor=4)", None, id="only with workers"),
        pytest.param(
            with_made(num_workers=2, persistent_workers=True),
            "DataLoader(persistent_workers=True)",
            "the script does it already",
            id="already",
        ),
        pytest.param(
            with_made(is_iterable=True),
            "DataLoader(num_workers=2)",
            "its data set is iterable, and each worker would repeat the data",
            id="iterable",
        ),
        pytest.param(
            a_run(script={"constructors": (replace(ADAM, fused=True),)}),
            "optimizer(foreach=True)",
            "the script does it already",
            id="fused is more than foreach",
        ),
        pytest.param(
            a_run(script={"constructors": (replace(ADAM, name="Adadelta", lacks=("fused",)),)}),
            "optimizer(fused=True)",
            "Adadelta has no argument fused",
            id="lacking",
        ),
        pytest.param(a_run(script={"constructors": ()}), "optimizer(fused=True)", None, id="no optimizer is seen"),
        pytest.param(a_run(compile=True), "torch.compile", None, id="compiled"),
        pytest.param(a_run(device="cuda"), "DataLoader(pin_memory=True)", "", id="a GPU"),
        pytest.param(a_run(device="cuda"), "torch.set_num_threads(1)", None, id="threads of a GPU's host"),
    ],
)
def test_candidate_is_left_out_or_named_with_a_reason(run: Record, text: str, why: str | None) -> None:
    assert listed(run).get(text) == why


def test_change_of_a_part_that_the_script_lacks_is_no_candidate(tmp_path: Path) -> None:
    run = a_run(script={"files": {"train.py": ""}})
    assert not listed(run, tmp_path).keys() & {"channels_last", "zero_grad(set_to_none=True)", "autocast(bfloat16)"}

    (tmp_path / "train.py").write_text("o.zero_grad(set_to_none=True)\n")
    assert "zero_grad(set_to_none=True)" not in listed(run, tmp_path)
    (tmp_path / "train.py").write_text("o.zero_grad(set_to_none=False)\n")
    assert run.environment.host
    assert run.complexity
    host = replace(run.environment.host, cpu_flags=("amx_bf16",), transparent_hugepages="madvise")
    work = replace(run.complexity, flop_by_op={"aten::convolution": 1e9})
    run = replace(run, complexity=work, environment=replace(run.environment, host=host))

    found = listed(run, tmp_path)
    assert {
        "channels_last",
        "zero_grad(set_to_none=True)",
        "autocast(bfloat16)",
        "THP_MEM_ALLOC_ENABLE=1",
    } <= found.keys()


def test_variables_of_the_environment_are_left_alone() -> None:
    assert not any("MALLOC" in text for text in listed(a_run(), MALLOC_MMAP_MAX_="0"))


def test_strict_rule_on_losses_leaves_out_what_rounds_differently() -> None:
    found = listed(a_run(), rule=Losses.SAME)

    assert found["optimizer(foreach=True)"] == "it rounds differently, and --losses is same"
    assert found["DataLoader(num_workers=2)"] == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train.py", "--batch-size", "32", "x"), ("train.py", "--batch-size", "64", "x")),
        (("train.py", "--batch_size=32"), ("train.py", "--batch_size=64")),
        (("-m", "pkg.train", "--lr", "1"), ("-m", "pkg.train", "--lr", "1", "--batch-size", "64")),
    ],
)
def test_argument_replaces_the_script_s_own(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    first, second = asked(["args.batch-size=48,64"])

    assert words_with(words, with_candidate([first], second)) == expected
    assert (second.text, second.effect, second.bound(a_run(), [])) == (
        "args.batch-size=64", Effect.TRAINING, None,
    )  # fmt: skip


def test_named_change_is_a_candidate_too() -> None:
    found = placed(asked(["DataLoader(num_workers=4)"])[0], a_run())

    assert (found.line, found.callee) == ("train.py:2", "DataLoader")

    assert (found.text, found.is_asked, change_text([found])) == (
        "DataLoader(num_workers=4)", True, "DataLoader(num_workers=4)",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["batch-size", "=3", "batch-size=", "--batch-size=,"])
def test_try_without_values_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--try takes an argument of the script with its values, or a change; got"):
        asked([text])


def test_joined_candidates_declare_all_effects() -> None:
    bf16, workers = asked(["autocast(bfloat16)", "DataLoader(num_workers=2)"])

    together = joined([bf16, workers])

    assert (together.effect, together.precisions) == (Effect.ROUNDING, {"bf16"})
    assert together.text == "autocast(bfloat16); DataLoader(num_workers=2)"
    assert workers.effect is Effect.SAME
