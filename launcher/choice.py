"""How a backend declares its command: a dataclass whose fields are options. Standard library only."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_REQUIRED: Any = object()


@dataclass(frozen=True, kw_only=True)
class Command:
    """What `launch <backend>` says of itself. `noun`: its machine in a sentence; `sent_to`: who gets a request.

    `one_machine`: its options name a machine, where others name a kind of machine of which one can have several.
    `is_fresh`: its machines are made for the launch: they hold no folder of the user's, and an image from a registry.
    """

    help: str
    examples: str
    noun: str
    sent_to: str
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
    """A field of a backend's dataclass that is an option, with its help text; without a default it is required.

    `flag`: other than the field's name. `parse`: from the text that is typed, `typed_default` unless it is. `shown`:
    further arguments of `typer.Option`.
    """
    metadata = {"help": text, "flag": flag, "parse": parse, "typed_default": typed_default, "shown": shown}
    return field(metadata=metadata) if default is _REQUIRED else field(default=default, metadata=metadata)


def flag_of(item: Any) -> str:
    """`--max-cost`: the option that a field is."""
    return item.metadata["flag"] or "--" + str(item.name).replace("_", "-")
