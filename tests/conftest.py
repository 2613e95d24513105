"""Fixtures that several packages' tests share."""

import pytest
import torch


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh seeded generator: tests never seed the global one."""
    return torch.Generator().manual_seed(20170)
