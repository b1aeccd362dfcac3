"""What a review of infra/gcp/ looks for, on the parsed files."""

import re
from collections.abc import Callable, Iterator

from launcher.backends.gcp import options
from launcher.images.contents import AGENT_FILES
from tests.infra.terraform_files import GOOGLE, ROOT

Golden = Callable[[str, str], None]


def _rights() -> Iterator[str]:
    """Who has which role, on what, and on which condition; then what our own roles allow."""
    for (kind, _), body in sorted(GOOGLE.resources().items()):
        if kind.endswith("_iam_member"):
            on = kind.removeprefix("google_").removesuffix("_iam_member")
            more = [f"{key} {body[key]}" for key in ("count", "for_each") if key in body]
            expressions = [condition["expression"].replace("\\n", " ") for condition in body.get("condition", ())]
            more += [f"if {' '.join(expression.split())}" for expression in expressions]
            yield "\n  ".join([f"{body['member']} has on {on} {body['role']}", *more])
    for name, body in sorted(GOOGLE.of_kind("google_project_iam_custom_role").items()):
        yield "\n  ".join([f"{name} is {body['role_id']}", *sorted(body["permissions"])])


def test_rights_are_the_committed_ones(golden: Golden) -> None:
    golden("google_rights.txt", "\n".join([*_rights(), ""]))
    roles = {body["role"] for body in GOOGLE.resources().values() if "role" in body}
    assert not [role for role in roles if re.search(r"roles/(owner|editor|viewer)$|[aA]dmin", role)]
    kinds = {kind for kind, _ in GOOGLE.resources()}
    assert not [kind for kind in kinds if kind.endswith(("_iam_policy", "_iam_binding"))], "which replace others"
    account = GOOGLE.of_kind("google_service_account_iam_member")["launchers"]
    assert account["service_account_id"] == "${google_service_account.vm.name}"


# ---- what a VM may do

# Where the code of a VM uses each permission. A new call there needs a line here, and one in vm.tf.
USES = {
    "compute.instances.delete": ("launcher/backends/gcp/startup.sh", r"instances/\$name"),
    "compute.instances.get": ("launcher/backends/gcp/guest.py", r"/instances/\{self\.text\('instance/name'\)\}"),
}
# The services that a VM's own token is sent to; the metadata server and the registry are no such host.
VM_HOSTS = {"storage.googleapis.com", "compute.googleapis.com"}


def test_a_vms_own_role_is_what_its_code_uses() -> None:
    permissions = GOOGLE.of_kind("google_project_iam_custom_role")["vm"]["permissions"]
    assert sorted(permissions) == sorted(USES)
    for permission, (path, pattern) in USES.items():
        assert re.search(pattern, (ROOT / path).read_text(encoding="utf-8")), f"nothing in {path} needs {permission}"


ON_THE_VM = ("startup.sh", "shutdown.sh", "boot.py", "guest.py")
VM_PROGRAMS = ["launcher/backends/boot.py", *(f"launcher/backends/gcp/{name}" for name in ON_THE_VM), *AGENT_FILES]


def test_a_vm_calls_no_other_service() -> None:
    hosts = {
        host
        for path in VM_PROGRAMS
        for host in re.findall(r"[a-z.]+\.googleapis\.com", (ROOT / path).read_text(encoding="utf-8"))
    }
    assert hosts <= VM_HOSTS


# ---- what a launcher may do

# Permission for each request of launcher/backends/gcp/compute.py; a list is named by its kind alone.
REQUESTS = {
    "Disks": "compute.disks.list",
    "Disks.delete": "compute.disks.delete",
    "Images.get_from_family": "compute.images.getFromFamily",
    "Instances": "compute.instances.list",
    "Instances.delete": "compute.instances.delete",
    "Instances.get": "compute.instances.get",
    "Instances.insert": "compute.instances.create",
    "Projects.get": "compute.projects.get",
    "Regions.get": "compute.regions.get",
    "ZoneOperations.list": "compute.zoneOperations.list",
    "ZoneOperations.wait": "compute.zoneOperations.get",
    "get_guest_attributes": "compute.instances.getGuestAttributes",
    "get_serial_port_output": "compute.instances.getSerialPortOutput",
}
# What an insert asks for beside compute.instances.create, for what plan.py puts into it.
WITH_INSERT = {
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.images.useReadOnly",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
}
FOR_DOCTOR = {
    "iam.roles.get",
    "iam.serviceAccounts.get",
    "resourcemanager.projects.getIamPolicy",
    "serviceusage.services.list",
}
# Those of a role that holds for our own VMs and disks alone.
DELETIONS = {"compute.disks.delete", "compute.instances.delete"}
# Credentials of a user name a project whose quota counts (set-quota-project), and Google asks for the right to use it.
FOR_QUOTA_PROJECT = {"serviceusage.services.use"}


def test_a_launchers_role_is_what_its_code_asks_for() -> None:
    code = (ROOT / "launcher" / "backends" / "gcp" / "compute.py").read_text(encoding="utf-8")
    asked = re.findall(r'self\._(?:ask|ask_guest|pages|labelled)\(\s*"(\w+)"(?:, "(\w+)")?', code)
    assert {".".join(filter(None, names)) for names in asked} == set(REQUESTS)
    roles = GOOGLE.of_kind("google_project_iam_custom_role")
    asked_for = {*REQUESTS.values(), *WITH_INSERT, *FOR_DOCTOR, *FOR_QUOTA_PROJECT}
    assert sorted(roles["launcher"]["permissions"]) == sorted(asked_for - DELETIONS)
    assert sorted(roles["launcher_deletes"]["permissions"]) == sorted(DELETIONS)


def test_no_advice_takes_roles_out_of_the_state() -> None:
    assert "-var role_suffix=2" in GOOGLE.readme
    commands = [line for line in GOOGLE.readme.splitlines() if line.startswith("$ ")]
    assert not [line for line in commands if "state rm" in line], "the next apply would fail: the role exists"


def test_providers_hold_no_credentials() -> None:
    providers = [body for block in GOOGLE.blocks("provider") for body in block.values()]
    keys = {"project", "region", "alias", "billing_project", "user_project_override"}
    assert {key for body in providers for key in body} == keys


# ---- bucket, registry and network

REVIEWED = (
    *("google_storage_bucket", "google_artifact_registry_repository", "google_compute_firewall"),
    *("google_compute_subnetwork", "google_compute_router_nat", "google_project_service"),
)


def test_bucket_registry_and_network_are_the_committed_ones(golden: Golden) -> None:
    """The bucket is closed, and keeps results; the network lets nothing in but ssh by proxy, on request."""
    golden("google_resources.json", GOOGLE.shown(REVIEWED))
    rules = GOOGLE.of_kind("google_compute_firewall")
    assert rules["deny_ingress"]["deny"] == [{"protocol": "all"}]
    assert rules["iap_ssh"]["priority"] < rules["deny_ingress"]["priority"]


# ---- variables, outputs, versions

DEFAULTS = {
    **dict.fromkeys(("create_network", "iap_ssh", "guest_logging", "use_batch", "delete_results_on_destroy"), False),
    "soft_delete_days": 7,
}


def test_only_the_project_has_to_be_given_and_extras_are_only_on_request() -> None:
    variables = GOOGLE.named("variable")
    assert [name for name, body in variables.items() if "default" not in body] == ["project"]
    assert {name: variables[name]["default"] for name in DEFAULTS} == DEFAULTS
    assert variables["runs_delete_after_days"]["default"] in (None, "null")


def test_outputs_are_the_settings_of_launch_gcp() -> None:
    outputs = GOOGLE.named("output")
    assert list(outputs) == [*options.RULES, "rooflaunch_toml"]
    assert all(body["description"].endswith(".") for body in outputs.values())
    assert list(GOOGLE.locals()["settings"]) == list(options.RULES)


def test_without_settings_launch_gcp_finds_what_terraform_makes() -> None:
    found = options.resolve_settings({"project": "my-project-1"}, {}, None, default_project=lambda: None)[0]
    variables = GOOGLE.named("variable")
    (bucket,) = GOOGLE.of_kind("google_storage_bucket").values()
    (account,) = GOOGLE.of_kind("google_service_account").values()
    assert bucket["name"] == '${coalesce(var.bucket, "${var.project}-rooflaunch")}'
    assert found.bucket == "my-project-1-rooflaunch"
    region, repository = variables["region"]["default"], variables["repository"]["default"]
    assert found.repository == f"{region}-docker.pkg.dev/my-project-1/{repository}/trainer"
    assert found.service_account == f"{account['account_id']}@my-project-1.iam.gserviceaccount.com"
