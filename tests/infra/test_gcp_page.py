"""docs/gcp.md says what the code does; that its commands work is tested in tests/docs."""

import re
from datetime import UTC, datetime
from pathlib import Path

from launcher.backends.gcp import gpus, settings
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.plan import make_plan
from launcher.jobs.launches import LaunchState
from launcher.protocol.records import LaunchPhase
from workload.contract.prices import VmPrice
from workload.contract.spec import resolve

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gcp.md"


def test_the_dry_run_on_the_page_is_what_is_printed() -> None:
    shown = re.findall(r"```\n(plan .*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    resolved = resolve({"precision": "amp", "profile": "ncu"}, {}, ROOT / "tests")
    found = settings.resolve_settings({"project": "my-project"}, {}, None, default_project=lambda: None)[0]
    plan = make_plan(
        resolved,
        Options(gpu="t4", zones=("us-central1-a",), max_cost_usd=0.50),
        found,
        image=f"{found.repository}:cuda-0123456789ab",
        now=datetime(2026, 11, 21, 14, 25, 30, tzinfo=UTC),
        token="3fa9c1",
    )
    assert shown == [plan.text()]


def _row(gpu: gpus.GpuOffer, price: VmPrice) -> str:
    usual, spot = ("unknown" if usd is None else f"{usd:.3f}" for usd in (price.usd_per_h, price.usd_per_h_spot))
    if gpu.machine_types[price.machine_type].spot_only:
        usual = "not sold"
    ten_minutes = " or ".join(f"{usd / 6:.2f}" for usd in (price.usd_per_h, price.usd_per_h_spot) if usd)
    return f"| `{gpu.name}` | {price.machine_type} | {usual} | {spot} | {ten_minutes} | {price.read} |"


def test_the_prices_on_the_page_are_those_of_the_table() -> None:
    rows = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| `[a-z0-9-]+` \| \w+-", line)
    ]
    unknown = "| `{0.name}` | {0.default_machine_type} | unknown | unknown | unknown | |"
    wanted = [
        row
        for gpu in gpus.load().values()
        for row in ([_row(gpu, price) for price in gpu.prices] or [unknown.format(gpu)])
    ]
    assert rows == wanted
    assert {price.region for gpu in gpus.load().values() for price in gpu.prices} == {"us-central1"}


def test_the_states_on_the_page_are_those_of_launch_status() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| state | means |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE) == [state.value for state in LaunchState]


def test_the_phases_on_the_page_are_those_of_a_launch() -> None:
    shown = re.findall(r"^ +\+\d+ \w+  ([a-z ]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    without = (LaunchPhase.PROFILE_STARTED, LaunchPhase.PROFILE_ENDED)
    assert shown == [phase.value.replace("_", " ") for phase in LaunchPhase if phase not in without]


def test_what_doctor_says_on_the_page_is_what_it_says() -> None:
    code = (ROOT / "launcher" / "backends" / "gcp" / "doctor.py").read_text(encoding="utf-8")
    shown = re.findall(r"^problem  (\w+) +(.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in shown] == ["GPUS_ALL_REGIONS"]
    assert all(name in code and text in code for name, text in shown)
