"""V-MPO (Song et al. 2020) as a custom algorithm: minibatch epochs, state and a KL penalty.

Run ``python examples/vmpo.py``, or ``headrace train examples/vmpo.py:VMPO``.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

import headrace as hr
from headrace.algos.common import by_task, policy_outputs, total_loss
from headrace.algos.minibatches import new_generator, shuffled, with_targets
from headrace.algos.penalty import Penalty
from headrace.ops.losses import approx_kl, policy_gradient_loss
from headrace.ops.returns import gae
from headrace.validation import ranges


@dataclass(frozen=True)
class VMPO(hr.Hyperparameters):
    """V-MPO (Song et al. 2020), with an adaptive KL penalty instead of the dual variable alpha."""

    learning_rate: float = 1e-3
    epochs: Annotated[int, ranges.COUNT] = 6
    """Passes over each batch."""
    minibatches: Annotated[int, ranges.SIZE] = 8
    """Minibatches per pass."""
    eps_eta: Annotated[float, ranges.ABOVE_0] = 0.3
    """KL bound between weighted and uniform top-half samples; determines the temperature."""
    kl_target: Annotated[float, ranges.ABOVE_0] = 0.01
    """Target KL per update."""

    def init(self, policy):
        penalty = Penalty(coef=1.0, target=self.kl_target, window=self.minibatches)
        return {"eta": 1.0, "penalty": penalty, "generator": new_generator()}

    def batches(self, policy, fresh, state, group):
        state["penalty"].adapt()
        batch = with_targets(policy, fresh(), lambda *both: self._targets(*both, state))
        yield from shuffled(batch, self.epochs, self.minibatches, state["generator"])

    def _targets(self, outputs, batch, state):
        advantage, target = gae(*batch.stream(outputs.value), gamma=self.gamma, lam=self.lam)
        advantage = by_task(outputs.popart, advantage)
        advantage = advantage / (advantage[batch.valid].std() + 1e-8)
        better = batch.valid & (advantage >= advantage[batch.valid].median())
        log_eta = torch.tensor(state["eta"]).log().requires_grad_()
        with torch.enable_grad():  # equation 4: temperature loss
            for _ in range(10):
                eta = log_eta.exp()
                dual = eta * (self.eps_eta + (advantage[better] / eta).logsumexp(0))
                dual = dual - eta * torch.tensor(float(better.sum())).log()
                (slope,) = torch.autograd.grad(dual, log_eta)
                log_eta = (log_eta - 0.3 * slope).detach().clamp(-5, 5).requires_grad_()
        state["eta"] = log_eta.exp().item()
        weight = torch.zeros_like(advantage)
        weight[better] = (advantage[better] / state["eta"]).softmax(0) * batch.valid.sum()
        return {"weight": weight, "target": target}

    def loss(self, policy, batch, state):
        outputs, targets = policy_outputs(policy, batch), batch.targets
        policy_loss = policy_gradient_loss(outputs.log_prob, targets["weight"], batch.valid)
        loss, metrics = total_loss(self, batch, outputs, policy_loss, targets["target"])
        kl = approx_kl(outputs.log_prob - batch.log_prob, batch.valid)
        return loss + state["penalty"].coef * kl, metrics

    def after_step(self, policy, state, metrics):
        state["penalty"].note(metrics["approx_kl"])
        return False


if __name__ == "__main__":
    policy = hr.train("CartPole-v1", VMPO(), total_steps=100_000, run_dir="runs/vmpo")
