"""Parsers of the trainer's commands: the headings and the layout of help that `launch` and `analyze` have too."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from workload.contract.errors import UsageError
from workload.contract.invocation import OPTION_WIDTH, TWO_COLUMNS_FROM, Group, paragraph, width, wrapped
from workload.contract.spec import Option
from workload.contract.tables import TableFormat


class HelpText(argparse.HelpFormatter):
    """Lays out the help of a command, as wide as the terminal."""

    def __init__(self, prog: str) -> None:
        columns = width()
        # Two blanks before an option, and two before its description.
        position = OPTION_WIDTH + 4 if columns >= TWO_COLUMNS_FROM else 6
        super().__init__(prog, max_help_position=position, width=columns)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join("\n".join(paragraph(each, width, indent)) for each in paragraphs)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(text, width, "")

    def _format_action(self, action: argparse.Action) -> str:
        # Commands are indented as options are. The row that argparse writes for `COMMAND` itself is left out.
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no public name for it
            return "".join(map(super()._format_action, action._get_subactions()))  # noqa: SLF001
        return super()._format_action(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Names of an option and its value: `-o, --output FILE`; `--[no-]compile` if the option can be turned off."""
        if not action.option_strings:
            return super()._format_action_invocation(action)
        if isinstance(action, Switch):
            flag = action.option_strings[0]
            return flag if action.is_off else f"--[no-]{flag[2:]}"
        value = "" if action.nargs == 0 else self._format_args(action, action.dest.upper())
        return f"{', '.join(action.option_strings)} {value}".rstrip()


class Switch(argparse.Action):
    """Option that turns something on, with a second name that turns it off. `is_off`: off is the default."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, is_off: bool, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **more)
        self.is_off = is_off

    def __call__(self, _: object, namespace: argparse.Namespace, __: object, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, option_string == self.option_strings[0])


class Parser(argparse.ArgumentParser):
    """Parser with a group of options for each heading of the help. An invalid command line raises `UsageError`."""

    def __init__(self, **texts: Any) -> None:
        super().__init__(
            **{"usage": "%(prog)s [OPTIONS]", **texts}, formatter_class=HelpText, allow_abbrev=False, add_help=False
        )
        self.groups = {group: self.add_argument_group(group) for group in Group}
        self.groups[Group.OUTPUT].add_argument("-h", "--help", action="help", help="show this message and exit")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")

    def add_format(self, group: Group) -> None:
        """Add the option `--format`, the format of stdout."""
        self.groups[group].add_argument(
            "--format",
            choices=tuple(TableFormat),
            default=TableFormat.TABLE,
            metavar="|".join(TableFormat),
            help="format of stdout (table)",
        )

    def add_option(self, option: Option, group: Group | None = None) -> None:
        """Add a run option below `group`, or its own heading. The parsed result has only options that were typed."""
        below = self.groups[group or option.group]
        if option.kind is bool:
            below.add_argument(
                option.flag,
                option.off_flag,
                dest=option.name,
                action=Switch,
                is_off=option.default is False,
                default=argparse.SUPPRESS,
                help=option.help,
            )
            return
        metavar = "|".join(option.choices) or ("N" if option.is_number else option.name.upper())
        text = option.help + ("" if option.default is None else f" ({option.default})")
        action = "append" if option.is_repeatable else "store"
        below.add_argument(
            option.flag, dest=option.name, metavar=metavar, action=action, default=argparse.SUPPRESS, help=text
        )
