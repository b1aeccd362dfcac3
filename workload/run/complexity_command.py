"""`python -m workload complexity`: the work of a model's training step, counted without a run.

Rows are for one model and batch size. Tensors have no memory, so any model and batch size fits on any machine.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload.arguments import Parser
from workload.contract import formulas, operating_system
from workload.contract.allocations import Kind
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import Group, examples
from workload.contract.spec import Option, options
from workload.contract.tables import Column, Role, TableFormat, as_json, render, table_width
from workload.contract.text import did_you_mean, wrapped
from workload.measure.timing import Timeline

if TYPE_CHECKING:
    from workload.steps.complexity import Complexity

TEXT = """Count parameters, FLOP, activations and bytes of a training step without doing it: no GPU or memory is needed.

1 MAC is 2 FLOP. FLOP are those of matrix products and convolutions. Activations are what the forward pass leaves for
the backward pass. Bytes are modelled: least if each tensor is moved once, most if every operation reads and writes
memory; intensity is FLOP per byte between these ends.
"""
EXAMPLES = examples(
    "python -m workload complexity --model resnet18 resnet50 --batch-size 32 64 128 -o complexity.csv",
    "python -m workload complexity --model resnet50 --by-module layer3.0.conv1 layer4",
)
BATCH_SIZE, IMAGENET_CLASSES, IMAGE_SIZE = 32, 1000, 224
# Options of `train` that a count takes too, with several values and with one.
SEVERAL, ONE = ("model", "batch_size"), ("image_size", "num_classes", "precision", "optimizer")
MODEL = Column(name="model", heading="model", role=Role.FACT)
MODELS = (
    MODEL,
    Column(name="parameters", heading="parameters", prefixed=True, digits=3),
    Column(name="forward_mac_per_image", heading="forward MAC/image", unit="MAC", prefixed=True, digits=3),
    Column(name="forward_flop_per_image", heading="forward FLOP/image", unit="FLOP", prefixed=True, digits=3),
    Column(name="train_flop_per_image", heading="training FLOP/image", unit="FLOP", prefixed=True, digits=3),
    Column(name="fvcore_mac_per_image", heading="MAC by fvcore", unit="MAC", prefixed=True, digits=3, optional=True),
)
# The peak of a step's memory, by kind.
PARTS = tuple(f"{kind}_bytes" for kind in Kind)
STEPS = (
    MODEL,
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="train_flop_per_step", heading="training FLOP", unit="FLOP", prefixed=True, digits=3),
    Column(name="bytes_per_step_lower", heading="bytes, least", unit="B", prefixed=True, digits=3),
    Column(name="bytes_per_step_upper", heading="most", unit="B", prefixed=True, digits=3),
    Column(name="intensity_low", heading="FLOP/B, lowest", digits=3),
    Column(name="intensity_high", heading="highest", digits=3),
    Column(name="activations_bytes", heading="activations", unit="B", prefixed=True, digits=3),
    Column(name="counted_peak_bytes", heading="memory, peak", unit="B", prefixed=True, digits=3),
    Column(name="bytes_per_sample", heading="per image", unit="B", prefixed=True, digits=3),
)
# Only in files and JSON.
MORE = tuple(
    Column(name=name, heading=name)
    for name in ("image_size", "precision", "forward_flop_per_step", "method", *PARTS, "peak_op")
)
# Keys of JSON under the names of the `summary.json` that a course's template reads: our names.
TEMPLATE_KEYS = {
    "params": "parameters",
    "mult_adds_per_sample_forward": "forward_mac_per_image",
    "flops_per_batch_forward": "forward_flop_per_step",
}
FILE = tuple({column.name: column for column in (*MODELS, *STEPS, *MORE)}.values())
MODULES = (
    Column(name="module", heading="module", role=Role.FACT),
    Column(name="forward_flop", heading="forward FLOP", unit="FLOP", prefixed=True, digits=3),
    Column(name="train_flop", heading="training FLOP", unit="FLOP", prefixed=True, digits=3),
    Column(name="share", heading="share of the step", unit="%", digits=2),
    Column(name="bytes_upper", heading="bytes, most", unit="B", prefixed=True, digits=3),
    Column(name="intensity_low", heading="FLOP/B, lowest", digits=3),
)
LAYERS = (
    Column(name="layer", heading="layer"),
    Column(name="forward", heading="forward FLOP"),
    Column(name="bytes", heading="bytes"),
    Column(name="number", heading="layers"),
)


def add_options(parser: Parser) -> None:
    """Add the options of the command."""
    first, output = parser.groups[Group.FIRST], parser.groups[Group.OUTPUT]
    for name in (*SEVERAL, *ONE):
        option, below = _option(name), first if name in SEVERAL else parser.groups[Group.MODEL]
        metavar = "|".join(option.choices) or ("N" if option.is_number else name.upper())
        text = f"{option.help} ({option.default or 'that of the model'})"
        several = "+" if name in SEVERAL else None
        below.add_argument(option.flag, nargs=several, default=None, metavar=metavar, help=text)
    first.add_argument(
        "--by-module", nargs="*", metavar="MODULE", help="every module's FLOP and bytes, or only of these"
    )
    # For the launcher: the content of allocations.csv for one model and batch size, without other counts.
    first.add_argument("--allocations", action="store_true", help=argparse.SUPPRESS)
    output.add_argument("-o", "--output", type=Path, metavar="FILE", help="write FILE.csv or FILE.json, not stdout")
    parser.add_format(Group.OUTPUT)


def run(parsed: argparse.Namespace, _: Timeline) -> int:
    """Count the work of each model (`--by-module`: of its modules); print it, or write it to the file of `-o`."""
    form = _form(parsed.output) or TableFormat(parsed.format)
    several = {name: _values(name, getattr(parsed, name)) for name in SEVERAL}
    one = {name: _values(name, [getattr(parsed, name)])[0] for name in ONE}
    if parsed.by_module is not None and len(several["model"]) * len(several["batch_size"]) > 1:
        raise UsageError("--by-module is for one model and one batch size", hint="--model resnet50 --batch-size 32")
    from workload.model import models  # noqa: PLC0415 - imports torch
    from workload.steps import complexity  # noqa: PLC0415 - imports torch

    for model in several["model"]:
        models.require(model)
    rows = []
    for model in several["model"]:
        image_size = one["image_size"] or models.NATIVE_IMAGE_SIZES.get(model, IMAGE_SIZE)
        for batch_size in several["batch_size"]:
            counted = complexity.count(
                model,
                num_classes=one["num_classes"],
                image_size=image_size,
                batch_size=batch_size,
                precision=one["precision"],
                optimizer=one["optimizer"],
                with_fvcore=batch_size == several["batch_size"][0] and not parsed.allocations,
            )
            rows.append(_row(model, batch_size, counted) | {"image_size": image_size, "precision": one["precision"]})
    if parsed.allocations:
        text = counted.allocations
    elif parsed.by_module is not None:
        text = render(_modules(counted, parsed.by_module), MODULES, form)
    elif form is TableFormat.TABLE:
        models_once = list({row["model"]: row for row in reversed(rows)}.values())[::-1]
        text = "\n\n".join([render(models_once, MODELS, form), render(rows, STEPS, form, wide=True), _growth(rows)])
    elif form is TableFormat.JSON:
        text = as_json([row | {key: row[name] for key, name in TEMPLATE_KEYS.items()} for row in rows], indent=1)
    else:
        text = render(rows, FILE, form)
    if parsed.output:
        operating_system.replace_text(parsed.output, text + "\n")
    else:
        print(text)
    return ExitCode.DONE


def _option(name: str) -> Option:
    known = {option.name: option for option in options()}
    if name == "num_classes":
        return replace(known["batch_size"], name=name, default=IMAGENET_CLASSES, help="classes", example="10")
    if name == "batch_size":
        return replace(known[name], default=BATCH_SIZE, help="images per forward pass")
    return replace(known[name], help="width and height in pixels") if name == "image_size" else known[name]


def _values(name: str, words: Sequence[str | None] | None) -> list[Any]:
    option = _option(name)
    given = [option.default if word is None else option.parse(word) for word in words or [None]]
    return list(dict.fromkeys(given))


def _form(output: Path | None) -> TableFormat | None:
    if output is None:
        return None
    if output.suffix not in (".csv", ".json"):
        raise UsageError(f"-o {output}: the name must end in .csv or .json", hint=f"-o {output.with_suffix('.csv')}")
    if not output.parent.is_dir() or output.is_dir():
        raise UsageError(f"-o {output}: no such folder, or a folder itself", hint="mkdir first, or another name")
    return TableFormat(output.suffix[1:])


def _row(model: str, batch_size: int, counted: "Complexity") -> dict[str, Any]:
    flop = counted.train_flop_per_step
    memory = asdict(counted.memory)
    facts = {name: value for name, value in asdict(counted).items() if name not in ("memory", "allocations")}
    return facts | {
        **{name: memory[name] for name in (*PARTS, "peak_op", "bytes_per_sample")},
        "counted_peak_bytes": memory["peak_bytes"],
        "model": model,
        "batch_size": batch_size,
        "forward_flop_per_step": counted.forward_flop_per_image * batch_size,
        "intensity_low": flop / counted.bytes_per_step_upper,
        "intensity_high": flop / counted.bytes_per_step_lower,
    }


def _modules(counted: "Complexity", wanted: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of modules in the order of the model; a module includes the modules that it contains.

    `wanted`: these and what they contain, or all. Raises `UsageError` for an unknown name.
    """
    sums: dict[str, Counter[str]] = {}
    parts = {
        "forward_flop": counted.forward_flop_by_module,
        "train_flop": counted.flop_by_module,
        "bytes_upper": counted.bytes_by_module,
    }
    for figure, by_module in parts.items():
        for name, value in by_module.items():
            for owner in _owners(name):
                sums.setdefault(owner, Counter())[figure] += value
    for name in wanted:
        if name not in sums:
            near = did_you_mean(name, sums, after=" ")
            raise UsageError(f"no module '{name}' in this model", hint=f"{near}--by-module without names lists all")
    shown = [name for name in sums if not wanted or any(owner in wanted for owner in _owners(name))]
    return [
        {"module": name}
        | {figure: sums[name][figure] for figure in parts}
        | {
            "share": sums[name]["train_flop"] / counted.train_flop_per_step,
            "intensity_low": sums[name]["train_flop"] / sums[name]["bytes_upper"]
            if sums[name]["bytes_upper"]
            else None,
        }
        for name in shown
    ]


def _owners(name: str) -> list[str]:
    """`layer3`, `layer3.0` and `layer3.0.conv1` for the last of them."""
    words = name.split(".")
    return [".".join(words[:end]) for end in range(1, len(words) + 1)]


def _growth(counted: Sequence[Mapping[str, Any]]) -> str:
    kinds = {row["model"]: row["layers"] for row in counted}
    rows = []
    for layer in formulas.growth_of_layers():
        numbers = {model: layers[layer["layer"]] for model, layers in kinds.items() if layer["layer"] in layers}
        if numbers:
            rows.append({**layer, "number": ", ".join(f"{model} {number}" for model, number in numbers.items())})
    return f"{render(rows, LAYERS, TableFormat.TABLE, wide=True)}\n{wrapped(formulas.GROWTH_SYMBOLS, table_width())}"
