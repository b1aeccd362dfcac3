"""Nothing to gain: a Gaussian process, whose step factorizes a matrix by one call of LAPACK."""

import torch


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    points, values = torch.rand(768, 4), torch.randn(768, 1)
    squared = torch.cdist(points, points).square()
    scale = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam([scale], lr=1e-3)
    for _ in range(10000):
        optimizer.zero_grad()
        factor = torch.linalg.cholesky(torch.exp(-squared * scale.exp()) + 0.1 * torch.eye(768))
        solved = torch.linalg.solve_triangular(factor, values, upper=False)
        (solved.square().sum() / 2 + factor.diagonal().log().sum()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
