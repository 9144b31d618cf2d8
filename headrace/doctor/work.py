"""What figures of who works and who waits say is wrong: a function for each illness.

As those of ``learner.py``. A machine that is busy with something else is no illness.
"""

from __future__ import annotations

from headrace.doctor.history import RETURN, History


def environment_slow(h: History) -> str | None:
    """Stepping is nearly all that actors do, and the learner waits."""
    share, speed = h.median("utilisation/environment"), h.median("charts/SPS")
    acting = h.median("utilisation/actor") * h.setting("num_actors", 1)
    step_s = share * acting / speed if speed > 0 else 0.0  # of one environment, on one actor
    if step_s > 0.7e-3 and share > 0.9 and not h.median("utilisation/learner") > 0.5:
        return (
            f"the environment is slow: a step of it takes {1e3 * step_s:,.1f} ms, "
            f"{share / max(1 - share, 1e-4):,.0f} times what the policy takes that acts in it"
        )
    return None


def endless_episodes(h: History) -> str | None:
    """None has ended for three times as long as one may take."""
    envs = h.setting("num_actors", 1) * h.setting("envs_per_actor", 1)
    waited = h.steps_without_end / max(1, envs)
    limit = h.setting("max_episode_steps", 1_000)  # of games without one few take 3,000
    longest = h.known("charts/episodic_length").max(initial=limit)
    if waited > 3 * longest:
        since = " since the latest that did" if len(h.known(RETURN)) else ""
        return f"no episode has ended in {waited:,.0f} steps of each environment{since}"
    return None


def actors_die(h: History) -> str | None:
    """More than one rollout was lost with its actor."""
    lost = h.last("queue/lost")
    return f"{lost:,.0f} rollouts were lost with actors that died" if lost >= 2 else None


def rollouts_dropped(h: History) -> str | None:
    """Nearly a third or more were thrown away for their age (``max_policy_lag``)."""
    size = h.setting("fragment_length", 1) * h.setting("envs_per_actor", 1)
    learnt, dropped = h.steps[-1] / size, h.last("lag/dropped")
    if dropped > 0.3 * (learnt + dropped):
        return (
            f"{dropped / (learnt + dropped):.0%} of the rollouts were dropped, too old when their "
            "turn came"
        )
    return None


def learner_idle(h: History) -> str | None:
    """The learner waits for few environments that act all the time."""
    learner, actor = h.median("utilisation/learner"), h.median("utilisation/actor")
    count = h.setting("num_actors", 1) * h.setting("envs_per_actor", 1)
    alone = h.setting("transport", "shm") == "serial" or h.setting("algo", "") == "a3c"
    little = learner < (0.5 if count <= 4 else 0.3)
    if little and actor > 0.9 and count <= 8 and not alone:
        return f"the learner idles: it waits for rollouts {1 - learner:.0%} of its time"
    return None


def actors_idle(h: History) -> str | None:
    """Several actors wait for a learner that is busy."""
    actor, learner = h.median("utilisation/actor"), h.median("utilisation/learner")
    count, waits = h.setting("num_actors", 1), h.setting("max_lag", 0) == 0  # for the learner
    if count >= 3 and not waits and actor < 0.25 and learner > 0.8:
        return f"actors idle: {count} of them act {actor:.0%} of their time and wait for the rest"
    return None


def learners_uneven(h: History) -> str | None:
    """Learners wait for each other rather than for data."""
    sync, learn, wait = (h.median(f"time/{name}") for name in ("sync", "learn", "wait"))
    share = sync / (sync + learn + wait) if sync + learn + wait > 0 else 0.0
    if share > 0.6:  # two learners on two cores that others use wait half of the time
        return f"learners wait for the slowest of them {share:.0%} of their time"
    return None
