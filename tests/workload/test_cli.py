"""Options of the trainer's own command line."""

import pytest

from workload import cli
from workload.contract.errors import UsageError


@pytest.mark.parametrize(
    ("words", "device"),
    [(["--cpu"], "cpu"), (["--cuda"], "cuda"), (["--mps"], "mps"), (["--device", "cpu"], "cpu"), ([], None)],
)
def test_device_switches_as_of_launch_local(words: list[str], device: str | None) -> None:
    given = cli._typed_options(cli._parser().parse_args(["train", *words]))
    assert given.get("device") == device


def test_two_devices() -> None:
    with pytest.raises(UsageError) as caught:
        cli._parser().parse_args(["train", "--cpu", "--cuda"])
    assert str(caught.value) == "argument --cuda: not allowed with argument --cpu"
    assert caught.value.hint == "python -m workload train --help"
