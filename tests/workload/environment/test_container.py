import shutil
from types import SimpleNamespace

import pytest

from tests.workload.conftest import LayOut
from workload.environment.host import container_facts

OVERLAY = "1 0 0:50 / / rw - overlay overlay rw,lowerdir=/x\n"
DISK = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /var/lib/docker/overlay2/m rw - overlay overlay rw\n"

CASES = {
    "bare host": ({"/proc/1/cgroup": "0::/init.scope\n", "/proc/self/mountinfo": DISK}, {}, None),
    "host with docker installed": ({"/proc/self/cgroup": "0::/system.slice/docker.service\n"}, {}, None),
    "no /proc": ({}, {}, None),
    "docker": ({"/.dockerenv": ""}, {}, "docker"),
    "podman": ({"/run/.containerenv": ""}, {}, "podman"),
    "podman in docker's clothes": ({"/run/.containerenv": "", "/.dockerenv": ""}, {}, "podman"),
    "kubernetes": ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    "kubernetes on docker": ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    "apptainer": ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
    "singularity": ({}, {"SINGULARITY_CONTAINER": "/x.sif"}, "apptainer"),
    "lxc": ({"/proc/1/environ": "PATH=/bin\0container=lxc\0"}, {}, "lxc"),
    "libvirt's lxc": ({"/proc/1/environ": "container=lxc-libvirt\0"}, {}, "lxc"),
    "an unheard-of maker": ({"/proc/1/environ": "container=systemd-nspawn\0"}, {}, "unknown"),
    "own variable": ({}, {"container": "podman"}, "podman"),
    "noted by systemd": ({"/run/systemd/container": "docker\n"}, {}, "docker"),
    "another variable that ends so": ({"/proc/1/environ": "mycontainer=lxc\0"}, {}, None),
    "cgroup v1: docker": ({"/proc/1/cgroup": "4:memory:/docker/abc\n0::/\n"}, {}, "docker"),
    "cgroup v2: docker under systemd": ({"/proc/1/cgroup": "0::/system.slice/docker-abc.scope\n"}, {}, "docker"),
    "cgroup v1: pod": ({"/proc/1/cgroup": "4:memory:/kubepods/docker/abc\n"}, {}, "kubernetes"),
    "cgroup: libpod": ({"/proc/1/cgroup": "0::/machine.slice/libpod-abc.scope\n"}, {}, "podman"),
    "cgroup: lxc": ({"/proc/1/cgroup": "0::/lxc.payload.web\n"}, {}, "lxc"),
    "a group with a maker's name inside": ({"/proc/1/cgroup": "0::/user.slice/rundocker.scope\n"}, {}, None),
    "overlay as root": ({"/proc/1/cgroup": "0::/\n", "/proc/self/mountinfo": OVERLAY}, {}, "unknown"),
}


@pytest.mark.parametrize(("files", "environ", "expected"), CASES.values(), ids=CASES.keys())
def test_runtime(lay_out: LayOut, files: dict[str, str], environ: dict[str, str], expected: str | None) -> None:
    facts = container_facts(lay_out(files, environ=environ))
    assert (facts and facts["runtime"]) == expected


def test_what_the_container_was_given(lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = lay_out(
        {
            "/.dockerenv": "",
            "/proc/self/mountinfo": "25 24 0:23 / /dev/shm rw - tmpfs shm rw,size=65536k\n",
        },
        environ={"ROOFLAUNCH_IMAGE_DIGEST": "sha256:abc", "AWS_SECRET_ACCESS_KEY": "hidden"},
    )
    sizes = {machine.path("/dev/shm"): SimpleNamespace(total=64 * 1024**2)}
    monkeypatch.setattr(shutil, "disk_usage", sizes.__getitem__)
    assert container_facts(machine) == {
        "runtime": "docker",
        "image_digest": "sha256:abc",
        "shm_bytes": 64 * 1024**2,
    }


def test_a_container_that_tells_nothing_more(lay_out: LayOut) -> None:
    machine = lay_out({"/.dockerenv": ""}, environ={"ROOFLAUNCH_IMAGE_DIGEST": ""})
    facts = container_facts(machine) or {}
    assert facts.pop("runtime") == "docker"
    assert set(facts.values()) == {None}


def test_shared_memory_that_is_gone(lay_out: LayOut) -> None:
    mount = "25 24 0:23 / /dev/shm rw - tmpfs shm rw\n"
    facts = container_facts(lay_out({"/.dockerenv": "", "/proc/self/mountinfo": mount})) or {}
    assert facts["shm_bytes"] is None
