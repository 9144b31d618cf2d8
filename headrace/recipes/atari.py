"""Atari with the protocol of IMPALA's experiments (Espeholt et al. 2018, appendix G)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from headrace.algos import APPO, IMPALA, PPO
from headrace.config import Config
from headrace.envs.suites import suite, the_same
from headrace.nn import Network
from headrace.recipes import impact_paper

PROTOCOL: dict[str, Any] = {  # Table G.1, by ale-py's names
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "frameskip": 4,
    "maxpool": True,  # over the last 2 of the frames that repeat an action
    "stack_num": 4,
    "life_loss_info": True,  # an episode ends with a life
    "reward_clipping": False,  # it is learning that clips (reward_transform), so returns are true
    "noop_max": 31,  # fewer than these: up to 30
    "use_fire_reset": False,
    "repeat_action_probability": 0.0,
    "full_action_space": False,  # experts have each game's own actions, the multi-task agent all
    "num_threads": 1,  # actors are the parallelism
}
WHOLE_GAMES = {"life_loss_info": False, "num_threads": 0}  # of one process that plays all

_EVALUATION: dict[str, Any] = {
    "eval_env_kwargs": WHOLE_GAMES,
    "eval_episodes": 200,
    "eval_deterministic": False,
}

_UNROLL, _BATCH = 20, 32  # steps of a trajectory, trajectories of a batch
_UNITS = 256  # of a core
_CLIPPED: Any = {"reward_transform": "abs_one", "gamma": 0.99, "entropy_coef": 0.01}
_CHOSEN_ON_PONG: Any = {
    "learning_rate": 5e-4,
    "clip": 0.2,
    "kl_limit": None,
    "minibatches": 8,
    "entropy_coef": 0.03,
    "normalize_advantage": True,
}


def atari(algorithm: str = "impala", num_actors: int | None = None) -> Config:
    """Settings for an ALE game, by default Pong, evaluated on 200 games with sampled actions.

    impala: Table G.1; 200 million frames. ppo: Schulman et al. (2017, Table 5), but with a constant
    clip range; appo: IMPALA's shallow network on normalised images, with the settings that learned
    Pong soonest; both 40 million frames. impact: IMPACT's Table 1 with its network and 42 x 42
    pixels. By default none is recurrent. A recurrent core has 256 units and, as in IMPALA's Figure
    3, also gets the previous action and reward.
    """
    if algorithm == "impact":
        return impact_discrete(algorithm, "ALE/Pong-v5", num_actors or 10)  # max_lag depends on it
    protocol: Any = {"env_kwargs": PROTOCOL, **_EVALUATION}
    if num_actors is not None:
        protocol["num_actors"] = num_actors
    settings = {"network": Network(core_size=_UNITS), **_settings(algorithm)}
    return Config(env="ALE/Pong-v5", engine="native", scale_free=False, **protocol, **settings)


def impact_discrete(
    algorithm: str = "impact", env: str = "LunarLander-v3", num_actors: int = 10
) -> Config:
    """Settings of IMPACT's Table 1; ALE games also use the paper's network and image size.

    See :func:`headrace.recipes.impact_paper.discrete`.
    """
    config = impact_paper.discrete(algorithm, env, num_actors)
    if the_same(env, suite("atari-57").tasks) is None:
        return config
    protocol: Any = {"env_kwargs": PROTOCOL | {"img_height": 42, "img_width": 42}, **_EVALUATION}
    network = Network(conv="impact", core_size=_UNITS)
    algo, steps = replace(config.algo, **_CLIPPED), 10_000_000
    return replace(
        config, algo=algo, engine="native", network=network, total_steps=steps, **protocol
    )


def _settings(algorithm: str) -> dict[str, Any]:
    """Return the settings that differ between algorithms."""
    clipped: Any = {**_CLIPPED, "lam": 0.95}
    schulman: Any = {"learning_rate": 2.5e-4, "clip": 0.1, "minibatches": 4, "value_coef": 1.0}
    several: Any = {"fragment_length": 128, "batch_size": 1024, "total_steps": 10_000_000}
    return {
        "impala": {"algo": _impala(), "fragment_length": _UNROLL, "batch_size": _UNROLL * _BATCH,
                   "total_steps": 50_000_000},
        "ppo": {"algo": PPO(epochs=3, **schulman, **clipped), **several},
        "appo": {"algo": APPO(epochs=2, **(clipped | _CHOSEN_ON_PONG)), **several,
                 "network": Network(conv="impala_shallow", core_size=_UNITS,
                                    normalize_images=True)},
    }[algorithm]  # fmt: skip


def _impala() -> IMPALA:
    """Settings of Table G.1, converted from a loss summed over a batch to headrace's mean.

    The threshold of the gradient's norm, 40, is divided by the steps of a batch. So is the root of
    RMSProp's epsilon, 0.01, which Mnih et al. (2016) add to the mean square, and which headrace
    adds to its root.
    """
    steps = _UNROLL * _BATCH
    return IMPALA(
        learning_rate=6e-4,
        lr_schedule="linear",
        optimizer="rmsprop",
        optimizer_eps=math.sqrt(0.01) / steps,
        max_grad_norm=40.0 / steps,
        value_coef=0.5,
        lam=1.0,
        epochs=1,
        minibatches=1,
        clip=math.inf,
        **_CLIPPED,
    )
