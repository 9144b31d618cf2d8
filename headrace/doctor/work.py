"""Rules about utilisation and waiting: one function per problem.

See ``learning.py``. Other programs that use the cores are not a problem of the run. On a crowded
machine, rules about step times therefore use the run's processor time
(:meth:`History.step_seconds`). ``environment_slow`` also does if the run itself uses all cores.
"""

from __future__ import annotations

from headrace.doctor.history import RETURN, History


def environment_slow(h: History) -> str | None:
    """Actors mainly step environments, and the learner waits."""
    share = h.median("utilisation/environment")
    acting = h.median("utilisation/actor") * h.setting("num_actors", 1)
    step_s = share * h.step_seconds(acting)  # of one environment, on one actor
    if h.no_core_is_idle and h.actor_cores > 0:
        step_s = min(step_s, share * h.step_seconds(h.actor_cores))
    if step_s > 0.7e-3 and share > 0.9 and not h.learner_load > 0.5:
        return (
            f"the environment is slow: a step takes {1e3 * step_s:,.1f} ms, "
            f"{share / max(1 - share, 1e-4):,.0f} times as long as the policy's inference"
        )
    return None


def endless_episodes(h: History) -> str | None:
    """No episode has ended for three times the longest duration."""
    envs = h.setting("num_actors", 1) * h.setting("envs_per_actor", 1)
    waited = h.steps_without_end / max(1, envs)
    limit = h.setting("max_episode_steps", 1_000)  # episodes without a limit rarely take 3,000
    longest = h.known("charts/episodic_length").max(initial=limit)
    if waited > 3 * longest:
        since = " since the latest one" if len(h.known(RETURN)) else ""
        return f"no episode has ended in {waited:,.0f} steps of each environment{since}"
    return None


def actors_die(h: History) -> str | None:
    """Two or more rollouts were lost with their actors."""
    lost = h.last("queue/lost")
    return f"{lost:,.0f} rollouts were lost with actors that died" if lost >= 2 else None


def rollouts_dropped(h: History) -> str | None:
    """Almost a third or more of the rollouts were dropped as stale (``max_policy_lag``)."""
    size = h.setting("fragment_length", 1) * h.setting("envs_per_actor", 1)
    used, dropped = h.steps[-1] / size, h.last("lag/dropped")
    if dropped > 0.3 * (used + dropped):
        return (
            f"{dropped / (used + dropped):.0%} of the rollouts were dropped because they were too "
            "old when the learner took them"
        )
    return None


def learner_idle(h: History) -> str | None:
    """The learner waits for few environments that are always busy."""
    learner, actor = h.median("utilisation/learner"), h.median("utilisation/actor")
    count = h.setting("num_actors", 1) * h.setting("envs_per_actor", 1)
    alone = h.setting("transport", "shm") == "serial" or h.setting("algo", "") == "a3c"
    little = learner < (0.5 if count <= 4 else 0.3)
    few = count <= (2 if h.is_crowded else 8)  # other programs slow several actors down
    if little and actor > 0.9 and few and not alone:
        return f"the learner is idle: it waits for rollouts {1 - learner:.0%} of its time"
    return None


def learner_slow(h: History) -> str | None:
    """The learner is the bottleneck and trains for over 10 ms per environment step."""
    share, speed = h.median("utilisation/learner"), h.median("charts/SPS")
    step_s = h.step_seconds(share)
    if share > 0.7 and step_s > 0.01:
        return (
            f"the learner is slow: {speed:,.0f} steps/s, because it trains for {1e3 * step_s:,.0f} "
            "ms on each environment step"
        )
    return None


def small_image(h: History) -> str | None:
    """Small images pass through many convolutions, which take most of the time."""
    waits = h.median("utilisation/environment") > 0.8 and not h.median("utilisation/learner") > 0.4
    if not h.small_images or waits:  # for the environment
        return None
    height, width = max(h.small_images)
    return (
        f"images of {height} × {width} pixels pass through 15 convolutions (impala_deep), which "
        "take several times as long as a small network"
    )


def actors_idle(h: History) -> str | None:
    """Several actors wait for a busy learner."""
    actor, learner = h.median("utilisation/actor"), h.median("utilisation/learner")
    count, waits = h.setting("num_actors", 1), h.setting("max_lag", 0) == 0  # for the learner
    if count >= 3 and not waits and actor < 0.25 and learner > 0.8:
        return f"actors are idle: {count} of them act only {actor:.0%} of their time"
    return None


def learners_uneven(h: History) -> str | None:
    """Learners wait for each other rather than for data."""
    sync, learn, wait = (h.median(f"time/{name}") for name in ("sync", "learn", "wait"))
    share = sync / (sync + learn + wait) if sync + learn + wait > 0 else 0.0
    if share > 0.6:  # two learners on two cores that others use wait half of the time
        return f"learners wait for the slowest of them {share:.0%} of their time"
    return None
