"""PPO as one compiled JAX program, in the manner of PureJaxRL (Lu et al., 2022).

One call of compiled code runs several updates: environments (gymnax's CartPole-v1), acting, GAE and
all optimiser steps. The recipe is PureJaxRL's, with optax:
separate networks for policy and value, clipped policy and value, normalised advantages, samples
shuffled in each epoch, clipped gradient, Adam.
"""

from __future__ import annotations

import functools
import itertools
import operator
import time
from typing import Any, NamedTuple

from ceiling import HIDDEN
from learning_ppo import DISCRETE

UPDATES_PER_CALL = 4


class Progress(NamedTuple):
    """State of training between two updates."""

    weights: Any
    optimizer: Any
    envs: Any
    obs: Any
    key: Any


class Sample(NamedTuple):
    """Steps of environments, ``[T, B]`` or ``[N]``."""

    obs: Any
    action: Any
    log_prob: Any
    value: Any
    reward: Any
    ended: Any


def dense_layers(key: Any, inputs: int, outputs: int, gain: float) -> list[tuple[Any, Any]]:
    """Return orthogonal weights and zero biases of a network with two hidden layers."""
    import jax
    import jax.numpy as jnp

    sizes, gains = (inputs, *HIDDEN, outputs), (2**0.5, 2**0.5, gain)
    keys = jax.random.split(key, len(gains))
    return [
        (jax.nn.initializers.orthogonal(g)(k, shape), jnp.zeros(shape[1]))
        for k, g, shape in zip(keys, gains, itertools.pairwise(sizes), strict=True)
    ]


def apply(layers: list[tuple[Any, Any]], x: Any) -> Any:
    """Compute the outputs of a tanh network."""
    import jax.numpy as jnp

    *hidden, (weight, bias) = layers
    for hidden_weight, hidden_bias in hidden:
        x = jnp.tanh(x @ hidden_weight + hidden_bias)
    return x @ weight + bias


def evaluate(weights: dict[str, Any], obs: Any) -> tuple[Any, Any]:
    """Return log-probabilities of all actions, and values."""
    import jax

    return jax.nn.log_softmax(apply(weights["policy"], obs)), apply(weights["value"], obs)[..., 0]


def chosen(log_probs: Any, action: Any) -> Any:
    """Return the log-probabilities of actions."""
    import jax.numpy as jnp

    return jnp.take_along_axis(log_probs, action[..., None], -1)[..., 0]


def loss_of(weights: dict[str, Any], part: tuple[Sample, Any, Any]) -> Any:
    """Compute clipped surrogate, clipped value and entropy losses, averaged over samples."""
    import jax.numpy as jnp

    recipe, (sample, advantage, target) = DISCRETE, part
    log_probs, value = evaluate(weights, sample.obs)
    ratio = jnp.exp(chosen(log_probs, sample.action) - sample.log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - recipe.clip, 1 + recipe.clip)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage).mean()
    near = sample.value + jnp.clip(value - sample.value, -recipe.clip, recipe.clip)
    value_loss = 0.5 * jnp.maximum((value - target) ** 2, (near - target) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return recipe.value_coef * value_loss - surrogate - recipe.entropy_coef * entropy


def advantages(samples: Sample, last: Any) -> Any:
    """Compute advantages by generalised advantage estimation; ``last``: values after all steps."""
    import jax
    import jax.numpy as jnp

    def back(carry: tuple[Any, Any], step: Sample) -> tuple[tuple[Any, Any], Any]:
        running, next_value = carry
        continues = DISCRETE.gamma * (1.0 - step.ended)
        delta = step.reward + continues * next_value - step.value
        running = delta + continues * DISCRETE.lam * running
        return (running, step.value), running

    return jax.lax.scan(back, (jnp.zeros_like(last), last), samples, reverse=True)[1]


def make_update(step: Any, optimizer: Any, work: Any) -> Any:
    """Return the function of an update, ``(progress, None) -> (progress, episode length)``.

    Args:
        step: ``(keys, envs, actions)`` to the result of gymnax's step of all environments.
        work: see :class:`same_work.Work`.
    """
    import jax
    import optax

    def act(progress: Progress, _: None) -> tuple[Progress, Sample]:
        key, action_key, step_key = jax.random.split(progress.key, 3)
        log_probs, value = evaluate(progress.weights, progress.obs)
        action = jax.random.categorical(action_key, log_probs)
        keys = jax.random.split(step_key, work.num_envs)
        obs, envs, reward, *flags, _ = step(keys, progress.envs, action)  # done, or two kinds
        ended = functools.reduce(operator.or_, flags)
        log_prob = chosen(log_probs, action)
        sample = Sample(progress.obs, action, log_prob, value, reward, ended)
        return progress._replace(envs=envs, obs=obs, key=key), sample

    def descend(trained: tuple[Any, Any], part: Any) -> tuple[tuple[Any, Any], None]:
        weights, state = trained
        gradient = jax.grad(loss_of)(weights, part)
        changes, state = optimizer.update(gradient, state, weights)
        return (optax.apply_updates(weights, changes), state), None

    def epoch(batch: Any, trained: tuple[Any, Any], key: Any) -> tuple[tuple[Any, Any], None]:
        if work.minibatches > 1:  # a whole batch has no order
            order = jax.random.permutation(key, work.num_envs * work.num_steps)
            batch = jax.tree.map(lambda x: x[order], batch)
        parts = jax.tree.map(lambda x: x.reshape(work.minibatches, -1, *x.shape[1:]), batch)
        return jax.lax.scan(descend, trained, parts)

    def update(progress: Progress, _: None) -> tuple[Progress, Any]:
        progress, samples = jax.lax.scan(act, progress, None, work.num_steps)
        advantage = advantages(samples, evaluate(progress.weights, progress.obs)[1])
        rows = (samples, advantage, advantage + samples.value)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        key, shuffle_key = jax.random.split(progress.key)
        (weights, state), _ = jax.lax.scan(
            functools.partial(epoch, batch),
            (progress.weights, progress.optimizer),
            jax.random.split(shuffle_key, work.epochs),
        )
        length = samples.ended.size / (samples.ended.sum() + 1)
        return progress._replace(weights=weights, optimizer=state, key=key), length

    return update


def start(num_envs: int, seed: int) -> tuple[Any, Any, Progress]:
    """Return gymnax's step of all environments, the optimiser, and the state before training."""
    import gymnax
    import jax
    import optax

    env, params = gymnax.make("CartPole-v1")
    optimizer = optax.chain(
        optax.clip_by_global_norm(DISCRETE.max_grad_norm),
        optax.adam(DISCRETE.learning_rate, eps=1e-5),
    )
    keys = jax.random.split(jax.random.PRNGKey(seed), 4)
    step, reset = jax.vmap(env.step, (0, 0, 0, None)), jax.vmap(env.reset, (0, None))
    env_keys = jax.random.split(keys[0], num_envs)
    obs, envs = reset(env_keys, params)
    actions = jax.numpy.zeros(num_envs, int)
    obs, envs, *_ = step(env_keys, envs, actions, params)  # has the types of later steps
    weights = {
        "policy": dense_layers(keys[1], obs.shape[-1], env.num_actions, 0.01),
        "value": dense_layers(keys[2], obs.shape[-1], 1, 1.0),
    }
    progress = Progress(weights, optimizer.init(weights), envs, obs, keys[3])
    return lambda keys, states, action: step(keys, states, action, params), optimizer, progress


def rate(work: Any, seconds: float, least_calls: int = 1) -> dict[str, float]:
    """Return steps per second after the first call, and the last mean episode length.

    Args:
        least_calls: run at least as many calls of compiled code after the first one.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")
    step, optimizer, progress = start(work.num_envs, seed=0)
    update = make_update(step, optimizer, work)
    train = jax.jit(lambda progress: jax.lax.scan(update, progress, None, UPDATES_PER_CALL))
    calls, begun = -1, 0.0  # the first call compiles
    while calls < least_calls or time.perf_counter() - begun < seconds:
        progress, lengths = jax.block_until_ready(train(progress))
        calls += 1
        begun = begun or time.perf_counter()
    steps = calls * UPDATES_PER_CALL * work.num_envs * work.num_steps
    sps = steps / (time.perf_counter() - begun)
    return {"sps": sps, "episode_length": float(lengths[-1])}
