"""docs/aws.md says what the code does; that its commands work is tested in tests/docs."""

import re
import tomllib
from pathlib import Path

from launcher.backends.aws import gpus
from launcher.sweep import matrix
from workload.contract.prices import VmPrice

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "aws.md").read_text(encoding="utf-8")


def _row(name: str, price: VmPrice) -> str:
    figures = (f"{usd:.3f}" if usd else "unknown" for usd in (price.usd_per_h, price.usd_per_h_spot))
    return f"| `{name}` | {price.machine_type} | {' | '.join(figures)} | {price.read} |"


def test_the_prices_on_the_page_are_those_of_the_table() -> None:
    shown = re.findall(r"^\| `[a-z0-9-]+` \| \w+\.\w+ \|.*$", PAGE, re.MULTILINE)
    listed = [
        _row(gpu.name, price) for gpu in gpus.load().values() for price in gpu.prices if price.region == "us-east-1"
    ]
    assert len(shown) == 5
    assert [row for row in listed if row in shown] == shown


def test_the_quotas_on_the_page_are_those_of_the_table() -> None:
    quota = gpus.require("t4").quota
    assert re.findall(r"--quota-code (\S+) --desired-value (\d+)", PAGE) == [(quota.on_demand, "4"), (quota.spot, "4")]


def test_the_page_is_short_and_says_that_nothing_was_run() -> None:
    words = [word for word in PAGE.split() if word.strip("|-")]
    assert len(words) <= 900
    assert "**No real account was used.**" in PAGE


def test_the_matrix_on_the_page_has_both_clouds() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    found = matrix.read(tomllib.loads(block), file=Path("sweep.toml"), environment={}, config_folder=None)
    assert [item.place.name for item in found.places] == ["gcp-t4", "aws-t4"]
