"""Accepted changes as a unified diff of the user's files, which `git apply` accepts. Writes no file of the user's.

The call at a known file and line is found in the syntax tree; only the text of its argument changes. A change that
cannot be written this way, such as an environment variable, becomes a sentence in front of the diff.
"""

import ast
import difflib
import io
import itertools
import os
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Positions of arguments that a call may also give without their names: signature of DataLoader in PyTorch 2.
POSITIONS = {"num_workers": 5, "pin_memory": 7}


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument of a call: `callee` is the called name at `line` of `path`, `value` the argument as source text."""

    path: Path
    line: int
    callee: str
    argument: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement such as `torch.set_num_threads(1)`, which stands after the imports of `path`."""

    path: Path
    code: str


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Patch of the user's files. `diff`: text for `git apply`, empty if no change could be written into the files.

    `notes`: sentences on the changes that the user has to make by hand.
    """

    diff: str
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Content of the patch file: `git apply` ignores the notes in front of the diff."""
        return "".join(f"{note}\n" for note in self.notes) + self.diff


class CannotWriteError(Exception):
    """Raised if it is uncertain where in the source a change belongs; the text says why."""


def patch_of(edits: Sequence[Argument | Statement], folder: Path, notes: Sequence[str] = ()) -> Patch:
    """Patch with all `edits`, with paths relative to `folder`. `notes`: further sentences in front of the diff."""
    unwritten, diffs = [*notes], []
    for path in dict.fromkeys(edit.path for edit in edits):
        own = [edit for edit in edits if edit.path == path]
        try:
            shown = path.resolve().relative_to(folder.resolve()).as_posix()
            encoded = path.read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(encoded).readline)
            before = encoded.decode(encoding)
        except (OSError, ValueError, SyntaxError):
            unwritten += [_note(edit, "its file is outside of this folder, or cannot be read") for edit in own]
            continue
        after = before
        # From the last line to the first, because an edit may move the lines below it.
        for edit in sorted(own, key=lambda each: -each.line if isinstance(each, Argument) else 0):
            try:
                after = _edited(after, edit)
            except CannotWriteError as error:
                unwritten.append(_note(edit, str(error)))
        diffs.append(_diff(before, after, shown))
    return Patch(diff="".join(diffs), notes=tuple(unwritten))


def _note(edit: Argument | Statement, why: str) -> str:
    if isinstance(edit, Statement):
        return f"{edit.code} is not in the patch: {why}"
    where = f"{os.path.relpath(edit.path)}:{edit.line}"
    return f"{edit.callee}(..., {edit.argument}={edit.value}) at {where} is not in the patch: {why}"


def _edited(source: str, edit: Argument | Statement) -> str:
    try:
        start, end, text = _statement(source, edit) if isinstance(edit, Statement) else _argument(source, edit)
        after = source[:start] + text + source[end:]
        ast.parse(after)
    except (SyntaxError, ValueError) as error:
        raise CannotWriteError("the call is written in a way that this program does not edit") from error
    return after


def _argument(source: str, edit: Argument) -> tuple[int, int, str]:
    """Start and end of the characters to replace, and the new text."""
    call, at = _call(source, edit), _Positions(source)
    position = POSITIONS.get(edit.argument, len(call.args))
    given = next((keyword.value for keyword in call.keywords if keyword.arg == edit.argument), None)
    if given is None and any(isinstance(argument, ast.Starred) for argument in call.args):
        raise CannotWriteError("the call takes its arguments from a list")
    if given is None and position < len(call.args):
        given = call.args[position]
    if given is not None:
        return *at.of_node(given), edit.value
    if any(keyword.arg is None for keyword in call.keywords):
        raise CannotWriteError("the call takes its arguments from a dict")
    # The closing bracket is the last character of the call.
    last, end = _token_before(source, at, at.of_node(call)[1] - 1)
    text = f"{edit.argument}={edit.value}"
    return end, end, {",": f" {text},", "(": text}.get(last, f", {text}")


def _call(source: str, edit: Argument) -> ast.Call:
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and _name(node) == edit.callee
        if node.lineno <= edit.line <= (node.end_lineno or node.lineno)
    ]
    exact = [call for call in calls if call.lineno == edit.line] or calls
    if len(exact) != 1:
        raise CannotWriteError(f"{'several calls' if exact else 'no call'} of {edit.callee} on this line")
    return exact[0]


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


class _Positions:
    """Positions of characters in a text, from lines (from 1) and columns."""

    def __init__(self, source: str) -> None:
        # Not str.splitlines, which also ends lines at characters such as a form feed.
        self.lines = list(io.StringIO(source, newline=""))
        self._starts = [0, *itertools.accumulate(map(len, self.lines))]

    def of(self, line: int, column: int) -> int:
        """Position of a column in characters, as tokens count."""
        return self._starts[line - 1] + column

    def of_node(self, node: ast.expr) -> tuple[int, int]:
        """Positions of a node's first character and behind its last, from columns that count bytes in UTF-8."""
        ends = ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        start, end = (self.of(line, len(self.lines[line - 1].encode()[:column].decode())) for line, column in ends)
        return start, end


def _token_before(source: str, at: _Positions, position: int) -> tuple[str, int]:
    """Last token before `position` that is no comment and no line break, and the position behind it."""
    last = ("", 0)
    for token in tokenize.generate_tokens(io.StringIO(source, newline="").readline):
        if at.of(*token.start) >= position:
            break
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            last = (token.string, at.of(*token.end))
    return last


def _statement(source: str, edit: Statement) -> tuple[int, int, str]:
    imports, at = list(_leading_imports(ast.parse(source))), _Positions(source)
    if not imports:
        raise CannotWriteError("its file does not begin with imports")
    ending = "\r\n" if "\r\n" in source else "\n"
    names = [alias.asname or alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names]
    has_torch = any(name.partition(".")[0] == "torch" for name in names)
    last = imports[-1].end_lineno or 0
    end = at.of(last, len(at.lines[last - 1]))
    first = "" if source[:end].endswith("\n") else ending
    return end, end, f"{first}{'' if has_torch else f'import torch{ending}'}{edit.code}{ending}"


def _leading_imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports at the beginning of a module, up to its first other statement; a docstring may precede them."""
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif number or not isinstance(node, ast.Expr):
            return


def _diff(before: str, after: str, shown: str) -> str:
    lines = difflib.unified_diff(_Positions(before).lines, _Positions(after).lines, f"a/{shown}", f"b/{shown}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
