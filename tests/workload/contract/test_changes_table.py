"""The table of changes as typed texts and as facts, and the comparison of losses."""

import math

import pytest

from workload.contract import changes
from workload.contract.changes import Effect, Likeness, Via, changes_of, compare_losses, parse, table
from workload.contract.errors import UsageError
from workload.contract.spec import Device, Precision, RunSpec, resolve
from workload.contract.verdict import Bound


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("DataLoader( num_workers = 2 )", "DataLoader(num_workers=2)"),
        ("DataLoader(num_workers=02, pin_memory=true)", "DataLoader(num_workers=2); DataLoader(pin_memory=True)"),
        # In the order of the table, whatever the order of options.
        (["torch.compile()", "channels_last"], "channels_last; torch.compile"),
        ("torch.set_float32_matmul_precision('high')", "torch.set_float32_matmul_precision(high)"),
        ("torch.backends.cudnn.benchmark = True", "torch.backends.cudnn.benchmark=True"),
        ("GLIBC_TUNABLES=glibc.malloc.hugetlb=1", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"),
        ("MALLOC_TRIM_THRESHOLD_=-1", "MALLOC_TRIM_THRESHOLD_=-1"),
        ("none", None),
    ],
)
def test_typed_changes_become_canonical(typed: object, canonical: str | None) -> None:
    assert parse(typed) == canonical
    assert parse(canonical or "none") == canonical


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("DataLoader(workers=2)", "unknown change 'DataLoader(workers=2)'", "did you mean DataLoader(num_workers=2)?"),
        ("Adam(foreach=True)", "unknown change 'Adam(foreach=True)'", "did you mean optimizer(foreach=True)?"),
        ("compile", "unknown change 'compile'", "did you mean torch.compile?"),
        ("channels_last=3", "unknown change 'channels_last=3'", "did you mean channels_last?"),
        (
            "DataLoader(num_workers=-3)",
            "DataLoader(num_workers=…) takes a whole number from 0 to 1024; got '-3'",
            "--change 'DataLoader(num_workers=2)'",
        ),
        ("optimizer(fused=x)", "optimizer(fused=…) takes True or False; got 'X'", "--change 'optimizer(fused=True)'"),
        (
            ["torch.set_num_threads(1)", "torch.set_num_threads(2)"],
            "--change sets one thing twice: torch.set_num_threads(1) and torch.set_num_threads(2)",
            "leave one of them out",
        ),
    ],
)  # fmt: skip
def test_typed_changes_that_are_refused(typed: object, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(typed)
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_unknown_change_lists_all() -> None:
    with pytest.raises(UsageError, match="unknown change 'x'") as caught:
        parse("x")
    assert all(row.shown in caught.value.hint for row in table())


@pytest.mark.parametrize("row", table(), ids=lambda row: row.form)
def test_rows_of_the_table(row: changes.Row) -> None:
    assert {*row.helps} <= {*Bound, "kernel"}
    # Other seeds are no gain: a tuning learns from them how far losses are apart.
    assert bool(row.helps) is (row.form != "seeds(shift={})")
    assert row.device in ("", Device.CUDA)
    assert row.precision in ("", *Precision)
    change = changes_of(parse(row.shown))[0]
    assert (change.row, change.text) == (row, row.shown)
    assert change.word in change.code
    # Only a lower precision is a change that also declares one, and no such change keeps the losses.
    assert not row.precision or row.effect is not Effect.SAME
    assert (row.via is Via.ENVIRONMENT) == (row.code.startswith("export "))


def test_values_in_python() -> None:
    text = parse(["DataLoader(num_workers=2)", "optimizer(fused=False)", "torch.set_float32_matmul_precision(high)"])
    assert [change.value for change in changes_of(text)] == [2, False, "high"]


@pytest.mark.parametrize(
    ("typed", "script", "message"),
    [
        ({"change": ["channels_last"]}, (), "--change is only for your own script; got --change 'channels_last'"),
        (
            {"change": ["DataLoader(pin_memory=True)"], "device": "cpu"},
            ("train.py",),
            "--change 'DataLoader(pin_memory=True)' needs an NVIDIA GPU; got 'cpu'",
        ),
    ],
)
def test_changes_that_a_run_cannot_have(typed: dict[str, object], script: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(typed, {}, None, script=script)
    assert str(caught.value) == message


def test_spec_keeps_changes() -> None:
    spec = resolve({"change": ["torch.compile", "channels_last"]}, {}, None, script=["train.py"]).spec
    assert spec.change == "channels_last; torch.compile"
    assert spec.title == "train.py, with channels_last; torch.compile"
    assert RunSpec.from_json(spec.to_json()) == spec


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    text = parse(["MALLOC_MMAP_MAX_=0", "channels_last", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"])
    found = {"MALLOC_MMAP_MAX_": "0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert changes.variables(text) == found
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    changes.require_variables(text, found)
    changes.require_new_variables(text, {"MALLOC_MMAP_MAX_": "7"})
    with pytest.raises(UsageError, match="MALLOC_MMAP_MAX_=0 must be set before Python starts"):
        changes.require_variables(text, {})
    with pytest.raises(UsageError, match="MALLOC_MMAP_MAX_=0 has no effect: it is set here already"):
        changes.require_new_variables(text, found)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.31"))
    with pytest.raises(UsageError, match=r"hugetlb=1 needs glibc 2\.35; got 2\.31"):
        changes.require_variables(text, found)
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    with pytest.raises(UsageError, match="needs Linux with glibc"):
        changes.require_variables(text, found)


def losses(*values: float) -> list[str]:
    return [value.hex() for value in values]


ONE, NAN = losses(2.0, 1.0), losses(2.0, math.nan)


@pytest.mark.parametrize(
    ("a", "b", "likeness", "text"),
    [
        ([ONE, ONE], [ONE, ONE], Likeness.SAME, "same to the bit (the first 2 losses)"),
        ([ONE], [losses(2.0, 1.0, 0.5)], Likeness.SAME, "same to the bit (the first 2 losses)"),
        ([losses(0.0)], [losses(-0.0)], Likeness.SAME, "same to the bit (the first loss)"),
        # 0.004 of 1.004 and 0.04 of 1.04.
        ([ONE], [losses(2.0, 1.004)], Likeness.CLOSE, "equal within 0.4 % (the first 2 losses)"),
        ([ONE], [losses(2.0, 1.04)], Likeness.DIFFERENT, "different, by 3.8 % in loss 2 of 2 losses"),
        ([NAN], [NAN], Likeness.SAME, "same to the bit (the first 2 losses)"),
        ([ONE], [NAN], Likeness.DIFFERENT, "different, by a loss that is not finite in loss 2 of 2 losses"),
        ([ONE], [losses(2.0, 1.0000002)], Likeness.CLOSE, "equal within 2e-07 (the first 2 losses)"),
        # Kernels of a GPU that add in another order in each run.
        ([ONE, losses(2.0, 1.002)], [ONE], Likeness.CLOSE, "equal within 0.2 % (the first 2 losses)"),
        (
            [ONE, losses(2.0, 1.25)],
            [ONE],
            Likeness.UNKNOWN,
            "not comparable: two runs of the same side differ by 20 %: the script seeds nothing",
        ),
        ([ONE], [[]], Likeness.UNKNOWN, "not comparable: a run has no loss of one value in its backward passes"),
        ([ONE], [], Likeness.UNKNOWN, "not comparable: one side has no run"),
    ],
)
def test_compare_losses(a: list[list[str]], b: list[list[str]], likeness: Likeness, text: str) -> None:
    found = compare_losses(a, b)
    assert (found.likeness, found.text) == (likeness, text)
