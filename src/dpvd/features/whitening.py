"""Whitening by the mean and covariance of made-up images: no statistic of anybody's data.

Features of images are strongly correlated: most of their length lies along a few directions, which
all images share. A step of bounded length is spent on these unless they are scaled down first. The
directions are much the same for made-up shapes as for real images.
"""

import torch
from torch import Tensor, nn

__all__ = ["Whitening", "principal_directions"]

ROUNDS = 3  # of the subspace iteration; the directions that matter settle in two
EXTRA = 100  # directions that are carried along, and dropped at the end


class Whitening(nn.Module):
    """(x - mean) @ directions, for x [n, features].

    Args:
        features: inputs.
        outputs: directions that are kept.
    """

    mean: Tensor
    directions: Tensor

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("directions", torch.zeros(features, outputs))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) @ self.directions

    @torch.no_grad()
    def fit(self, rows: Tensor, ridge: float) -> None:
        """Take mean and covariance from these rows, which must be nobody's data.

        Args:
            rows: [n, features].
            ridge: added to every variance; directions of less variance are enlarged less.
        """
        self.mean.copy_(rows.mean(0))
        vectors, variances = principal_directions(rows - self.mean, self.directions.shape[1])
        self.directions.copy_(vectors / torch.sqrt(variances + ridge))


def principal_directions(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first directions of rows [n, features] without mean, and the variances along them.

    By subspace iteration from a fixed start: a hundred times faster than all eigenvectors of a
    covariance of thousands of features. Directions of little variance are not exact ones; they are
    orthogonal, and their variances and covariances (none) are exact.

    Returns:
        Vectors [features, count] of length 1, orthogonal, and variances [count], falling.
    """
    features = rows.shape[1]
    width = min(count + EXTRA, features)
    source = torch.Generator().manual_seed(0)
    basis = torch.randn(features, width, generator=source)
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(rows.T @ (rows @ basis)).Q
    inside = rows @ basis  # [n, width]
    variances, vectors = torch.linalg.eigh(inside.T @ inside / len(rows))  # rising
    vectors = vectors.flip(1)[:, :count]
    return basis @ vectors, variances.flip(0)[:count].clamp_min(0)
