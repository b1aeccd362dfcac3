"""docs/gcp.md says what the code does; that its commands work is tested in tests/docs."""

import re
from datetime import UTC, datetime
from pathlib import Path

from launcher.backends.gcp import gpus, options
from launcher.backends.gcp.backend import ALL_REGIONS
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.plan import make_plan
from launcher.jobs.launches import LaunchState
from workload.contract.spec import resolve

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gcp.md"


def test_the_dry_run_on_the_page_is_what_is_printed() -> None:
    shown = re.findall(r"^at most +.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = options.resolve_settings({"project": "my-project"}, {}, None, default_project=lambda: None)[0]
    plan = make_plan(
        resolve({"precision": "amp"}, {}, ROOT / "tests"),
        Options(gpu="t4", max_cost_usd=0.50),
        found,
        image=f"{found.repository}:cuda-0123456789ab",
        now=datetime(2026, 11, 21, 14, 25, 30, tzinfo=UTC),
        token="3fa9c1",
    )
    assert shown == [line for line in plan.text().splitlines() if line.startswith("at most")]


def test_the_prices_on_the_page_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == ["t4", "l4", "v100"]
    for name, row in rows:
        gpu = gpus.load()[name]
        [price] = [price for price in gpu.prices if price.machine_type == gpu.default_machine_type]
        assert price.region == "us-central1"
        assert row == f"{price.machine_type} | {price.usd_per_h:.3f} | {price.usd_per_h_spot:.3f} | {price.read}"


def test_the_states_on_the_page_are_those_of_launch_status() -> None:
    sentence = PAGE.read_text(encoding="utf-8").partition("\nA launch is ")[2].partition(". ")[0]
    assert re.findall(r"`(\w+)`", sentence) == [state.value for state in LaunchState]


def test_the_quota_on_the_page_is_the_one_that_doctor_checks() -> None:
    assert f"`{ALL_REGIONS}` is 0" in PAGE.read_text(encoding="utf-8")
