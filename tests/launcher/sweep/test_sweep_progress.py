"""A sweep on stderr, and what its threads are told."""

import io
import signal
import threading

import pytest

from launcher.sweep.shared import MOST_ROWS, Control, LiveTable, PlaceState, Progress, Wish, rows_of

T4 = PlaceState(
    name="t4",
    blocks_done=1,
    blocks=3,
    done=7,
    runs=18,
    images_per_s=251.26,
    usd=0.4567,
    left_s=725,
    now="3 VMs at work",
)
HERE = PlaceState(name="here", blocks=3, runs=18, now="block 1: resnet18, batch_size 8")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table() -> None:
    assert rows_of([T4, HERE], 100) == [
        "place  block  done  per s  USD   left    now",
        "t4     1/3    7/18  251.3  0.46  12 min  3 VMs at work",
        "here   0/3    0/18                       block 1: resnet18, batch_size 8",
    ]


def test_a_table_fits_its_terminal() -> None:
    assert {len(line) for line in rows_of([T4, HERE], 30)} <= set(range(31))
    many = rows_of([T4] * (MOST_ROWS + 2), 100)
    assert len(many) == MOST_ROWS + 2
    assert many[-1] == "and 2 places more"


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_without_a_terminal_or_in_a_notebook_there_are_lines_alone(
    stream_type: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    if stream_type is Terminal:
        monkeypatch.setenv("JPY_PARENT_PID", "1")
    progress, stream, now = Progress(), stream_type(), iter([0.0, 5.0, 65.0, 65.0])
    live = LiveTable(progress, stream, lambda: next(now))
    progress.update("t4", runs=18)
    progress.say("t4", "1/18  block 1, resnet18: 250 images/s")
    progress.say("", "leaving")
    live.draw()
    live.clear()
    assert stream.getvalue() == ("      +5 s  t4: 1/18  block 1, resnet18: 250 images/s\n     +65 s  leaving\n")


def test_without_a_terminal_progress_is_told_where_nothing_was_for_30_s() -> None:
    progress, stream, clock = Progress(), io.StringIO(), [0.0]
    live = LiveTable(progress, stream, lambda: clock[0])
    progress.update("t4", runs=18, done=7, left_s=725, now="3 VMs at work")
    progress.update("here", runs=2)
    told = []
    for clock[0] in (29.0, 30.0, 59.0, 60.0, 70.0, 99.0, 100.0):
        if clock[0] == 70.0:
            progress.say("here", "1/2")
        live.draw()
        told.append(len(stream.getvalue().splitlines()))
    assert told == [0, 2, 2, 4, 5, 5, 7]
    assert stream.getvalue().splitlines()[:2] == [
        "     +30 s  t4: 7/18  3 VMs at work, about 12 min left",
        "     +30 s  here: 0/2  begins",
    ]


def test_on_a_terminal_the_table_is_drawn_below_the_lines_and_only_when_it_changed() -> None:
    progress, stream = Progress(), Terminal()
    live = LiveTable(progress, stream, lambda: 0.0)
    progress.update("t4", runs=18)
    live.draw()
    first = stream.getvalue()
    assert first.splitlines()[1].startswith("t4     0/0    0/18")
    live.draw()
    assert stream.getvalue() == first
    progress.say("t4", "hello\033[2J")
    live.draw()
    assert stream.getvalue().removeprefix(first).startswith("\033[2A\033[J      +0 s  t4: hello\\x1b[2J\nplace")


class Trainer:
    def __init__(self) -> None:
        self.signals: list[str] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(signal.Signals(number).name)


def test_who_leaves_interrupts_what_runs_here_and_a_wish_never_weakens() -> None:
    control, trainer = Control(), Trainer()
    control.trainers.started(trainer)
    control.ask(Wish.FINISH)
    assert (trainer.signals, control.why_not, control.is_leaving) == ([], "the sweep was interrupted", False)
    control.ask(Wish.STOP)
    control.ask(Wish.LEAVE)
    assert (control.wish, trainer.signals) == (Wish.STOP, ["SIGINT"])
    late = Trainer()
    control.trainers.started(late)
    assert late.signals == ["SIGINT"]
    control.kill()
    assert late.signals == ["SIGINT", "SIGKILL"]
    control.trainers.ended()
    control.kill()
    assert late.signals == ["SIGINT", "SIGKILL"]


def test_after_its_time_nothing_new_is_started() -> None:
    now = [0.0]
    control = Control(until_s=60, monotonic=lambda: now[0])
    assert control.why_not == ""
    now[0] = 60.0
    assert control.why_not == "the time of --max-time has passed"


@pytest.mark.world
def test_a_wish_ends_a_wait() -> None:
    control = Control()
    threading.Timer(0.05, control.ask, [Wish.LEAVE]).start()
    control.wait(60)
    assert control.is_leaving
