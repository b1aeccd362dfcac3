"""A request over the wire as Compute Engine's own client would have it: its method, and each of its fields."""

import json
import re
import urllib.parse
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

# (service, method, the message of its request), of all that this project may ask.
METHODS = (
    ("instances", "Insert", "InsertInstanceRequest"),
    ("instances", "Get", "GetInstanceRequest"),
    ("instances", "Delete", "DeleteInstanceRequest"),
    ("instances", "List", "ListInstancesRequest"),
    ("instances", "AggregatedList", "AggregatedListInstancesRequest"),
    ("instances", "GetSerialPortOutput", "GetSerialPortOutputInstanceRequest"),
    ("instances", "GetGuestAttributes", "GetGuestAttributesInstanceRequest"),
    ("zone_operations", "Get", "GetZoneOperationRequest"),
    ("zone_operations", "List", "ListZoneOperationsRequest"),
    ("zone_operations", "Wait", "WaitZoneOperationRequest"),
    ("disks", "List", "ListDisksRequest"),
    ("disks", "AggregatedList", "AggregatedListDisksRequest"),
    ("disks", "Delete", "DeleteDiskRequest"),
    ("regions", "Get", "GetRegionRequest"),
    ("projects", "Get", "GetProjectRequest"),
    ("zones", "List", "ListZonesRequest"),
    ("images", "GetFromFamily", "GetFromFamilyImageRequest"),
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that its message takes: `fields` by the names that the message gives them in JSON."""

    method: str
    fields: dict[str, Any]


class NoSuchRequestError(Exception):
    """The message of the method has no such field, or none with such a value."""


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How a method is written in HTTP, as its client writes it."""

    name: str
    verb: str
    path: re.Pattern[str]
    body: str
    message: Any


@cache
def _forms() -> tuple[_Form, ...]:
    from google.cloud import compute_v1

    forms = []
    for service, method, message in METHODS:
        module = import_module(f"google.cloud.compute_v1.services.{service}.transports.rest_base")
        camel = "".join(part.title() for part in service.split("_"))
        transport = getattr(module, f"_Base{camel}RestTransport")
        (option,) = getattr(transport, f"_Base{method}")._get_http_options()
        path = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(option["uri"]))
        forms.append(
            _Form(
                name=f"{service}.{method}",
                verb=option["method"].upper(),
                path=re.compile(path),
                body=option.get("body", ""),
                message=getattr(compute_v1, message).pb(),
            )
        )
    return tuple(forms)


def parse(verb: str, url: str, content: bytes) -> Asked:
    """The method and its fields; `NoSuchRequestError` for a field that the message lacks or that has another type.

    `LookupError` for what is no method that we know.
    Whatever stands in a method's path is required, and so is its body.
    """
    from google.protobuf import json_format

    parts = urllib.parse.urlsplit(url)
    for form in _forms():
        if form.verb == verb and (path := form.path.fullmatch(urllib.parse.unquote(parts.path))):
            document: dict[str, Any] = dict(path.groupdict())
            query = urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            # `$alt` and the like are of the protocol, for every service.
            document |= {name: value for name, value in query if not name.startswith("$")}
            if bool(content) is not bool(form.body):
                raise NoSuchRequestError(f"{form.name} has {'a' if form.body else 'no'} body")
            if form.body:
                document[form.body] = json.loads(content)
            message = form.message()
            try:
                json_format.ParseDict(document, message, ignore_unknown_fields=False)
            except json_format.ParseError as error:
                raise NoSuchRequestError(f"{form.name}: {error}") from error
            return Asked(method=form.name, fields=json_format.MessageToDict(message))
    raise LookupError(f"no method for {verb} {parts.path}")
