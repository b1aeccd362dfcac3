"""Settings of Google Cloud: project, bucket, repository, service account, network, and the origin of each.

Each setting comes from an option, a variable `ROOFLAUNCH_<NAME>`, a key of the `[gcp]` table of rooflaunch.toml, or
the project's name. The project itself may come from the user's application-default credentials.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from launcher.sizes import shown
from workload.contract.errors import UsageError
from workload.contract.spec import CONFIG_NAME, ENVIRONMENT_PREFIX, Origin
from workload.contract.text import did_you_mean

TABLE = "gcp"
# Placeholder for a project in a plan that is only shown: no project id has capitals.
ANY_PROJECT = "PROJECT"
CREDENTIALS = "application-default credentials"
DEFAULT = "default"
RESOURCE_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
PROJECT = r"[a-z][-a-z0-9]{4,28}[a-z0-9]"
# Patterns of Google's names, each with a description and an example. They keep quotes, blanks, line breaks and `$` out
# of requests.
RULES = {
    "project": (PROJECT, "a project id of 6 to 30 lower-case letters, digits and -", "my-project"),
    "bucket": (
        r"[a-z0-9][-._a-z0-9]{1,220}[a-z0-9]",
        "a bucket's name of lower-case letters, digits, -, _ and . without a folder",
        "my-project-rooflaunch",
    ),
    "repository": (
        r"[a-z0-9][-.a-z0-9]{0,252}(?::[0-9]{1,5})?(?:/[a-z0-9][-._a-z0-9]{0,127}){1,8}",
        "HOST/PATH without a tag",
        "us-central1-docker.pkg.dev/my-project/rooflaunch/trainer",
    ),
    "service_account": (
        rf"(?:[a-z][-a-z0-9]{{4,28}}[a-z0-9]@{PROJECT}\.iam|[0-9]{{1,20}}-compute@developer)\.gserviceaccount\.com",
        "the e-mail address of a service account",
        "rooflaunch-vm@my-project.iam.gserviceaccount.com",
    ),
    "network": (
        rf"(?:projects/{PROJECT}/global/networks/)?{RESOURCE_NAME}",
        "a network's name, or projects/PROJECT/global/networks/NAME",
        "rooflaunch",
    ),
    "subnetwork": (
        rf"(?:(?:projects/{PROJECT}/)?regions/[a-z]+-[a-z]+[0-9]{{1,2}}/subnetworks/)?{RESOURCE_NAME}",
        "a subnetwork's name, or regions/REGION/subnetworks/NAME",
        "regions/us-central1/subnetworks/rooflaunch",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Checked settings. `network`: None means the project's network `default`."""

    project: str
    bucket: str
    repository: str
    service_account: str
    network: str | None = None
    subnetwork: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """Settings by field name."""
        return asdict(self)


NAMES = tuple(item.name for item in fields(Settings))


def resolve_settings(
    options: Mapping[str, str | None],
    environment: Mapping[str, str],
    config_folder: Path | None,
    *,
    default_project: Callable[[], str | None],
) -> tuple[Settings, Mapping[str, str]]:
    """Settings, and the origin of each by name. `default_project` is called only if no other source names a project.

    Raises `UsageError` for a value that breaks its rule, an unknown key of the table, and a missing project.
    """
    table = _from_config(config_folder / CONFIG_NAME) if config_folder else {}
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    for name in NAMES:
        strongest = _first(name, options, environment, table)
        if strongest:
            origins[name], values[name] = strongest
    if "project" not in values:
        values["project"], origins["project"] = _default_project(default_project), CREDENTIALS
    for name, value in _defaults(values["project"]).items():
        values.setdefault(name, value)
        origins.setdefault(name, DEFAULT)
    return Settings(**values), origins


def _first(
    name: str, options: Mapping[str, str | None], environment: Mapping[str, str], table: Mapping[str, object]
) -> tuple[Origin, str] | None:
    """First source that has the setting, and the checked value; None if option, environment and `table` lack it."""
    variable = ENVIRONMENT_PREFIX + name.upper()
    example = RULES[name][2]
    sources: list[tuple[Origin, object, str, str]] = [
        (Origin.OPTION, options.get(name), "", f"--{name.replace('_', '-')} {example}"),
        (Origin.ENVIRONMENT, environment.get(variable), f"{variable}: ", f"export {variable}={example}"),
        (Origin.CONFIG, table.get(name), f"{CONFIG_NAME}, [{TABLE}]: ", f'{name} = "{example}"'),
    ]
    for origin, value, where, hint in sources:
        if value is not None:
            return origin, _checked(name, value, where=where, hint=hint)
    return None


def _checked(name: str, value: object, *, where: str, hint: str) -> str:
    pattern, rule, _ = RULES[name]
    text = value if isinstance(value, str) else ""
    if name == "bucket":
        text = text.removeprefix("gs://").removesuffix("/")
    if not re.fullmatch(pattern, text):
        label = name.replace("_", " ")
        raise UsageError(f"{where}{label} must be {rule}; got '{shown(str(value))}'", hint=hint)
    return text


def _default_project(default_project: Callable[[], str | None]) -> str:
    hint = "--project PROJECT, or gcloud auth application-default login"
    project = default_project()
    if project == ANY_PROJECT:
        return project
    if not project:
        raise UsageError("no project is set, and the credentials name none", hint=hint)
    return _checked("project", project, where=f"{CREDENTIALS}: ", hint=hint)


def _defaults(project: str) -> dict[str, str]:
    return {
        "bucket": f"{project}-rooflaunch",
        "repository": f"us-central1-docker.pkg.dev/{project}/rooflaunch/trainer",
        "service_account": f"rooflaunch-vm@{project}.iam.gserviceaccount.com",
    }


def _from_config(path: Path) -> Mapping[str, object]:
    """Table `[gcp]` of a TOML file; {} if absent. Other parts of the file are read by `workload.contract.spec`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not a readable TOML file: {error}", hint=f'a line [{TABLE}], and below it project = "my-project"'
        ) from error
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {TABLE} must be a table; got '{shown(str(table))}'", hint=f"[{TABLE}]")
    for key in table:
        if key not in NAMES:
            raise UsageError(
                f"{path}: unknown key '{shown(key)}' in [{TABLE}]",
                hint=f"the keys are {', '.join(NAMES)}{did_you_mean(key, NAMES, before='; ')}",
            )
    return table
