"""Fixtures that several packages' tests share."""

import pytest
import torch
from hypothesis import settings

# Examples take as long as a busy machine lets them: a deadline would only make tests fail now and
# then.
settings.register_profile("dpvd", deadline=None)
settings.load_profile("dpvd")


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh seeded generator: tests never seed the global one."""
    return torch.Generator().manual_seed(20170)
