"""Terraform files of a cloud, parsed."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import hcl2

ROOT = Path(__file__).parents[2]
PLAIN = hcl2.SerializationOptions(
    with_comments=False, explicit_blocks=False, preserve_heredocs=False, strip_string_quotes=True
)
META = {"count", "for_each", "provider", "depends_on", "lifecycle"}
Body = dict[str, Any]


class TerraformFiles:
    """Files of a folder of infra/. `provider`: Terraform's provider, with which the kinds of its resources begin."""

    def __init__(self, folder: str, provider: str) -> None:
        self.folder, self.provider = ROOT / "infra" / folder, provider
        self.files = sorted(self.folder.glob("*.tf"))

    @cached_property
    def text(self) -> str:
        return "\n".join(path.read_text(encoding="utf-8") for path in self.files)

    @cached_property
    def readme(self) -> str:
        return (self.folder / "README.md").read_text(encoding="utf-8")

    @cached_property
    def arguments(self) -> Body:
        """Arguments that the provider knows, by kind of resource."""
        path = Path(__file__).with_name(f"{self.provider}_arguments.json")
        found: Body = json.loads(path.read_text(encoding="utf-8"))
        return found

    @cached_property
    def documents(self) -> list[Body]:
        return [hcl2.loads(path.read_text(encoding="utf-8"), serialization_options=PLAIN) for path in self.files]

    def blocks(self, kind: str) -> list[Body]:
        return [block for document in self.documents for block in document.get(kind, [])]

    def named(self, kind: str) -> dict[str, Body]:
        """`variable` and `output` blocks by name."""
        return {name: body for block in self.blocks(kind) for name, body in block.items()}

    def resources(self, block: str = "resource") -> dict[tuple[str, str], Body]:
        """Resources, or with `data` the data sources, by kind and name."""
        return {
            (kind, name): body
            for block in self.blocks(block)
            for kind, bodies in block.items()
            for name, body in bodies.items()
        }

    def of_kind(self, kind: str, block: str = "resource") -> dict[str, Body]:
        return {name: body for (found, name), body in self.resources(block).items() if found == kind}

    def locals(self) -> Body:
        return {name: value for block in self.blocks("locals") for name, value in block.items()}

    def all_resources(self) -> dict[str, tuple[str, Body]]:
        """Resources and data sources: address -> (kind, body)."""
        found = {f"{kind}.{name}": (kind, body) for (kind, name), body in self.resources().items()}
        for (kind, name), body in self.resources("data").items():
            found[f"data.{kind}.{name}"] = (f"data.{kind}", body)
        return found

    def shown(self, kinds: Sequence[str]) -> str:
        """Resources of these kinds as JSON, for a golden file."""
        found = {f"{kind}.{name}": body for (kind, name), body in self.resources().items() if kind in kinds}
        return json.dumps(found, indent=1, sort_keys=True) + "\n"

    def misuses(self, address: str) -> list[str]:
        """Arguments of a resource that its provider does not have, or misses."""
        kind, body = self.all_resources()[address]
        return list(misuses(body, self.arguments[kind], address))

    def read_attributes(self) -> list[tuple[str, str]]:
        """Kind of resource and attribute, of each attribute that an expression reads."""
        pattern = rf"\b((?:data\.)?{self.provider}_\w+)\.\w+(?:\[[^]]*\])?\.(\w+)"
        return [(kind, name) for kind, name in re.findall(pattern, self.text)]


def values(tree: Any) -> Iterator[str]:
    """Every key and every leaf as text."""
    match tree:
        case dict():
            for key, value in tree.items():
                yield str(key)
                yield from values(value)
        case list():
            for value in tree:
                yield from values(value)
        case _:
            yield str(tree)


def _with_dynamic(body: Body) -> Body:
    """The body with its `dynamic` blocks as the blocks that they make."""
    made = {name: block["content"] for each in body.get("dynamic", []) for name, block in each.items()}
    plain = {key: value for key, value in body.items() if key != "dynamic"}
    return {**plain, **{name: [*plain.get(name, []), *blocks] for name, blocks in made.items()}}


def misuses(body: Body, known: Body, where: str) -> Iterator[str]:
    """What is wrong with a resource's arguments, if `known` are those of the provider."""
    body = _with_dynamic(body)
    yield from (f"{where}: no {key}" for key in known if _is_required(known[key]) and key not in body)
    for key, value in body.items():
        if key in META and key not in known:
            continue
        expected = known.get(key, "unknown")
        if isinstance(expected, dict):
            for block in value:
                yield from misuses(
                    block, {name: how for name, how in expected.items() if name != "*"}, f"{where}.{key}"
                )
        elif expected in ("unknown", "computed"):
            yield f"{where}.{key} is {expected}"


def _is_required(how: Any) -> bool:
    return (how.get("*") if isinstance(how, dict) else how) == "required"


GOOGLE = TerraformFiles("gcp", "google")
AMAZON = TerraformFiles("aws", "aws")
