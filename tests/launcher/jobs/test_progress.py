"""The lines that a launch shows while it is followed."""

import io

import pytest

from launcher.jobs.session import Event, EventKind, LaunchProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_a_phase_and_on_a_terminal_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    events = [
        Event(kind=EventKind.PHASE, text="image_pulled", at_s=1090.0),
        Event(kind=EventKind.PROGRESS, text="step 7 of 110, " + "long " * 20),
        Event(kind=EventKind.NOTE, text="the cloud answers again"),
    ]
    shown = []
    for stream in (io.StringIO(), Terminal()):
        clock = [1000.0]
        progress = LaunchProgress(stream, lambda clock=clock: clock[0])  # type: ignore[misc]
        for clock[0], event in zip(
            (1010.0, 1020.0, 1100.0, 1129.0, 1130.0), (*events, events[1], events[1]), strict=True
        ):
            if clock[0] <= 1100.0 or not stream.isatty():
                progress(event)
        shown.append(stream.getvalue())
    assert shown[0].splitlines() == [
        "     +90 s  image pulled",
        "    +100 s  the cloud answers again",
        f"    +2 min  step 7 of 110, {'long ' * 20}",
    ]
    live = "     +20 s  step 7 of 110, long long long"
    assert shown[1] == (
        f"\r\033[K     +90 s  image pulled\n\r\033[K{live[:39]}\r\033[K    +100 s  the cloud answers again\n"
    )
