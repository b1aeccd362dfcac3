"""The cache of ceilings, with fake measurements."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from workload.contract.spec import Device
from workload.contract.trainer import KeptCeilings
from workload.measure import ceilings
from workload.measure.ceiling_rates import Ceilings, MeasuredRate

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def rate(median: float = 1e9) -> MeasuredRate:
    return MeasuredRate(median=median, best=median, min=median, p5=median, p95=median, samples=30, size=128)


@dataclass
class Bench:
    """`cached_or_measure` in one folder; `measured`: the rates requested from each fake measurement."""

    folder: Path
    now: datetime = NOON
    measured: list[tuple[str, ...]] = field(default_factory=list)
    busy: tuple[str, ...] = ()
    identity: dict[str, Any] = field(
        default_factory=lambda: {"device": "d", "machine_id": "m", "software": "torch 1", "threads": 2}
    )

    def measure(self, _: Device, *, precisions: Any, bandwidth: bool = True, **__: Any) -> Ceilings:
        self.measured.append((*precisions, *(["bandwidth"] if bandwidth else [])))
        return Ceilings(
            flop_per_s={precision: rate() for precision in precisions if precision not in self.busy},
            bytes_per_s={name: rate() for name in ("copy", "triad") if bandwidth and name not in self.busy},
            unavailable=dict.fromkeys(self.busy, "the machine was busy"),
            method="by hand",
            measured_at=self.now.isoformat(),
            elapsed_s=1.0,
            **self.identity,
        )

    def ask(self, *precisions: str, kept: KeptCeilings = KeptCeilings.HOUR) -> tuple[Ceilings, float]:
        return ceilings.cached_or_measure(
            self.folder, device=Device.CPU, precisions=precisions, kept=kept, now=lambda: self.now
        )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(folder=tmp_path)
    monkeypatch.setattr(ceilings, "measure", made.measure)
    monkeypatch.setattr(ceilings, "identity", lambda _: made.identity)
    return made


def test_a_missing_precision_is_measured_alone_and_kept(bench: Bench) -> None:
    bench.ask("fp32")
    bench.now += timedelta(minutes=10)
    both, age_s = bench.ask("fp32", "amp")
    assert bench.measured == [("fp32", "bandwidth"), ("amp",)]
    assert (set(both.flop_per_s), set(both.bytes_per_s), age_s) == ({"fp32", "amp"}, {"copy", "triad"}, 600.0)
    assert (both.measured_at, both.elapsed_s) == (NOON.isoformat(), 2.0)
    assert bench.ask("amp") == (both, 600.0)
    assert len(bench.measured) == 2


@pytest.mark.parametrize(
    ("field_name", "value"),
    [("device", "other"), ("machine_id", "another boot"), ("software", "torch 2"), ("threads", 4)],
)
def test_ceilings_of_something_else_are_measured_again(bench: Bench, field_name: str, value: object) -> None:
    bench.ask("fp32")
    bench.identity = bench.identity | {field_name: value}
    found, _ = bench.ask("fp32")
    assert len(bench.measured) == 2
    assert getattr(found, field_name) == value


@pytest.mark.parametrize(
    ("busy", "again"),
    [(("fp32",), ("fp32",)), (("copy",), ("bandwidth",)), (("fp32", "triad"), ("fp32", "bandwidth"))],
)
def test_what_a_busy_machine_spoiled_is_measured_by_the_next_run(
    bench: Bench, busy: tuple[str, ...], again: tuple[str, ...]
) -> None:
    bench.busy = busy
    first, _ = bench.ask("fp32")
    assert set(first.unavailable) == set(busy)
    bench.busy = ()
    second, _ = bench.ask("fp32")
    assert bench.measured[1:] == [again]
    assert (set(second.flop_per_s), set(second.bytes_per_s)) == ({"fp32"}, {"copy", "triad"})
    assert second.unavailable == {}
    third, _ = bench.ask("fp32")
    assert (third.flop_per_s, third.bytes_per_s) == (second.flop_per_s, second.bytes_per_s)
    assert len(bench.measured) == 2


def test_ceilings_without_a_rate_that_is_asked_for_are_not_used_again(bench: Bench) -> None:
    """On a busy machine no rate is stored: the next run measures all of them, and their age counts from then."""
    bench.busy = ("fp32", "copy", "triad")
    bench.ask("fp32")
    bench.now += timedelta(seconds=260)
    again, age_s = bench.ask("fp32")
    assert (again.flop_per_s, age_s, again.measured_at) == ({}, 0.0, bench.now.isoformat())
    # A bandwidth that is kept is as old as it is.
    bench.busy = ("fp32",)
    bench.ask("fp32")
    bench.now += timedelta(seconds=40)
    assert bench.ask("fp32")[1] == 300.0


def test_rates_by_cpu_time_are_used_but_not_stored(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    by_cpu_time = replace(rate(), cpus=1.0, cpus_wanted=2.0)
    measure = bench.measure
    monkeypatch.setattr(
        ceilings, "measure", lambda *words, **more: replace(measure(*words, **more), flop_per_s={"fp32": by_cpu_time})
    )
    assert [bench.ask("fp32")[0].flop_per_s["fp32"] for _ in range(2)] == [by_cpu_time] * 2
    assert bench.measured == [("fp32", "bandwidth"), ("fp32",)]


def edited(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content | {"ceilings": content["ceilings"] | changes}


# Damage of a cache, as changes of its file or of the ceilings in it.
DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "null": lambda _: None,
    "no ceilings": lambda _: {"schema": 3},
    "an older schema": lambda content: content | {"schema": 2},
    "a newer schema": lambda content: content | {"schema": 4},
    "an unknown field": edited(colour="red"),
    "a rate of text": edited(flop_per_s={"fp32": {**rate().__dict__, "median": "fast"}}),
    "a rate of zero": edited(flop_per_s={"fp32": {**rate().__dict__, "median": 0}}),
    "a rate that is no number": edited(bytes_per_s={"copy": {**rate().__dict__, "p5": float("nan")}}),
    "a rate that spreads": edited(bytes_per_s={"copy": {**rate().__dict__, "p5": 1e9, "p95": 3e9}}),
    "half a file": lambda _: b'{"schema": 3, "ceilings": {',
    "no text": lambda _: b"\xff\xfe",
    "a time without zone": edited(measured_at="2026-11-21T12:00:00"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_replaced(bench: Bench, damage: str) -> None:
    bench.ask("fp32")
    path = bench.folder / ".ceilings.json"
    damaged = DAMAGE[damage](json.loads(path.read_text()))
    path.write_bytes(damaged if isinstance(damaged, bytes) else json.dumps(damaged).encode())
    bench.ask("fp32")
    bench.ask("fp32")
    assert len(bench.measured) == 2


def test_a_failed_replacement_leaves_the_old_file_and_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.ask("fp32")
    before = (bench.folder / ".ceilings.json").read_text()

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    bench.ask("amp")
    assert [path.name for path in bench.folder.iterdir()] == [".ceilings.json"]
    assert (bench.folder / ".ceilings.json").read_text() == before


@pytest.mark.parametrize(
    ("passed_s", "kept", "measured_again"),
    [
        (1800, KeptCeilings.HOUR, False),
        (3601, KeptCeilings.HOUR, True),
        (-1, KeptCeilings.HOUR, True),
        # A block takes those of its first run however long ago that was.
        (86400, KeptCeilings.BLOCK, False),
        (60, KeptCeilings.NONE, True),
    ],
)
def test_ceilings_of_the_last_hour_or_of_the_same_block_are_used_again(
    bench: Bench, passed_s: int, kept: KeptCeilings, *, measured_again: bool
) -> None:
    first = bench.ask("fp32")
    assert first[1] == 0
    bench.now += timedelta(seconds=passed_s)
    found, age_s = bench.ask("fp32", kept=kept)
    assert bench.measured == [("fp32", "bandwidth")] * (2 if measured_again else 1)
    assert age_s == (0 if measured_again else passed_s)
    assert (found == first[0]) is not measured_again
    assert bench.ask("fp32", kept=KeptCeilings.BLOCK)[0] == found, "what was measured last is kept"
    assert [path.name for path in bench.folder.iterdir()] == [".ceilings.json"]
