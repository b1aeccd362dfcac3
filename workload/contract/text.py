"""Formats figures and lines for people, the same way in every command. Standard library only."""

import difflib
import math
import os
import re
import shutil
import textwrap
from collections.abc import Iterable
from typing import TextIO

# Decimal prefixes with their factors, the largest first. Seconds have no prefix above 1, other units none below 1.
PREFIXES = (
    *((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")),
    (1.0, ""),
    *((1e-3, "m"), (1e-6, "µ"), (1e-9, "n")),
)
LARGE_PREFIXES, SMALL_PREFIXES = PREFIXES[:6], PREFIXES[5:]
# Smaller positive shares are shown as `less than 0.1 %`: nobody acts on them.
LEAST_SHARE = 0.001
# Shares that round to 10 % or more have no decimals.
WHOLE_FROM = 0.0995
MINUTE_S = 60
# A ratio near 1 is shown with up to this many digits, so that it differs from 1.
MOST_DIGITS = 12
# Figures from here on are shown with an exponent.
MOST_SHOWN = 1e12
# A duration is shown in seconds up to two minutes, in minutes up to two hours, in hours up to two days.
SECONDS_MATTER_UP_TO_S, MINUTES_ALONE_UP_TO_H, HOURS_UP_TO_DAYS = 120, 2, 2
# Characters per line: narrower and wider lines are hard to read.
NARROWEST, WIDEST = 40, 200
# Blank at which textwrap does not break a line.
NO_BREAK = "\N{NO-BREAK SPACE}"
BEFORE_A_UNIT = re.compile(r"(?<=\d) (?=%|[kMGTPmµn]?(?:s|B|FLOP)\b)")


def si(value: float, unit: str, digits: int = 3) -> str:
    """`value` with a decimal prefix: `si(2.27e11, "FLOP/s")` is `227 GFLOP/s`."""
    return _prefixed(value, unit, LARGE_PREFIXES, digits)


def seconds(value_s: float, digits: int = 4) -> str:
    """A duration in s, ms, µs or ns: `seconds(0.0123)` is `12.3 ms`."""
    return _prefixed(value_s, "s", SMALL_PREFIXES, digits)


def _prefixed(value: float, unit: str, prefixes: tuple[tuple[float, str], ...], digits: int) -> str:
    # Round before the prefix is chosen: 999.9 GB are 1 TB and not 1000 GB.
    rounded = float(f"{value:.{digits}g}")
    factor, prefix = next((row for row in prefixes if abs(rounded) >= row[0]), prefixes[-1] if value else (1.0, ""))
    scaled = rounded / factor
    # Above the largest prefix, show all digits instead of an exponent.
    figure = plain(scaled, digits) if abs(scaled) >= 10**digits else f"{scaled:.{digits}g}"
    return f"{figure} {prefix}{unit}"


def percent(share: float, *, decimals: int = 0) -> str:
    """Share, at least 0, as text: 0.59 is `59 %`, 0.005 is `0.5 %`, 1.6 is `160 %`; below 0.001 `less than 0.1 %`.

    `decimals`: decimals of shares from 10 % on, to compare a share with a limit: `100.1 %`.
    """
    if 0 < share < LEAST_SHARE:
        return f"less than {100 * LEAST_SHARE:g} %"
    if abs(100 * share) >= MOST_SHOWN:
        return f"{100 * share:.3g} %"
    figure = f"{100 * share:.{1 if share < WHOLE_FROM else decimals}f}"
    return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} %"


def signed_percent(share: float) -> str:
    """Relative difference as text: 0.05 is `+5.0 %`, -0.12 is `-12 %`. Small differences keep a nonzero digit."""
    figure = f"{100 * share:+.{1 if abs(share) < WHOLE_FROM else 0}f}"
    return f"{100 * share:+.1g} %" if share and float(figure) == 0 else f"{figure} %"


def digits_beside_one(ratios: Iterable[float], digits: int = 3) -> int:
    """Significant digits, at least `digits`, with which no ratio other than 1 is printed as 1: 1.0004 needs 5."""
    others = [ratio for ratio in ratios if ratio != 1]
    enough = (more for more in range(digits, MOST_DIGITS) if all(float(plain(ratio, more)) != 1 for ratio in others))
    return next(enough, MOST_DIGITS)


def percent_range(low: float, high: float) -> str:
    """Two shares as one range: `12 % to 30 %`, `up to 3 %`, or one figure if both have the same text."""
    if 0 <= low < LEAST_SHARE:
        return percent(high) if high < LEAST_SHARE else f"up to {percent(high)}"
    first, last = percent(low), percent(high)
    return first if first == last else f"{first} to {last}"


def plain(value: float, digits: int) -> str:
    """Figure with `digits` significant digits, and no exponent below 1e12: 12,345 is `12345`, not `1.23e+04`."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < MOST_SHOWN else text


def duration(value_s: float) -> str:
    """Duration as text, in its two largest units: `45 s`, `12 min`, `3 h 05 min`, `2 d 4 h`."""
    whole_s = max(0, round(value_s))
    whole_minutes, hours, days = whole_s // 60, whole_s // 3600, whole_s // 86400
    if whole_s < SECONDS_MATTER_UP_TO_S:
        return f"{whole_s} s"
    if hours < MINUTES_ALONE_UP_TO_H:
        return f"{whole_minutes} min"
    return f"{hours} h {whole_minutes % 60:02} min" if days < HOURS_UP_TO_DAYS else f"{days} d {hours % 24} h"


# Longest unit first, each with the seconds from which it is used and its own seconds.
SPANS = (
    *((48 * 3600, 86400, "d"), (2 * 3600, 3600, "h"), (SECONDS_MATTER_UP_TO_S, MINUTE_S, "min")),
    *((1, 1, "s"), (0, 1e-3, "ms")),
)


def span(value_s: float, ends: tuple[float, float] | None = None) -> str:
    """Duration with three digits in one unit, and the ends of its interval: `4.2 min (3.9 to 4.5)`, `31 h`."""
    _, unit_s, unit = next(row for row in SPANS if value_s >= row[0])
    within = "" if ends is None else f" ({plain(ends[0] / unit_s, 3)} to {plain(ends[1] / unit_s, 3)})"
    return f"{plain(value_s / unit_s, 3)} {unit}{within}"


def minutes(value_s: float) -> str:
    """Time limit as text, in the form of options: `45 s`, `60 min`, `9.6 min`."""
    return f"{value_s:.0f} s" if value_s < MINUTE_S else f"{value_s / MINUTE_S:.1f}".removesuffix(".0") + " min"


def dollars(usd: float | None) -> str:
    """Price as text, rounded up to whole cents: `0.55 USD`; `cost unknown` for None."""
    # Subtract a millionth of a cent, against rounding errors of binary fractions.
    return "cost unknown" if usd is None else f"{math.ceil(usd * 100 - 1e-6) / 100:.2f} USD"


def size(count: int) -> str:
    """Bytes with a decimal prefix: `size(3_400_000)` is `3.4 MB`."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def counted(number: int, noun: str) -> str:
    """Number with its noun: `1 step`, `3 steps`, `2 passes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1, before: str = "", after: str = "") -> str:
    """Question `did you mean fp32?` with up to `most` known words that are similar to `word`; empty if none is.

    `before`, `after`: text around a question that is part of a longer hint.
    """
    similar = difflib.get_close_matches(word, list(known), n=most)
    return f"{before}did you mean {' or '.join(similar)}?{after}" if similar else ""


def unbroken(text: str) -> str:
    """`text` that `wrapped` keeps on one line, for example a command to copy."""
    return text.replace(" ", NO_BREAK)


def cpu_share(used: float, threads: float) -> str:
    """CPUs that a run used, as text beside the number of its threads: `1.2 of 2 CPUs`, `4 % of one CPU`."""
    return f"{percent(used)} of one CPU" if threads == 1 else f"{used:.1f} of {threads:g} CPUs"


def wrapped(text: str, width: int | None, *, indent: int = 0, first: str = "") -> str:
    """`text` after `first`, in lines of at most `width` characters that all begin at column `indent`.

    A longer `first` moves the beginning of the first line alone. Words, paths and figures with their units are never
    broken. With `width` None everything stays on one line. Control characters are escaped (`printable`), because texts
    hold names from files and servers.
    """
    start = f"{first} " if first and len(first) >= indent else first.ljust(indent)
    shown = NO_BREAK.join(map(printable, text.split(NO_BREAK)))
    if width is None:
        return (start + shown).replace(NO_BREAK, " ").rstrip()
    kept = BEFORE_A_UNIT.sub(NO_BREAK, shown)
    room = max(width - max(indent, len(start)), NARROWEST // 2)
    lines = textwrap.wrap(kept, room, break_long_words=False, break_on_hyphens=False) or [""]
    return (start + f"\n{' ' * indent}".join(lines)).replace(NO_BREAK, " ").rstrip()


# Characters of a value that an error repeats: enough to recognise it, and few enough to read the rest.
MOST_QUOTED = 200
# A quote opens at the start of a word, and closes at the end of one.
LONG_QUOTED = re.compile(rf"(?<![^\s(\[=])'([^']{{{MOST_QUOTED + 1},}})'(?![^\s,;:.)\]])")
LONG_WORD, AROUND_A_WORD = re.compile(rf"\S{{{MOST_QUOTED + 1},}}"), "'\"`,;:.()[]"

# Seconds between two lines of progress of long work, if the output is not a terminal.
LINE_EVERY_S = 30.0


def terminal_width(stream: TextIO) -> int | None:
    """Width of lines on `stream`, 40 to 200 characters; None if `stream` is not a terminal: no line is wrapped.

    The variable COLUMNS overrides the terminal's own width.
    """
    if not stream.isatty():
        return None
    columns = _columns(stream)
    return min(max(columns, NARROWEST), WIDEST)


def _columns(stream: TextIO) -> int:
    usual = shutil.get_terminal_size().columns
    if os.environ.get("COLUMNS", "").isdigit():
        return usual
    try:
        # The number of columns is 0 on a terminal without a known size.
        return os.get_terminal_size(stream.fileno()).columns or usual
    except (OSError, ValueError):
        return usual


def printable(text: str) -> str:
    """`text` as one line with control characters escaped: a foreign name must not move the cursor or break a row."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def printable_lines(text: str) -> str:
    """Apply `printable` to each line of a text."""
    return "\n".join(map(printable, text.split("\n")))


def cut_long_words(text: str, typed: Iterable[str] = ()) -> str:
    """`text` in which no word, no quoted value and none of the `typed` words has more than 200 characters."""
    words = {part.strip() for word in typed for part in (word, word.partition("=")[2])}
    for word in sorted((word for word in words if len(word) > MOST_QUOTED), key=len, reverse=True):
        text = text.replace(word, f"{word[:MOST_QUOTED]}…")
    quoted = LONG_QUOTED.sub(lambda match: f"'{match[1][:MOST_QUOTED]}…'", text)
    return LONG_WORD.sub(lambda match: _cut(match[0]), quoted)


def _cut(word: str) -> str:
    """Cut a word to 200 characters, not counting the quotes, brackets and punctuation around the word."""
    inside = word.strip(AROUND_A_WORD)
    return word if len(inside) <= MOST_QUOTED or "…" in inside else word.replace(inside, f"{inside[:MOST_QUOTED]}…")
