"""Render the report as one HTML file without external requests: scripts, styles and figures are included.

Content of bundles is text: Jinja escapes it. Figures are JSON in a block that no parser executes. The page's Content
Security Policy allows only two scripts, by their hashes. Vega's expressions are interpreted, so `eval` is not needed.
"""

import base64
import hashlib
import json
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from analysis.figures import libraries, style
from analysis.figures.export import specification
from analysis.report.content import Report, readable

_FOLDER = resources.files("analysis.report")


def render(report: Report) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        # Text loses characters that would move, hide or reorder the text around it.
        finalize=lambda value: readable(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css, charts, script = _file("page.css"), libraries(), _file("page.js")
    return environment.get_template("page.html").render(
        report=report,
        policy=policy(styles=[css], scripts=[charts, script]),
        # Unescaped texts of our own: inside <style> and <script>, only the end tag would end the text.
        css=_raw(css, "</style"),
        libraries=_raw(charts, "</script"),
        script=_raw(script, "</script"),
        figures=json_block({figure.name: specification(figure) for figure in report.figures()}),
        theme=json_block(style.PAGE),
    )


def json_block(value: Any) -> Markup:
    """JSON for a `<script type="application/json">`, in which no character begins a tag, a comment or an entity."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - nothing in it can end the block it stands in


def policy(*, styles: list[str], scripts: list[str]) -> str:
    """Content Security Policy that forbids all external content, and allows only inline code with these hashes."""

    def hashes(texts: list[str]) -> str:
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _raw(text: str, end: str) -> Markup:
    if end in text.lower() or "<!--" in text:
        raise ValueError(f"the inlined code contains {end} or a comment, which would end its block")
    return Markup(text)  # noqa: S704 - a file of this package, or Vega


def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
