"""Whether pip finds wheels for Windows and macOS, of every package that our extras need there."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PLATFORMS = {
    "win_amd64": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt", "platform_machine": "AMD64"},
    "macosx_14_0_arm64": {
        "sys_platform": "darwin",
        "platform_system": "Darwin",
        "os_name": "posix",
        "platform_machine": "arm64",
    },
}
PYTHON = "3.12"
# Pure Python, published as source only; pip builds them.
NO_WHEEL = {"fvcore", "iopath"}


def declared() -> set[str]:
    """Requirements of the program and its extras, without those of developers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name, group in extras.items() if name != "dev" for line in group)]
    return {line for line in lines if not line.startswith("rooflaunch[")}


def found(lines: Iterable[str], platform: str) -> list[dict[str, Any]]:
    """Metadata of the wheels that pip finds for `platform`, without their dependencies."""
    asked = [line for line in lines if canonicalize_name(Requirement(line).name) not in NO_WHEEL]
    words = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--only-binary=:all:", "--target", "unused"]
    words += ["--platform", platform, "--python-version", PYTHON, "--implementation", "cp", "--report", "-"]
    words += ["--constraint", "constraints.txt"]
    command = [sys.executable, "-m", "pip", "install", *words, *asked]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return [row["metadata"] for row in json.loads(done.stdout)["install"]]


@pytest.mark.world
@pytest.mark.night(part="platforms")
@pytest.mark.timeout(0)  # pip downloads a wheel whose index does not serve its metadata alone
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_package_has_a_wheel(platform: str) -> None:
    environment = {**PLATFORMS[platform], "python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
    wanted, known, asked = declared(), set[str](), set[str]()
    while wanted:
        extras = {canonicalize_name(Requirement(line).name): Requirement(line).extras for line in wanted}
        metadata = found(sorted(wanted), platform)
        known, asked, wanted = known | set(extras), asked | wanted, set()
        for package in metadata:
            for line in package.get("requires_dist", []):
                need = Requirement(line)
                for extra in ("", *extras[canonicalize_name(package["name"])]):
                    if need.marker is None or need.marker.evaluate({**environment, "extra": extra}):
                        need.marker = None
                        wanted |= {str(need)} - asked
    assert {"torch", "docker", "google-crc32c", "grpcio", "vl-convert-python", "sympy"} <= known
    assert ("pywin32" in known) == (platform == "win_amd64")
    assert not [name for name in known if name.startswith("nvidia-cu")]
