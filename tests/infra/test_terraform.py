"""What holds for the Terraform files of each cloud; Terraform itself is asked where it is installed."""

import re
import shutil
import subprocess

import pytest

from tests.infra.terraform_files import AMAZON, GOOGLE, TerraformFiles, misuses, values

CLOUDS = (GOOGLE, AMAZON)
each_cloud = pytest.mark.parametrize("cloud", CLOUDS, ids=lambda cloud: cloud.provider)


@each_cloud
def test_the_files_are_there_and_have_no_module_or_provisioner(cloud: TerraformFiles) -> None:
    kinds = {kind for document in cloud.documents for kind in document}
    assert kinds == {"terraform", "provider", "variable", "locals", "resource", "data", "output"}
    assert not [name for name, body in cloud.resources().items() if "provisioner" in body or "connection" in body]


@each_cloud
@pytest.mark.parametrize(
    "word",
    [
        "allUsers",
        "allAuthenticatedUsers",
        "service_account_key",
        "private_key",
        "access_key",
        "secret_key",
        "aws_iam_user",
    ],
)
def test_nothing_public_and_no_keys(cloud: TerraformFiles, word: str) -> None:
    found = [value for document in cloud.documents for value in values(document) if word in value]
    assert not [value for value in found if "aws_iam_user_policy_attachment" not in value]


@pytest.mark.parametrize(
    ("cloud", "name"), [(cloud, name) for cloud in CLOUDS for name in sorted(cloud.named("variable"))]
)
def test_a_variable_is_described_typed_checked_and_in_the_readme(cloud: TerraformFiles, name: str) -> None:
    body = cloud.named("variable")[name]
    assert body["description"].endswith((".", "`."))
    assert body["type"]
    assert "validation" in body or body["type"] in ("bool", "${bool}")
    assert f"| `{name}` |" in cloud.readme


@each_cloud
def test_the_readme_names_no_other_variable(cloud: TerraformFiles) -> None:
    table = re.findall(r"^\| `(\w+)` \|", cloud.readme, flags=re.MULTILINE)
    assert sorted(table) == sorted(cloud.named("variable"))


@each_cloud
def test_versions_have_both_ends(cloud: TerraformFiles) -> None:
    (block,) = cloud.blocks("terraform")
    assert re.fullmatch(r">= [\d.]+, < [\d.]+", block["required_version"])
    (providers,) = block["required_providers"]
    assert list(providers) == [cloud.provider]
    assert providers[cloud.provider]["source"] == f"hashicorp/{cloud.provider}"
    assert re.fullmatch(r">= [\d.]+, < [\d.]+", providers[cloud.provider]["version"])


@each_cloud
def test_every_reference_has_a_target(cloud: TerraformFiles) -> None:
    known = {f"{kind}.{name}" for kind, name in cloud.resources()}
    known |= {f"data.{kind}.{name}" for kind, name in cloud.resources("data")}
    found = set(re.findall(rf"(?<![.\w])(?:data\.)?{cloud.provider}_\w+\.\w+", cloud.text))
    assert found
    assert found <= known
    assert set(re.findall(r"\bvar\.(\w+)", cloud.text)) == set(cloud.named("variable"))
    assert set(re.findall(r"\blocal\.(\w+)", cloud.text)) == set(cloud.locals())


# ---- the provider's arguments


@pytest.mark.parametrize(
    ("cloud", "address"), [(cloud, address) for cloud in CLOUDS for address in sorted(cloud.all_resources())]
)
def test_arguments_are_those_of_the_provider(cloud: TerraformFiles, address: str) -> None:
    assert cloud.misuses(address) == []


def test_misuses_are_found() -> None:
    known = {"a": "required", "b": "optional", "c": "computed", "d": {"e": "required", "*": "required"}}
    assert list(misuses({"a": 1, "d": [{"e": 1}], "count": 1}, known, "x")) == []
    wrong = {"b": 1, "c": 2, "f": 3, "d": [{"g": 1}], "dynamic": [{"d": {"for_each": [], "content": [{"e": 1}]}}]}
    assert list(misuses(wrong, known, "x")) == [
        "x: no a",
        "x.c is computed",
        "x.f is unknown",
        "x.d: no e",
        "x.d.g is unknown",
    ]
    assert list(misuses({"a": 1}, known, "x")) == ["x: no d"]


@each_cloud
def test_attributes_that_are_read_exist(cloud: TerraformFiles) -> None:
    found = cloud.read_attributes()
    assert len(found) > 10
    assert not [f"{kind}: {name}" for kind, name in found if name not in cloud.arguments[kind]]


@each_cloud
@pytest.mark.world
def test_terraform_itself_would_not_format_anything(cloud: TerraformFiles) -> None:
    terraform = shutil.which("terraform") or shutil.which("tofu")
    if terraform is None:
        pytest.skip("needs terraform or tofu")
    done = subprocess.run(
        [terraform, "fmt", "-check", "-diff", cloud.folder], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
