"""The norm of gradients, as a sharded model's ranks sum it up."""

from __future__ import annotations

import pytest
import torch

from elastrain.elastic.reduction import sum_of_squares


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_sum_of_squares_is_that_of_float64_for_any_shape_and_type(dtype):
    torch.manual_seed(0)
    tensors = [torch.randn(300, 700).to(dtype), torch.randn(300, 700).to(dtype).t(), torch.randn(()), torch.zeros(0, 3)]
    expected = sum(t.double().square().sum().item() for t in tensors)
    assert sum_of_squares(tensors) == pytest.approx(expected, rel=1e-12)


def test_the_sum_of_squares_of_large_values_does_not_overflow_their_type():
    assert sum_of_squares([torch.full((100_000,), 1e30)]) == pytest.approx(1e65, rel=1e-6)
