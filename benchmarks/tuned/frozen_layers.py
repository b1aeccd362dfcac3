"""Nothing to gain from outside: layers that are not trained compute gradients, which no change of the table stops."""

import torch


def main() -> None:
    torch.manual_seed(0)
    pretrained = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
    head = torch.nn.Linear(512, 10)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    samples, labels = torch.randn(256, 512), torch.arange(256) % 10
    for _ in range(20000):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(pretrained(samples)), labels).backward()
        # Without this line, the unused gradients would be added up for ever.
        pretrained.zero_grad()
        optimizer.step()


if __name__ == "__main__":
    main()
