"""Text of a plan for its user."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from launcher.backends.gcp.choices import AROUND_S
from launcher.backends.gcp.gpus import Driver
from launcher.backends.gcp.planned_vm import PlannedVm
from launcher.protocol.records import Price, region_of
from launcher.sizes import shown
from workload.contract.invocation import as_typed
from workload.contract.spec import Profile
from workload.contract.text import counted, dollars, minutes, wrapped

FEW = 4
LABEL_WIDTH = 11
# Programs of a VM by metadata key: shell script, the Python that the script starts, and the shutdown script.
PROGRAMS = {
    "startup-script": "startup.sh",
    "rooflaunch-boot": "boot.py",
    "rooflaunch-guest": "guest.py",
    "shutdown-script": "shutdown.sh",
}
REQUEST = "rooflaunch-request"


def render(plan: PlannedVm, width: int | None) -> str:
    """Text of the plan, one fact after the other, in lines of at most `width` characters."""
    rows = [*run_rows(plan), *_vm(plan), *_cost(plan), *(("note", note) for note in plan.notes)]
    return "\n".join(wrapped(as_typed(text), width, indent=LABEL_WIDTH, first=name) for name, text in rows)


def render_request(plan: PlannedVm) -> str:
    """The first zone's request with its long texts shortened."""
    request = f"request    instances.insert in {plan.zones[0]}; --format json has its texts whole"
    return f"{request}\n{json.dumps(_short(plan), indent=1)}"


def run_rows(plan: PlannedVm) -> Iterator[tuple[str, str]]:
    """Rows that tell which runs are done, and who set each option."""
    spec = plan.spec
    times = "one run" if spec.repeats == 1 else f"{spec.repeats} runs, a process each"
    profile = "" if spec.profile is Profile.NONE else f", then a profile by {spec.profile}"
    one = f"{shown(spec.title)}, on {spec.where}; {times}{profile}"
    yield "plan", f"{plan.request.work}, a process each" if plan.request.task else one
    if files := plan.request.files_text:
        yield "sends", files
    origin = plan.request.spec_origin.items()
    yield "set by", ", ".join(f"{name}: {source}" for name, source in origin) or "all defaults"


def _vm(plan: PlannedVm) -> Iterator[tuple[str, str]]:
    kind = "spot" if plan.options.spot else "on demand"
    yield "vm", f"{plan.machine.name} with {plan.request.gpu_count} x {plan.gpu.title}, {kind}"
    yield "name", plan.name
    yield "zones", _zones(plan)
    image = plan.vm_image
    yield "vm image", f"{image.project}, {'newest of ' if image.is_family else ''}{image.name}"
    if plan.shielded:
        options = {"enableSecureBoot": "Secure Boot", "enableVtpm": "vTPM", "enableIntegrityMonitoring": "integrity"}
        yield "shielded", ", ".join(f"{what} {'on' if plan.shielded[key] else 'off'}" for key, what in options.items())
    yield "driver", _driver(plan)
    yield "disk", f"{plan.options.disk_gb} GB, {plan.gpu.disk_type}"
    yield "image", f"{plan.request.image}, flavour {plan.request.options['flavour']}"
    yield "account", plan.settings.service_account
    yield "bucket", f"gs://{plan.settings.bucket}/runs/"


def _driver(plan: PlannedVm) -> str:
    below = f", below {plan.gpu.driver_below}" if plan.gpu.driver_below else ""
    needed = f"the run needs {plan.gpu.minimum_driver} or newer{below}"
    match plan.driver:
        case Driver.PREINSTALLED:
            return f"in the VM image; {needed}"
        case Driver.INSTALL:
            return f"installed on the VM, with a reboot or two; {needed}"
        case Driver.NONE:
            return "none: the run does not use the GPU"


def _zones(plan: PlannedVm) -> str:
    named = [zone for zone in plan.zones if zone in plan.options.zones]
    others = [zone for zone in plan.zones if zone not in named]
    if not others:
        return f"{', '.join(named)}, and no other"
    return ", then ".join([*([", ".join(named)] if named else []), _few(others, "zones")])


def _few(names: Sequence[str], what: str) -> str:
    rest = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {rest} other {what}" if rest > 0 else "")


def _cost(plan: PlannedVm) -> Iterator[tuple[str, str]]:
    zone = plan.zones[0]
    price, region = plan.price(zone), region_of(zone)
    unknown = plan.regions_without_price
    if price:
        usd_per_h = f"{price.usd_per_h:.3f} USD per hour in {region}{_beside(price)}"
        yield "price", f"{usd_per_h}; read {price.read}: {price.source}"
    else:
        yield "price", f"unknown in {region}; --usd-per-h takes yours"
    if price and unknown:
        yield "unknown", f"the price in {_few(unknown, 'regions')}"
    usable, image, run = (minutes(seconds) for seconds in (plan.usable_s, plan.ready_s - plan.usable_s, plan.run_s))
    parts = f"{usable} to a usable VM as published, {image} for the image and {run} for the run assumed"
    yield "expected", f"{minutes(plan.expected_s)}, {dollars(plan.expected_usd(zone))}: {parts}"
    longest = f"{minutes(plan.limit_s)} and {minutes(AROUND_S)} to start and to stop"
    yield "at most", f"{longest}, {_highest(plan)}; then the cloud deletes the VM"
    yield "besides", f"{price.uncounted if price else 'traffic and tax'}, which are not counted here"


def _beside(price: Price) -> str:
    """Suffix of the VM's price: the total with disk and address."""
    if price.disk_usd_per_h is None:
        return ""
    parts = {"disk": price.disk_usd_per_h, "address": price.address_usd_per_h}
    paid = [name for name, usd in parts.items() if usd]
    return f", {price.whole_usd_per_h:.3f} with {' and '.join(paid)}" if paid else ", all in all"


def _highest(plan: PlannedVm) -> str:
    """Highest cost over all zones that may be tried, as far as their prices are known."""
    if plan.highest_usd is None:
        return "at a cost that is unknown in every zone that may be tried"
    attempts = plan.attempts
    highest = dollars(plan.highest_usd)
    if attempts > 1:
        highest += f" for each of up to {attempts} attempts, {dollars(plan.highest_usd * attempts)} in all"
    unknown = len(plan.regions_without_price)
    if not unknown:
        return f"{highest}, in any zone that may be tried"
    known = _few(list(plan.request.prices), "regions")
    others = f"unknown in the other {counted(unknown, 'region')} that may be tried (--max-cost leaves those out)"
    return f"{highest}, in {known}; {others}"


def _short(plan: PlannedVm) -> dict[str, Any]:
    body = plan.shown_body()
    items = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    lines = {key: len(text.splitlines()) for key, text in plan.programs.items()}
    short = {key: f"<launcher/backends/gcp/{PROGRAMS[key]}, {count} lines>" for key, count in lines.items()}
    short[REQUEST] = "<this plan as data>"
    return {**body, "metadata": {"items": [{"key": key, "value": short.get(key, items[key])} for key in items]}}
