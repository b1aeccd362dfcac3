import hashlib
import multiprocessing
import pickle
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from torchvision import datasets

from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, RunSpec
from workload.steps.training_step import _loader as loader_of
from workload.steps.training_step import open_source


def spec(dataset: object, **more: object) -> RunSpec:
    options: dict[str, object] = {"batch_size": 4, "image_size": 32, "workers": 0} | more
    return RunSpec(dataset=str(dataset), **options).filled(Device.CPU, cpus=2)  # type: ignore[arg-type]


def test_synthetic_is_one_fixed_batch() -> None:
    source = open_source(spec("synthetic", batch_size=2))
    first, second = islice(source.batches(), 2)
    assert first[0].shape == (2, 3, 32, 32)
    assert first[1].shape == (2,)
    assert first[0].data_ptr() == second[0].data_ptr()
    again = next(open_source(spec("synthetic", batch_size=2)).batches())
    assert torch.equal(first[0], again[0])
    other = next(open_source(spec("synthetic", batch_size=2, seed=1)).batches())
    assert not torch.equal(first[0], other[0])
    assert source.classes == 1000


@pytest.mark.parametrize("layout", ["", "train"])
def test_image_folder_gives_full_batches_for_ever(images: Path, layout: str) -> None:
    if layout:
        inner = images.parent / "outer" / layout
        inner.parent.mkdir()
        images.rename(inner)
        images = inner.parent
    source = open_source(spec(images, batch_size=5))
    assert (source.classes, source.images) == (2, 24)
    # 24 images make 4 full batches of 5: the 12 batches are three epochs.
    for batch, labels in islice(source.batches(), 12):
        assert (batch.shape, batch.dtype) == ((5, 3, 32, 32), torch.float32)
        assert set(labels.tolist()) <= {0, 1}


def test_without_augmentation_an_image_is_always_the_same(images: Path) -> None:
    def one_epoch(**more: object) -> torch.Tensor:
        torch.manual_seed(int(more.pop("torch_seed", 0)))  # type: ignore[call-overload]
        batch, _ = next(open_source(spec(images, batch_size=24, **more)).batches())
        return batch.sum(dim=(1, 2, 3)).sort().values

    plain = one_epoch(no_augment=True, torch_seed=1)
    assert torch.allclose(plain, one_epoch(no_augment=True, torch_seed=2), atol=1e-2)
    assert not torch.allclose(one_epoch(torch_seed=1), one_epoch(torch_seed=2), atol=1e-2)


def test_ranks_draw_different_images_of_a_subset(images: Path) -> None:
    asked, drawn = spec(images, subset=8, devices=2), []
    for rank in (0, 1):
        with closing(open_source(asked, rank).batches()) as batches:
            drawn.append(next(batches)[0])
    assert open_source(asked).images == 8
    assert not torch.equal(*drawn)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"subset": 3}, "gives 3 images: fewer than one batch of 4"),
        ({"subset": 7, "devices": 2}, "gives 7 images: fewer than one batch of 4 for each of 2 devices"),
    ],
)
def test_fewer_images_than_a_batch_are_refused(images: Path, more: dict[str, int], error: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_source(spec(images, **more))
    assert str(caught.value) == f"data set '{images}' {error}"
    assert caught.value.hint == "--batch-size 3, or more images"


@pytest.mark.world
@pytest.mark.parametrize("persist", [True, False])
def test_workers_end_with_their_batches(images: Path, *, persist: bool) -> None:
    asked = spec(images, workers=2, batch_size=12, persistent_workers=persist, prefetch_factor=1)
    batches, epochs = open_source(asked).batches(), list[set[int | None]]()
    for _ in range(2):
        assert next(batches)[0].shape == (12, 3, 32, 32)
        epochs.append({process.pid for process in multiprocessing.active_children()})
        next(batches)
    assert [len(pids) for pids in epochs] == [2, 2]
    assert epochs[0].isdisjoint(epochs[1]) is not persist
    batches.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"workers": 0}, (0, None, False, False)),
        ({"workers": 2}, (2, 2, False, True)),
        ({"workers": 2, "device": Device.CUDA}, (2, 2, True, True)),
        ({"workers": 2, "device": Device.CUDA, "pin_memory": False, "prefetch_factor": 7}, (2, 7, False, True)),
        ({"workers": 0, "device": Device.CUDA, "pin_memory": True}, (0, None, True, False)),
        ({"workers": 2, "persistent_workers": False}, (2, 2, False, False)),
    ],
)
def test_options_of_the_loader(given: dict[str, Any], expected: tuple[object, ...]) -> None:
    made = loader_of(RunSpec(batch_size=4, image_size=32, **{"device": Device.CPU, **given}), 0, datasets.FakeData(8))
    assert (made.num_workers, made.prefetch_factor, made.pin_memory, made.persistent_workers) == expected


@pytest.mark.parametrize("classes", [[], ["empty"]])
def test_folder_without_images(tmp_path: Path, classes: list[str]) -> None:
    for name in classes:
        (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=f"no images in '{tmp_path}'") as caught:
        open_source(spec(tmp_path))
    assert "FOLDER/<class>/<image>.jpg" in caught.value.hint


@pytest.mark.world
@pytest.mark.parametrize(("content", "workers"), [(b"", 0), (b"no image", 2), (b"truncated", 2)])
def test_broken_image_is_named(images: Path, workers: int, content: bytes) -> None:
    broken = images / "cat" / "broken.jpg"
    broken.write_bytes((images / "cat" / "0.jpg").read_bytes()[:700] if content == b"truncated" else content)
    batches = open_source(spec(images, batch_size=25, workers=workers)).batches()
    with pytest.raises(UsageError) as caught:
        next(batches)
    assert str(caught.value).startswith(f"image '{broken}' cannot be decoded: ")
    assert "Traceback" not in str(caught.value)
    assert multiprocessing.active_children() == []
    assert caught.value.hint == f"remove or replace the image: {broken}"


@pytest.mark.parametrize("name", ["cifar10", "imagenette"])
def test_absent_data_set_says_how_to_get_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=f"data set '{name}' is not in '{tmp_path}'") as caught:
        open_source(spec(name, data_dir=str(tmp_path)))
    assert caught.value.hint == f"--dataset {name} --download, or --data-dir FOLDER"

    def no_network(*_: object, **__: object) -> None:
        raise URLError("no route")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(ToolError, match=f"data set '{name}' cannot be downloaded: "):
        open_source(spec(name, data_dir=str(tmp_path), download=True))


def test_imagenette_is_read_where_torchvision_unpacks_it(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "imagenette2-320" / "train"
    folder.parent.mkdir()
    images.rename(folder)
    source = open_source(spec("imagenette", data_dir=str(tmp_path)))
    assert (source.images, source.path) == (24, folder)


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in CIFAR-10's format with 20 images; torchvision's checksums are replaced by theirs."""
    from torchvision.datasets import CIFAR10

    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    batch = {"data": torch.randint(255, (20, 3072), dtype=torch.uint8).numpy(), "labels": [n % 10 for n in range(20)]}
    contents = {"data_batch_1": batch, "test_batch": batch, "batches.meta": {"label_names": list("abcdefghij")}}
    sums = {}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", sums["data_batch_1"]]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": sums["batches.meta"]}
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return tmp_path


@pytest.mark.parametrize("image_size", [32, 64])
def test_cifar10(cifar: Path, image_size: int) -> None:
    source = open_source(spec("cifar10", data_dir=str(cifar), image_size=image_size))
    assert (source.classes, source.images) == (10, 20)
    images, _ = next(source.batches())
    assert images.shape == (4, 3, image_size, image_size)
