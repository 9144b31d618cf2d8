from __future__ import annotations

import pytest
import torch

from headrace.learner.optimizer import Optimizer


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_steps_equal_those_of_torchs_own_class_also_after_a_restore(kind):
    torch.manual_seed(0)
    flat, expected = torch.ones(50), torch.ones(50, requires_grad=True)
    if kind == "adam":
        theirs = torch.optim.Adam([expected], eps=1e-5)
    else:
        theirs = torch.optim.RMSprop([expected], alpha=0.99, eps=1e-5)
    mine = Optimizer(kind, flat, 1e-5)
    for i in range(20):
        gradient, rate = torch.randn(50), 0.1 / (i + 1)
        if i == 10:
            saved = {k: v if k == "kind" else v.clone() for k, v in mine.state_dict().items()}
            mine = Optimizer(kind, flat, 1e-5)
            mine.load_state_dict(saved)
        mine.step(gradient, rate)
        expected.grad = gradient
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
        torch.testing.assert_close(flat, expected.detach(), rtol=1e-6, atol=1e-7)


def test_the_state_of_another_optimiser_or_network_is_refused():
    adam, small = Optimizer("adam", torch.ones(5), 1e-5), Optimizer("adam", torch.ones(4), 1e-5)
    with pytest.raises(ValueError, match="rmsprop"):
        adam.load_state_dict(Optimizer("rmsprop", torch.ones(5), 1e-5).state_dict())
    with pytest.raises(ValueError, match="4 weights, not 5"):
        adam.load_state_dict(small.state_dict())
