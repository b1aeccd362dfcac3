"""Log lines do not disturb the progress bars of tqdm."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from workload import log


@pytest.mark.parametrize(("bars", "lines"), [([], ["a line"]), (["a bar"], ["off", "a line", "on"])])
def test_a_line_is_written_while_the_bars_are_taken_off(
    bars: list[str], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    @contextmanager
    def external_write_mode(*, file: object) -> Iterator[None]:
        assert file is sys.stderr
        written.append("off")
        yield
        written.append("on")

    tqdm = SimpleNamespace(_instances=bars, external_write_mode=external_write_mode)
    monkeypatch.setitem(sys.modules, "tqdm.std", SimpleNamespace(tqdm=tqdm))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=lambda text: written.append(text.strip()), flush=int))
    for name in ("handlers", "level", "propagate"):
        monkeypatch.setattr(log.LOGGER, name, getattr(log.LOGGER, name))
    monkeypatch.setattr(log.LOGGER, "handlers", [])
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)
    log.to_stderr()
    log.LOGGER.info("a line")

    assert [text for text in written if text] == lines


def test_without_tqdm_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tqdm.std", raising=False)
    with log.beside_bars():
        assert logging.getLogger("workload") is log.LOGGER
