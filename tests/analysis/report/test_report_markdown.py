"""The report as Markdown."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report import template
from analysis.report.content import Report


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("resnet18 at 1.5 x", "resnet18 at 1.5 x"),
        ("mobilenet_v2", "mobilenet_v2"),
        ("_a_", r"\_a\_"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("a|b", r"a\|b"),
        ("[x](javascript:1)", r"\[x\](javascript:1)"),
        ("# no heading", r"\# no heading"),
        ("1. no list", r"1\. no list"),
        ("1.16 x", "1.16 x"),
        ("- no item", r"\- no item"),
        ("repeat with --repeats 3", r"repeat with \-\-repeats 3"),
        ("a\n\n# b", "a # b"),
        ("```", r"\`\`\`"),
        ("&lt;", "&amp;lt;"),
    ],
)
def test_markdown_escapes(text: str, escaped: str) -> None:
    assert template.escape(text) == escaped


@given(st.text(alphabet=st.sampled_from("ab _*`[]()<>|#-+=:~!&\\\n1.$@/{}\"'"), max_size=40))
def test_escaped_text_reads_as_it_was(text: str) -> None:
    """Escaped text as a CommonMark parser reads it that allows HTML and tables."""
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")
    parser = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    expected = " ".join(text.split())
    tokens = parser.parse(f"x {template.escape(text)}" if not expected else template.escape(text))
    if not expected:
        return
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    inline = tokens[1].children
    assert {child.type for child in inline} <= {"text", "text_special"}
    assert "".join(child.content for child in inline) == expected


def test_hostile_markdown_holds_no_markup(hostile_report: Report) -> None:
    text = template.as_markdown(hostile_report, figures="figures")
    outside = re.sub(r"^(`{3,})sh\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<" not in outside
    assert not re.search(r"(?<!\\)\[a(?<!\\)\]\(", outside)
    assert "\x1b" not in text
    assert "\u202e" not in text
