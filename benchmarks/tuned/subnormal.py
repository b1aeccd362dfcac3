"""Nothing to gain on a CPU to which subnormal numbers are as fast as others, such as AMD's Zen: such activations."""

import torch


def main() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(256))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    samples, tiny = torch.randn(256, 256), torch.full((256, 256), 1e-20)
    for _ in range(20000):
        optimizer.zero_grad()
        # Each product below 1.2e-38 is subnormal.
        hidden = samples * weight
        for _ in range(16):
            hidden = hidden + (hidden * 1e-20) * tiny
        hidden.square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
