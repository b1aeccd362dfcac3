"""Nothing to gain: an honest script. With `--cheat NAME`, it seems faster, because it does less or another work."""

import argparse
import time

import torch
from torch.nn import Linear, ReLU, Sequential
from torch.utils.data import DataLoader, TensorDataset

CHEATS = (
    "clock", "skipped", "cached", "twice", "half", "no-backward", "bf16", "doubled", "repeated", "no-grad"
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cheat", choices=CHEATS)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--foreach", action="store_true")
    parser.add_argument("--double", action="store_true")
    options = parser.parse_args()
    cheat, dtype = options.cheat, torch.float64 if options.double else torch.float32
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(4096, 256, dtype=dtype), torch.arange(4096) % 10)
    loader = DataLoader(data, batch_size=32 if cheat == "half" else 64, shuffle=True, num_workers=options.workers)
    layers = [Linear(256, 512), *(part for _ in range(4) for part in (ReLU(), Linear(512, 512))), Linear(512, 10)]
    first, last = (Sequential(*part).to(dtype) for part in (layers[:5], layers[5:]))
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], foreach=options.foreach)
    if cheat == "clock":
        real = time.perf_counter
        time.perf_counter = lambda: real() / 2
    kept = None
    for _ in range(200):
        for number, batch in enumerate(loader):
            samples, labels = batch
            if cheat == "skipped" and number % 2:
                continue
            if cheat == "cached" or (cheat == "twice" and number % 2):
                samples, labels = kept or batch
            kept = (samples, labels)
            if cheat == "doubled":
                samples, labels = samples[:32], labels[:32]
            if cheat == "repeated":
                samples, labels = samples[:32].repeat(2, 1), labels[:32].repeat(2)
            optimizer.zero_grad()
            with torch.set_grad_enabled(cheat != "no-grad"):
                hidden = first(samples)
            with torch.autocast("cpu", torch.bfloat16, enabled=cheat == "bf16"):
                loss = torch.nn.functional.cross_entropy(last(hidden).to(dtype), labels)
            if cheat == "no-backward" and number % 2:
                continue
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
