"""Broken copies of each op, every one of which its check must reject.

A mutant is one textual replacement in the source of one function or class. Its check is the one of
the real op in the neighbouring test file.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from headrace.ops import action_bounds, distributions, losses, ratio, returns
from headrace.ops.distributions import gaussian
from headrace.spaces import actions as action_spaces
from headrace.spaces import masks, walk
from tests.ops import test_distributions as on_distributions
from tests.ops import test_losses as on_losses
from tests.ops import test_returns as on_returns
from tests.spaces import test_actions as on_action_spaces
from tests.spaces import test_walk as on_walk

Check = Callable[[ModuleType], None]

DELTA = "torch.where(valid_t, reward + discount_t * v_tp1 - v_t, 0.0)"
NEXT_ENDS = "torch.cat((first[2:], torch.zeros_like(first[:1])))"  # is step t + 1 a filler?
GRAD, NO_GRAD = "with torch.enable_grad():", "with torch.no_grad():"

# What is broken, in which function, the text that is replaced, and by what.
RECURRENCE = [
    ("writes into the caller's tensor", "x = inputs.clone()", "x = inputs"),
    ("decays shifted by one row", "decays[:-1]", "decays[1:]"),
    ("products not accumulated", "decay[:-stride] * decay[stride:]", "decay[:-stride] * 1.0"),
    ("stops a round early", "stride < num_rows", "2 * stride < num_rows"),
    ("inputs beyond the next row lost", "stride < num_rows", "stride < min(num_rows, 2)"),
]
BOTH_STREAMS = [
    ("mask of the wrong row", "first[1:]", "first[:-1]"),
    ("carried sum not masked", "(valid_t & ~terminated)", "(~terminated)"),
    ("termination ignored", "(valid_t & ~terminated)", "valid_t"),
    (
        "truncation as termination",
        "(valid_t & ~terminated)",
        f"(valid_t & ~terminated & ~{NEXT_ENDS})",
    ),
    ("TD error not masked", DELTA, "(reward + discount_t * v_tp1 - v_t)"),
    ("NaN multiplied by 0", DELTA, "valid_t * (reward + discount_t * v_tp1 - v_t)"),
    ("own value in place of the next", DELTA, DELTA.replace("v_tp1", "v_t")),
    ("undiscounted", ".mul_(gamma)", ""),
    (
        "fragment's end as termination",
        "v_t, v_tp1 = value[:-1], value[1:]",
        "v_t, v_tp1 = value[:-1], torch.cat((value[1:-1], 0 * value[-1:]))",
    ),
    ("gradient through the outputs", NO_GRAD, GRAD),
]
GAE = [
    ("lambda ignored", "discount_t * lam", "discount_t"),
    ("trace undiscounted", "discount_t * lam", "(discount_t > 0).double() * lam"),
    ("advantage as target", "advantage_t + v_t", "advantage_t + 0 * v_t"),
    ("next value in the target", "advantage_t + v_t", "advantage_t + v_tp1"),
]
ADVANTAGE = "torch.where(valid_t, reward + discount_t * vs_tp1 - v_t, 0.0)"
VTRACE = [
    ("ratio inverted", "log_ratio, 0.0)", "-log_ratio, 0.0)"),
    ("ratio not exponentiated", "exp_ratio(", "(1.0 + "),
    ("ratio of fillers not masked", "torch.where(valid_t, log_ratio, 0.0)", "(log_ratio + 0.0)"),
    ("c_bar used for rho", "max=rho_bar", "max=c_bar"),
    ("rho_bar used for c", "max=c_bar", "max=rho_bar"),
    ("c_bar fixed at 1", "max=c_bar", "max=1.0"),
    ("rho_bar fixed at 1", "max=rho_bar", "max=1.0"),
    ("pg_rho_bar ignored", "max=pg_rho_bar", "max=float('inf')"),
    ("rho_bar used for the policy gradient", "max=pg_rho_bar", "max=rho_bar"),
    ("clip from below", "clamp(max=rho_bar)", "clamp(min=rho_bar)"),
    ("lambda ignored", ".mul_(lam)", ""),
    ("lambda in rho", "rho_t * torch.where", "lam * rho_t * torch.where"),
    (
        "lambda in q",
        "reward + discount_t * vs_tp1",
        "reward + discount_t * (lam * vs_tp1 + (1 - lam) * v_tp1)",
    ),
    ("TD error without rho", "rho_t * torch.where", "torch.where"),
    ("trace without c", "discount_t * c_t", "discount_t"),
    ("last row's q without bootstrap", "value[-1:]))", "0 * value[-1:]))"),
    ("q from V in place of vs", "discount_t * vs_tp1", "discount_t * v_tp1"),
    ("vs - V as advantage", ADVANTAGE, "(vs_t - v_t)"),
    ("advantage not masked", ADVANTAGE, "(reward + discount_t * vs_tp1 - v_t)"),
    ("q across the episode's end", ADVANTAGE, ADVANTAGE.replace("discount_t", "gamma")),
    (
        "advantages swapped",
        "ratio_t.clamp(max=pg_rho_bar) * advantage_t, advantage_t",
        "advantage_t, ratio_t.clamp(max=pg_rho_bar) * advantage_t",
    ),
    ("policy gradient unweighted", "ratio_t.clamp(max=pg_rho_bar) * advantage_t", "advantage_t"),
    (
        "ratio in the plain advantage",
        "* advantage_t, advantage_t)",
        "* advantage_t, rho_t * advantage_t)",
    ),
]
SUM = [
    ("mean", ".sum()", ".mean()"),
    ("value not masked", "torch.where(valid, value, 0.0)", "value"),
    ("slope not masked", "torch.where(valid, slope, 0.0)", "slope"),
    ("mask inverted", "torch.where(valid, value", "torch.where(~valid, value"),
    ("no slope", "grad * slope", "grad * 0.0 * slope"),
]
POLICY_GRADIENT = [
    ("sign", "(-log_prob", "(log_prob"),
    ("sign of the slope", ", -advantage", ", advantage"),
]
EPSILON_POLICY_GRADIENT = [
    ("epsilon as its log", "math.log(epsilon)", "epsilon"),
    ("epsilon ignored", "math.log(epsilon)", "-700.0"),
    ("clipped instead", "torch.logaddexp(", "torch.maximum("),
    ("sign", "(-corrected", "(corrected"),
    ("whole slope", "share * -advantage", "-advantage"),
]
SURROGATE = [
    ("ratio inverted", "log_prob - old", "old - log_prob"),
    ("gradient through the target", "target_log_prob.detach()", "target_log_prob"),
    ("gradient through the worker", "behaviour_log_prob.detach()", "behaviour_log_prob"),
]
SURROGATE_LOG_PROB = [
    ("min in place of max", "torch.maximum", "torch.minimum"),
    ("1 / beta", "behaviour_log_prob - math.log(rho)", "behaviour_log_prob + math.log(rho)"),
    ("no rho", "behaviour_log_prob - math.log(rho)", "behaviour_log_prob"),
    ("rho as its log", "math.log(rho)", "rho"),
    ("rho fixed at 1.5", "math.log(rho)", "math.log(1.5)"),
    ("R1 over the worker", '"R1": target_log_prob', '"R1": behaviour_log_prob'),
    ("R2 over the target", '"R2": behaviour_log_prob', '"R2": target_log_prob'),
]
PPO_CLIP = [
    ("sign", "-ratio * advantage, -bounded", "ratio * advantage, bounded"),
    ("max in place of min", "plain >= limited", "plain <= limited"),
    ("clip without min", "torch.where(free, truncated, limited)", "limited"),
    ("no clip", "torch.where(free, truncated, limited)", "truncated"),
    ("not truncated", "ratio.clamp(max=max_ratio)", "ratio"),
    ("truncated where clipped", "free, truncated = plain", "free, truncated = limited"),
    ("clip at 1 / (1 + clip)", "1.0 - clip", "1.0 / (1.0 + clip)"),
    ("slope where clipped", "torch.where(free, truncated, 0.0)", "truncated"),
    ("no slope at a tie", "plain >= limited", "plain > limited"),
    ("ratio inverted", "exp_ratio(log_ratio)", "exp_ratio(-log_ratio)"),
    ("unclipped steps counted", " != ", " == "),
]
HALF_SQUARE = [("no 1/2", "0.5 * ", ""), ("negative", "0.5 * ", "-0.5 * ")]
HALF_SQUARE_SLOPE = [("sign", "* -weight", "* weight"), ("doubled", "-weight", "-2.0 * weight")]
VALUE = [("absolute error", "error.square()", "error.abs()")]
BOUNDS = [
    ("no room", "scaled.abs() - _ROOM", "scaled.abs()"),
    ("inside as well", ".clamp(min=0.0)", ""),
    ("absolute excess", "excess.square()", "excess"),
    ("one side", "scaled.abs()", "scaled"),
    ("slope of one side", "scaled.sign()", "1.0"),
    ("slope of scaled means", "scaled.sign() / bounds.half", "scaled.sign()"),
    ("no middle", "(means - bounds.middle)", "means"),
]
CLIPPED_VALUE = [
    ("min in place of max", "torch.maximum", "torch.minimum"),
    ("no clip", " - move.clamp(-clip, clip)", " - move"),
    ("clipped on one side", "clamp(-clip, clip)", "clamp(max=clip)"),
    ("slope where clipped", "torch.where(free, half_square_slope(error), 0.0)", "-error"),
    ("slope only within the clip", "(error.abs() >= moved_error.abs()) | ", ""),
]
APPROX_KL = [
    ("-log r alone", "excess - log_ratio", "-log_ratio"),
    ("half the square", "excess - log_ratio", "0.5 * log_ratio.square()"),
    ("direction", "log_ratio.expm1()", "(-log_ratio).expm1()"),
    ("slope of r alone", ", excess)", ", excess + 1.0)"),
]
MOMENTS = [
    ("mean", "error_t.square().sum()", "error_t.square().mean()"),
    ("sign of the error", "valid, target - value", "valid, value - target"),
    ("target not masked", "torch.where(valid, target, 0.0)", "target"),
    ("error not masked", "torch.where(valid, target - value, 0.0)", "(target - value)"),
]
EXPLAINED = [
    ("error's mean not removed", "- (float(error_sum) / count) ** 2", ""),
    ("target's mean not removed", "- (float(target_sum) / count) ** 2", ""),
    ("unexplained variance", "return 1.0 - (", "return ("),
]
CATEGORICAL = [
    ("entropy's sign", "return -(log_p.exp()", "return (log_p.exp()"),
    ("entropy's mean", "clamp_min(-1000.0)).sum(-1)", "clamp_min(-1000.0)).mean(-1)"),
    ("KL's direction", "p = log_p.exp()", "p, log_p, log_q = log_q.exp(), log_q, log_p"),
    ("KL's mean", "log_p - log_q, 0.0)).sum(-1)", "log_p - log_q, 0.0)).mean(-1)"),
    ("logits as log-probabilities", "params.log_softmax(-1).gather", "params.gather"),
    ("probability", "params.log_softmax(-1).gather", "params.softmax(-1).gather"),
    ("least likely mode", "return params.argmax", "return params.argmin"),
]
FORBIDDEN = [
    ("0 * log 0 in the entropy", ".clamp_min(-1000.0)", ""),
    ("0 * log 0 in the KL", "torch.where(p > 0.0, log_p - log_q, 0.0)", "(log_p - log_q)"),
    ("KL hides a forbidden action", "log_p - log_q, 0.0)", "log_p - log_q.clamp_min(-9.0), 0.0)"),
]
CATEGORICAL_SAMPLES = [
    ("Gumbel's sign", ".log_().neg_()", ".log_()"),
    ("uniform noise", "exponential_(generator=generator)", "uniform_(generator=generator)"),
    ("greedy", "(params + noise)", "(params + 0 * noise)"),
]
MEAN, LOG_STD = "params[..., : self.dim]", "params[..., self.dim :]"
GAUSSIAN = [
    ("log_prob averaged", "+ log_std).sum(-1)", "+ log_std).mean(-1)"),
    ("log variance", "mean) * torch.exp(-log_std)", "mean) * torch.exp(-0.5 * log_std)"),
    ("no log std", "0.5 * z.square() + log_std).sum", "0.5 * z.square()).sum"),
    ("constant of one dimension", "- 0.5 * self.dim * LOG_2PI", "- 0.5 * LOG_2PI"),
    ("entropy's sign", "return log_std.sum(-1) +", "return -log_std.sum(-1) -"),
    ("entropy's constant", "(1.0 + LOG_2PI)", "LOG_2PI"),
    ("KL's direction", "log_std_p - log_std_q", "log_std_q - log_std_p"),
    ("KL scaled by p", "torch.exp(-log_std_q)", "torch.exp(-log_std_p)"),
    ("KL averaged", "- log_scale).sum(-1)", "- log_scale).mean(-1)"),
    ("parameters swapped", f"{MEAN}, {LOG_STD}", f"{LOG_STD}, {MEAN}"),
]
GAUSSIAN_SAMPLES = [
    ("log std as std", "log_std.exp(), noise", "log_std, noise"),
    ("uniform noise", "torch.randn", "torch.rand"),
    ("no mean", "torch.addcmul(mean,", "torch.addcmul(0 * mean,"),
]
MULTI_CATEGORICAL = [
    ("pad that can be chosen", "self._rows(params, -math.inf)", "self._rows(params, -1.0)"),
    ("starts shifted", "np.cumsum([0, *self.nvec[:-1]])", "np.cumsum([0, *self.nvec[1:]])"),
    ("log_prob averaged", "action).sum(-1)", "action).mean(-1)"),
    ("entropy averaged", 'params", params)).sum(-1)', 'params", params)).mean(-1)'),
    ("KL's direction", "self._choice.kl(p, q)", "self._choice.kl(q, p)"),
    (
        "features without offsets",
        "action + torch.from_numpy(self._starts)",
        "action + 0 * torch.from_numpy(self._starts)",
    ),
]
MULTI_CATEGORICAL_SAMPLES = [
    ("one noise for all choices", "params + noise)", "params + noise[..., :1])"),
    ("greedy", "params + noise)", "params + 0 * noise)"),
]
BERNOULLI = [
    ("logit of 0", "torch.zeros_like(params), params)", "params, torch.zeros_like(params))"),
    ("log_prob averaged", "action.long()).sum(-1)", "action.long()).mean(-1)"),
    ("KL's direction", "Categorical(2).kl(p, q)", "Categorical(2).kl(q, p)"),
    ("mode of a probability", "(params > 0.0)", "(params > 0.5)"),
    ("least likely mode", "(params > 0.0)", "(params < 0.0)"),
]
BERNOULLI_SAMPLES = [
    ("uniform noise", ".logit_()", ""),
    ("inverted", "(params > noise)", "(params < noise)"),
    ("one noise for all bits", "(params > noise)", "(params > noise[..., :1])"),
]
INHERITED = "def entropy("  # in front of which a method replaces the inherited one
SQUASHED = [
    ("no correction in the density", "_log_slope(action).sum(-1)", "0.0"),
    ("correction's sign", "- _log_slope(action)", "+ _log_slope(action)"),
    ("density averaged", "_log_slope(action).sum(-1)", "_log_slope(action).mean(-1)"),
    ("no correction in the entropy", "normal + (_log_slope(u)", "normal + 0 * (_log_slope(u)"),
    ("entropy's sign", "normal + (_log_slope(u)", "normal - (_log_slope(u)"),
    ("entropy at the mean", "std.unsqueeze(-1) * x", "0 * x"),
    ("log std as std", "self.dim :].exp()", "self.dim :]"),
    (
        "KL's direction",
        INHERITED,
        f"def kl(self, p, q): return super().kl(q, p)\n\n    {INHERITED}",
    ),
    (
        "squashed mode",
        INHERITED,
        f"def mode(self, p): return super().mode(p).tanh()\n\n    {INHERITED}",
    ),
    (
        "squashed features",
        INHERITED,
        f"def features(self, a): return super().features(a.tanh())\n\n    {INHERITED}",
    ),
]
LOG_SLOPE = [
    ("unstable", "2.0 * (LOG_2 - u + F.logsigmoid(2.0 * u))", "torch.log(1 - torch.tanh(u) ** 2)"),
    ("softplus cut at 20", "F.logsigmoid(2.0 * u)", "-F.softplus(-2.0 * u, threshold=2)"),
    ("no log 2", "LOG_2 - u", "-u"),
    ("half", "2.0 * (LOG_2", "1.0 * (LOG_2"),
]
COMPOSITE = [
    (
        "free after each part",
        "params[..., self.num_outputs :].split",
        "params[..., : self.num_free].split",
    ),
    ("no free parameters", "self.num_outputs + self.num_free", "self.num_outputs"),
    ("order of the keys", "parts = tuple(parts.values())", "parts = tuple(parts.values())[::-1]"),
    (
        "entropy of one part",
        "part.entropy(p) for part, p in each",
        "part.entropy(p) for part, p in list(each)[:1]",
    ),
    ("KL's direction", "part.kl(p, q)", "part.kl(q, p)"),
    (
        "same noise for all parts",
        "part.sample(p, x)",
        "part.sample(p, noise[..., : part.num_noise])",
    ),
    ("mode as sample", "part.sample(p, x)", "part.mode(p)"),
    (
        "tuples for dicts",
        "if self.keys is None:\n            return tuple(values)",
        "if True:\n            return tuple(values)",
    ),
]
CATEGORICAL_MASK = [
    ("empty mask applied", "~mask & mask.any(-1, keepdim=True)", "~mask"),
    ("mask inverted", "~mask & mask.any", "mask & mask.any"),
    ("finite", "keepdim=True), -math.inf", "keepdim=True), -1e9"),
]
ALLOWED = "~mask & allowed.index_select(-1, owner)"
MULTI_CATEGORICAL_MASK = [
    ("empty mask applied", ALLOWED, "~mask"),
    ("empty as a whole only", ALLOWED, "~mask & mask.any(-1, keepdim=True)"),
    ("mask inverted", ALLOWED, ALLOWED.replace("~", "")),
    ("finite", "owner), -math.inf", "owner), -1e9"),
]
BERNOULLI_MASK = [
    ("0 not enforced", "zero & ~one", "zero & one & ~one"),
    ("1 not enforced", "one & ~zero", "one & zero & ~zero"),
    ("empty mask applied", "zero & ~one", "~one"),
    ("values swapped", "zero, one = mask", "one, zero = mask"),
]
COMPOSITE_MASK = [
    ("mask ignored", "part.apply_mask(p, m)", "p"),
    ("free parameters lost", "torch.cat([*outputs, *(p", "torch.cat([*outputs, *(0 * p"),
]
TO_INTEGERS = [
    ("start ignored", "if self.start is not None", "if False"),
]
TO_BOX = [
    ("transposed", "*self.shape)", "*self.shape[::-1])"),
    ("not clipped from below", "xp.maximum(action, xp.asarray(self.low))", "action"),
    ("not clipped from above", "xp.minimum(xp.max", "(lambda x, _: x)(xp.max"),
    ("not squashed", "xp.tanh(action)", "action"),
    ("not scaled", "* xp.asarray(self.scale)", ""),
    ("not shifted", "+ xp.asarray(self.offset)", ""),
    ("scaled only where it is squashed", "if scale or squash", "if squash"),
    ("squashed but not scaled", "if scale or squash", "if scale"),
]
CONVERTED = [
    ("dtype of the policy", "np.array(action, dtype)", "np.array(action)"),
    ("memory of the policy", "np.array(action, dtype)", "np.asarray(action, dtype)"),
]
PASSED_ON = [
    ("squash not passed on to leaves", "(leaf, squash, scale)", "(leaf, False, scale)"),
    ("scale not passed on to leaves", "(leaf, squash, scale)", "(leaf, squash, False)"),
]
MAP_SPACE = [
    ("order of the keys", "for key, part in inner}", "for key, part in reversed(inner)}"),
    ("function not passed on in Dicts", "map_space(function, part, *(v", "(lambda *x: x)(*(v"),
    ("a Tuple comes back as a list", "return tuple(map_space(", "return list(map_space("),
    ("only one tree in Tuples", "function, part, *v)", "function, part, *v[:1])"),
    ("space not given", "return function(space, *values)", "return function(*values)"),
]
FLAT_MASK = [
    ("missing means forbidden", "np.ones(size, bool)", "np.zeros(size, bool)"),
    ("order of the mask", "in inner.items()]", "in reversed(inner.items())]"),
]
MASK_IS_EMPTY = [
    ("any choice forbidden", "np.logical_not(mask.any(-1))", "np.logical_not(mask.all(-1))"),
    ("all components empty", "axis=-1).all(-1)", "axis=-1).any(-1)"),
    ("all parts empty", "np.logical_or.reduce([", "np.logical_and.reduce(["),
    (
        "starts shifted",
        "np.cumsum([0, *distribution.nvec[:-1]])",
        "np.arange(len(distribution.nvec))",
    ),
]

GROUPS: list[tuple[ModuleType, str, Check, list[tuple[str, str, str]]]] = [
    (returns, "reverse_linear_recurrence", on_returns.check_recurrence, RECURRENCE),
    (returns, "gae", on_returns.check_gae, BOTH_STREAMS + GAE),
    (returns, "vtrace", on_returns.check_vtrace, BOTH_STREAMS + VTRACE),
    (losses, "_Sum", on_losses.check_value, SUM),
    (losses, "_policy_gradient", on_losses.check_policy_gradient, POLICY_GRADIENT),
    (
        losses,
        "_epsilon_policy_gradient",
        on_losses.check_epsilon_policy_gradient,
        EPSILON_POLICY_GRADIENT,
    ),
    (ratio, "surrogate_log_ratio", on_losses.check_surrogate_log_ratio, SURROGATE),
    (ratio, "surrogate_log_prob", on_losses.check_surrogate_log_ratio, SURROGATE_LOG_PROB),
    (losses, "_ppo_clip", on_losses.check_ppo_clip, PPO_CLIP),
    (losses, "half_square", on_losses.check_value, HALF_SQUARE),
    (losses, "half_square", on_losses.check_clipped_value, HALF_SQUARE),
    (losses, "half_square_slope", on_losses.check_value, HALF_SQUARE_SLOPE),
    (losses, "half_square_slope", on_losses.check_clipped_value, HALF_SQUARE_SLOPE),
    (losses, "value_loss", on_losses.check_value, VALUE),
    (losses, "clipped_value_steps", on_losses.check_clipped_value, CLIPPED_VALUE),
    (action_bounds, "_beyond_bounds", on_losses.check_bounds, BOUNDS),
    (losses, "masked_sum", on_losses.check_masked_sum, [("mean", ".sum()", ".mean()")]),
    (losses, "approx_kl_steps", on_losses.check_approx_kl, APPROX_KL),
    (losses, "value_moments", on_losses.check_moments, MOMENTS),
    (losses, "explained_variance", on_losses.check_moments, EXPLAINED),
    (distributions, "Categorical", on_distributions.check_categorical, CATEGORICAL),
    (distributions, "Categorical", on_distributions.check_forbidden_action, FORBIDDEN),
    (distributions, "Categorical", on_distributions.check_categorical_samples, CATEGORICAL_SAMPLES),
    (distributions, "DiagGaussian", on_distributions.check_gaussian, GAUSSIAN),
    (distributions, "DiagGaussian", on_distributions.check_gaussian_samples, GAUSSIAN_SAMPLES),
    (
        distributions,
        "MultiCategorical",
        on_distributions.check_multi_categorical,
        MULTI_CATEGORICAL,
    ),
    (
        distributions,
        "MultiCategorical",
        on_distributions.check_multi_categorical_samples,
        MULTI_CATEGORICAL_SAMPLES,
    ),
    (distributions, "Bernoulli", on_distributions.check_bernoulli, BERNOULLI),
    (distributions, "Bernoulli", on_distributions.check_bernoulli_samples, BERNOULLI_SAMPLES),
    (distributions, "SquashedGaussian", on_distributions.check_squashed, SQUASHED),
    (gaussian, "_log_slope", on_distributions.check_squashed, LOG_SLOPE),
    (distributions, "Composite", on_distributions.check_composite, COMPOSITE),
    (distributions, "Categorical", on_distributions.check_masks, CATEGORICAL_MASK),
    (distributions, "MultiCategorical", on_distributions.check_masks, MULTI_CATEGORICAL_MASK),
    (distributions, "Bernoulli", on_distributions.check_bernoulli_masks, BERNOULLI_MASK),
    (distributions, "Composite", on_distributions.check_masks, COMPOSITE_MASK),
    (action_spaces, "_ToIntegers", on_action_spaces.check_to_env, TO_INTEGERS),
    (action_spaces, "_ToBox", on_action_spaces.check_to_env, TO_BOX),
    (action_spaces, "_converted", on_action_spaces.check_to_env, CONVERTED),
    (action_spaces, "ActionTransform", on_action_spaces.check_to_env, PASSED_ON),
    (walk, "map_space", on_walk.check_map_space, MAP_SPACE),
    (masks, "flatten_mask", on_action_spaces.check_flatten_mask, FLAT_MASK),
    (action_spaces, "mask_is_empty", on_action_spaces.check_mask_is_empty, MASK_IS_EMPTY),
]
MUTANTS = [
    pytest.param(module, owner, check, old, new, id=f"{owner}: {name}")
    for module, owner, check, mutants in GROUPS
    for name, old, new in mutants
]


def mutate(module: ModuleType, owner: str, old: str, new: str) -> ModuleType:
    """Return the module with ``old`` replaced once in the source of ``owner``."""
    healthy = inspect.getsource(getattr(module, owner))
    assert old in healthy, f"{owner} no longer contains {old!r}: update the mutant"
    return executed(module, owner, lambda code: code.replace(healthy, healthy.replace(old, new, 1)))


def executed(module: ModuleType, owner: str, change: Callable[[str], str]) -> ModuleType:
    """Return a copy of the module with changes in the file that defines ``owner``."""
    home = sys.modules[getattr(module, owner).__module__]
    copy = ModuleType(module.__name__)
    if home is not module:  # a package that re-exports the names of its files
        vars(copy).update({name: getattr(module, name) for name in module.__all__})
    exec(compile(change(inspect.getsource(home)), f"<changed {owner}>", "exec"), vars(copy))
    return copy


@pytest.mark.parametrize(("module", "owner", "check", "old", "new"), MUTANTS)
def test_every_mutant_is_caught(
    module: ModuleType, owner: str, check: Check, old: str, new: str
) -> None:
    broken = mutate(module, owner, old, new)
    with pytest.raises((AssertionError, ValueError)):  # a shape that doesn't fit, for example
        check(broken)


@pytest.mark.parametrize(
    ("module", "owner", "check"), dict.fromkeys((m, o, c) for m, o, c, _ in GROUPS)
)
def test_an_unchanged_copy_passes_its_check(module: ModuleType, owner: str, check: Check) -> None:
    check(executed(module, owner, lambda code: code))
