"""Declaration of a backend's command: a dataclass whose fields are options. Standard library only."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_REQUIRED: Any = object()


@dataclass(frozen=True, kw_only=True)
class Command:
    """Description of `launch <backend>`. `noun`: word for the backend's machines; `sent_to`: the receiver of a request.

    `first`: fields of the options that are used most.
    `one_machine`: the options name one machine, while other backends' options name a kind of machine, of which there
    may be several. `is_fresh`: machines are created for the launch, so they have no folder of the user, and they get
    their image from a registry.
    """

    help: str
    examples: str
    noun: str
    sent_to: str
    first: tuple[str, ...] = ()
    one_machine: bool = False
    is_fresh: bool = False


def choice(
    text: str,
    *,
    default: Any = _REQUIRED,
    flag: str = "",
    parse: Callable[[str], Any] | None = None,
    typed_default: str | None = None,
    **shown: Any,
) -> Any:
    """Dataclass field that is an option, with its help text; required if it has no default.

    `flag`: name of the option, by default made from the field's name. `parse`: makes the value from the typed text, or
    from `typed_default` if the option is absent. `shown`: further arguments of `typer.Option`.
    """
    metadata = {"help": text, "flag": flag, "parse": parse, "typed_default": typed_default, "shown": shown}
    return field(metadata=metadata) if default is _REQUIRED else field(default=default, metadata=metadata)


def flag_of(item: Any) -> str:
    """Option that belongs to a field, as `--max-cost`."""
    return item.metadata["flag"] or "--" + str(item.name).replace("_", "-")
