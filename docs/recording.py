"""The README's sessions, and a terminal recording of the first: `make recording`, on an idle machine."""

import json
import os
import pty
import re
import selectors
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README, PICTURE = ROOT / "README.md", ROOT / "docs/images/recording.svg"
# The recorded runs, from which a test makes the README's tables again; without facts about the machine.
RUNS = ROOT / "tests/docs/recorded_runs.json"
SECTIONS = ("run_id", "status", "error", "timing", "complexity", "ceilings", "bound", "profile", "step_memory", "notes")
SPEC = ("model", "batch_size", "precision", "device", "script")
# A measured script with what it printed. A first command that sets up is not recorded.
BLOCK = re.compile(r"(```console\n(?:\$ make setup\n)?)\$ (\S+ local [^\n]*)\n(?![$`]).*?(```\n)", re.DOTALL)
# Lines of a table that is not the README's first: its title, and what differs most between scripts.
SHORT = re.compile(r"\S|$|  (a step|(?!FLOP)\S+/s|MFU|limited by)  ")
COLUMNS, LINE_PX, CHARACTER_PX, MARGIN_PX = 100, 18, 7.8, 14
LONGEST_PAUSE_S = 1.5
# Without motion, which a reader's setting or a printer may ask for, all lines are shown.
STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre }
text { fill: #1f2328 }
rect { fill: #f6f8fa; stroke: #d1d9e0 }
.command { font-weight: bold }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } rect { fill: #151b23; stroke: #3d444d } }
@media (prefers-reduced-motion: no-preference) { text { animation: appear 1ms backwards } }
@keyframes appear { from { opacity: 0 } }
"""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line that a command printed, `at_s` seconds after its start; `is_result`: to stdout, not to stderr."""

    at_s: float
    text: str
    is_result: bool = False


def record(command: Sequence[str]) -> list[Line]:
    """Run a command with a wide terminal each for stdout and stderr; return its lines. Exits if the command fails."""
    if sys.platform == "win32":
        raise SystemExit("Windows has no pseudo-terminals")
    lines: list[Line] = []
    began_s = time.monotonic()
    surroundings = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    (result, stdout), (progress, stderr) = pty.openpty(), pty.openpty()
    with subprocess.Popen(command, cwd=ROOT, stdout=stdout, stderr=stderr, env=surroundings) as process:
        os.close(stdout)
        os.close(stderr)
        rests = {result: b"", progress: b""}
        with selectors.DefaultSelector() as selector:
            for terminal in rests:
                selector.register(terminal, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    content = _read(key.fd)
                    if not content:
                        selector.unregister(key.fd)
                    *whole, rests[key.fd] = (rests[key.fd] + content).replace(b"\r", b"").split(b"\n")
                    at_s = time.monotonic() - began_s
                    lines += [
                        Line(at_s=at_s, text=_without_folder(text.decode()), is_result=key.fd == result)
                        for text in whole
                    ]
    os.close(result)
    os.close(progress)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return lines


def _without_folder(text: str) -> str:
    """Text without the absolute path of this checkout."""
    return text.replace(f"{ROOT}/", "")


def _read(terminal: int) -> bytes:
    """Output of the terminal; empty at its end, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def drawn(command: str, lines: Sequence[Line]) -> str:
    """SVG of a session: its lines appear when they were printed, after shorter pauses, and stay."""
    shown_s = before_s = 0.0
    texts = list[str]()
    for line in [Line(at_s=0.0, text=f"$ {command}"), *lines]:
        shown_s += min(line.at_s - before_s, LONGEST_PAUSE_S)
        before_s = line.at_s
        kind = "" if texts else ' class="command"'
        for part in textwrap.wrap(line.text, COLUMNS, drop_whitespace=False, subsequent_indent=" " * 16) or [""]:
            y_px = MARGIN_PX + (len(texts) + 1) * LINE_PX - 5
            style = f'style="animation-delay: {shown_s:.2f}s"'
            texts.append(f'<text x="{MARGIN_PX}" y="{y_px}"{kind} {style}>{escape(part)}</text>')
    width_px, height_px = round(COLUMNS * CHARACTER_PX) + 2 * MARGIN_PX, len(texts) * LINE_PX + 2 * MARGIN_PX
    size = f'viewBox="0 0 {width_px} {height_px}" width="{width_px}" height="{height_px}"'
    frame = f'<rect x="0.5" y="0.5" width="{width_px - 1}" height="{height_px - 1}" rx="6"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(command)}</title>'
    return "\n".join([head, f"<style>{STYLE}</style>", frame, *texts, "</svg>", ""])


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    """Parts of a run's record that its table shows."""
    device = {name: record["environment"]["device"][name] for name in ("name", "threads")}
    spec = {name: record["spec"][name] for name in SPEC}
    return {name: record[name] for name in SECTIONS} | {"spec": spec, "environment": {"device": device}}


def shortened(lines: Sequence[str]) -> list[str]:
    """Lines of a table that a later session of the README shows; an ellipsis stands for the others."""
    return [*(line for line in lines if SHORT.match(line)), "  …"]


def main() -> None:
    """Record the sessions; rewrite the picture of the first, the results in the README, and the tests' runs."""
    runs = list[dict[str, Any]]()

    def recorded(found: re.Match[str]) -> str:
        lines = record(found[2].split())
        results = [line.text for line in lines if line.is_result]
        [bundle] = [text.split()[1] for text in results if text.split()[:1] == ["bundle"]]
        if runs:
            results = shortened(results)
        else:
            PICTURE.write_text(drawn(found[2], lines), encoding="utf-8")
        runs.append(_kept(json.loads((ROOT / bundle / "run.json").read_text(encoding="utf-8"))))
        return "\n".join([f"{found[1]}$ {found[2]}", *results, found[3]])

    README.write_text(BLOCK.sub(recorded, README.read_text(encoding="utf-8")), encoding="utf-8")
    RUNS.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
