"""Rows of the page on synchronous distributed PPO, with their verdicts and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from book.rows import (
    Judgement,
    Row,
    Runs,
    Verdict,
    holds,
    more,
    named,
    own_setting,
    ratios,
    spread,
    worst,
)

Data = Mapping[str, Runs]
SPEED, TARGET, SLEEP = ("ddppo_speed",), ("ddppo_target",), ("ddppo_sleep",)
CARTPOLE = "CartPole"


def layout(data: Data, learners: int, size: str = "small", batch: str = "constant") -> Runs:
    """Return runs of the speed experiment; one learner's count for both kinds of batch."""
    batch = "constant" if learners == 1 else batch
    return data["ddppo_speed"].where(size=size, batch=batch, world_size=learners)


def speedup(data: Data, learners: int, size: str = "small", batch: str = "constant") -> list[float]:
    """Return the speed-ups of the throughput over one learner, a value per seed."""
    return ratios(layout(data, learners, size, batch), layout(data, 1, size), "fps")


def _batches(values: Mapping[str, Sequence[float]]) -> str:
    return named({f"{name} batch": each for name, each in values.items()})


# -- learning --------------------------------------------------------------------------------------


def final_returns(data: Data) -> Judgement:
    """Judge whether several learners reach one learner's return, within 5%."""
    runs = data["ddppo_target"]
    one = runs.where(world_size=1).values("final_return")
    others = {
        f"W = {w} ({batch} batch)": runs.where(world_size=w, batch=batch).values("final_return")
        for w, batch in ((2, "constant"), (2, "growing"), (4, "constant"))
    }
    verdicts = [more(values, one, margin=-25.0) for values in others.values()]
    text = f"evaluated return with {named({'W = 1': one, **others})}"
    return Judgement(own_setting(worst(verdicts)), text)


def target_times(data: Data) -> Judgement:
    """Judge whether two learners need less time to the target."""
    runs = data["ddppo_target"]
    seconds = {
        "W = 1": runs.where(world_size=1),
        "W = 2": runs.where(world_size=2, batch="constant"),
        "W = 2 (growing batch)": runs.where(world_size=2, batch="growing"),
        "W = 4": runs.where(world_size=4),
    }
    times = {name: of.values("time_to_target") for name, of in seconds.items()}
    if not times["W = 1"] or not times["W = 2"]:
        return Judgement(Verdict.NOT_REPRODUCED, f"475 was not reached: {named(times)} s")
    missed = len(seconds["W = 2"]) - len(times["W = 2"])
    if missed:
        text = f"seconds to 475: {named(times)}; W = 2 missed it {missed} times"
        return Judgement(Verdict.NOT_REPRODUCED, text)
    speed = ratios(seconds["W = 1"], seconds["W = 2"], "time_to_target")
    verdict = own_setting(more(times["W = 1"], times["W = 2"]))
    return Judgement(verdict, f"seconds with {named(times)}; speed-up {spread(speed)}")


def batch_dynamics(data: Data) -> Judgement:
    """Judge whether a batch that grows with W changes clipping."""
    runs = data["ddppo_target"]
    one, grown = runs.where(world_size=1), runs.where(batch="growing")
    same = runs.where(world_size=2, batch="constant")
    found = {"B, W = 1": one, "2 B, W = 2": grown, "B, W = 2": same}
    clipped = {name: [100 * x for x in of.values("clipfrac")] for name, of in found.items()}
    steps = {name: of.values("steps_to_target") for name, of in found.items()}
    changed = more(clipped["B, W = 1"], clipped["2 B, W = 2"])
    verdict = {Verdict.REFUTED: Verdict.REPRODUCED}.get(changed, own_setting(changed))
    text = f"% clipped with {named(clipped)}; steps to 475 with {named(steps)}"
    return Judgement(verdict, text)


def return_curve(data: Data) -> Judgement:
    """Judge whether evaluations during training show learning."""
    runs = data["ddppo_target"].where(world_size=2)
    first, last = runs.values("first_return"), runs.values("final_return")
    text = f"first evaluation {spread(first)}, last {spread(last)}"
    return Judgement(own_setting(more(last, first)), text)


def continuous(data: Data) -> Judgement:
    """Judge whether two learners learn a task of continuous actions."""
    runs = data["ddppo_continuous"]
    first, last = runs.values("first_return"), runs.values("final_return")
    text = f"first evaluation {spread(first)}, last {spread(last)}"
    return Judgement(more(last, first), text)


# -- speed -----------------------------------------------------------------------------------------


def throughput(data: Data) -> Judgement:
    """Judge whether steps per second increase with W."""
    found = {batch: speedup(data, 2, "large", batch) for batch in ("constant", "growing")}
    verdict = worst([more(values, 1.0) for values in found.values()])
    fps = layout(data, 1, "large").values("fps")
    return Judgement(verdict, f"{spread(fps)} steps/s with W = 1; S(2) with {_batches(found)}")


def efficiency(data: Data) -> Judgement:
    """Judge whether efficiency is near 1, above 0.8."""
    found = {
        batch: [s / 2 for s in speedup(data, 2, "large", batch)]
        for batch in ("constant", "growing")
    }
    verdict = worst([more(v, 0.8) for v in found.values()])
    return Judgement(verdict, f"E(2) with {_batches(found)}")


def parts(data: Data) -> Judgement:
    """Judge whether the four parts add up to the iteration, within 5%."""
    coverage = data["ddppo_speed"].values("coverage")
    low, high = min(coverage), max(coverage)
    text = f"sum / iteration time: {low:.3f} to {high:.3f} in {len(coverage)} runs"
    return Judgement(holds(low > 0.95 and high < 1.05), text)


def overheads(data: Data) -> Judgement:
    """Judge whether communication and waiting grow with W."""
    texts, verdicts = [], []
    for name in ("rho_comm", "rho_sync"):
        of = [layout(data, w).values(name) for w in (1, 2, 4)]
        verdicts += [more(of[1], of[0]), more(of[2], of[1])]
        texts.append(f"{name} {', '.join(spread(values, 3) for values in of)}")
    return Judgement(own_setting(worst(verdicts)), f"with W = 1, 2, 4: {'; '.join(texts)}")


def explained(data: Data) -> Judgement:
    """Judge whether communication and waiting are most of the time lost with two learners."""
    before = {run.case["seed"]: run for run in layout(data, 1)}
    shares = []
    for run in layout(data, 2):
        lost = run.get("t_iter") - before[run.case["seed"]].get("t_iter") / 2
        shares.append((run.get("t_comm") + run.get("t_sync")) / lost)
    return Judgement(own_setting(more(shares, 0.5)), f"{spread(shares)} of the lost time")


def latency(data: Data) -> Judgement:
    """Judge whether iterations take less than twice as long with two learners."""
    found = {
        size: ratios(layout(data, 2, size, "growing"), layout(data, 1, size), "t_iter")
        for size in ("small", "large")
    }
    verdict = worst([more(2.0, values) for values in found.values()])
    text = f"iteration time, W = 2 / W = 1, with {_batches(found)}"
    return Judgement(own_setting(verdict), text)


def papers_table(data: Data) -> Judgement:
    """Judge whether the paper's batch loses speed with more learners."""
    two, four = speedup(data, 2), speedup(data, 4)
    verdict = own_setting(worst([more(1.0, two), more(two, four)]))
    fps = ", ".join(spread(layout(data, w).values("fps")) for w in (1, 2, 4))
    text = f"S(2) {spread(two)}, S(4) {spread(four)}; steps/s with W = 1, 2, 4: {fps}"
    return Judgement(verdict, text)


def small_waits(data: Data) -> Judgement:
    """Judge whether learners wait for less than 1% of the time."""
    found = {f"W = {w}": layout(data, w).values("rho_sync") for w in (2, 4)}
    verdict = worst([more(0.01, values) for values in found.values()])
    text = f"rho_sync with {named(found)}, including waits in all-reduce"
    return Judgement(own_setting(verdict), text)


def more_work(data: Data) -> Judgement:
    """Judge whether efficiency is higher if each learner has more work."""
    constant, growing = speedup(data, 2), speedup(data, 2, batch="growing")
    large = speedup(data, 2, "large", "growing")
    verdict = own_setting(worst([more(growing, constant), more(large, growing)]))
    found = {"small constant": constant, "small growing": growing, "large growing": large}
    return Judgement(verdict, f"S(2) with {_batches(found)}")


def uneven(data: Data) -> Judgement:
    """Judge whether uneven environments make learners wait."""
    runs = data["ddppo_sleep"].where(envs=8, preempt=None)
    found = {
        ("even" if e else "uneven"): of.values("rho_sync") for e, of in runs.by("even").items()
    }
    text = f"rho_sync with {named({f'{name} steps': values for name, values in found.items()})}"
    return Judgement(more(found["uneven"], found["even"]), text)


def remedies(data: Data) -> Judgement:
    """Judge whether more environments, or shorter rollouts, reduce the waiting."""
    runs = data["ddppo_sleep"].where(even=False)
    plain = runs.where(envs=8, preempt=None)
    found = {"E = 8": plain, "E = 32": runs.where(envs=32), "capped": runs.where(preempt=0.5)}
    waits = {name: of.values("rho_sync") for name, of in found.items()}
    speeds = {name: of.values("fps") for name, of in found.items()}
    verdict = worst([more(waits["E = 8"], waits[name]) for name in ("E = 32", "capped")])
    return Judgement(verdict, f"rho_sync with {named(waits)}; steps/s with {named(speeds)}")


# -- correctness -----------------------------------------------------------------------------------


def on_policy(data: Data) -> Judgement:
    """Judge whether no rollout was older than the weights."""
    lags = [lag for name in ("ddppo_target", "ddppo_speed") for lag in data[name].values("lag_max")]
    return Judgement(holds(max(lags) == 0), f"largest lag: {max(lags)} updates ({len(lags)} runs)")


def one_gradient(data: Data) -> Judgement:
    """Judge whether all learners take the step of one learner with all data."""
    runs = data["ddppo_equal"]
    gradient, between = max(runs.values("gradient")), max(runs.values("between"))
    text = f"gradients differ by at most {gradient:.1e} of the largest element; "
    text += f"weights differ by {between:g} between learners"
    return Judgement(holds(gradient < 1e-5 and between == 0.0), text)


def global_advantages(data: Data) -> Judgement:
    """Judge whether advantages are scaled as by one learner with all data."""
    runs = data["ddppo_equal"]
    weights, moved = max(runs.values("weights")), min(runs.values("moved"))
    text = f"weights differ by at most {weights:.1e}, and training changes them by {moved:.2g}"
    return Judgement(holds(weights < 1e-10 < moved), text)


def command(data: Data) -> Judgement:
    """Judge whether one command writes the same kinds of files as the paper's."""
    runs = data["ddppo_command"]
    wanted = {"per_run.csv", "summary.csv", "scaling.png"}
    complete = all(wanted <= set(run.get("files")) for run in runs)
    speeds = {f"S({w})": runs.values(f"speedup_fps_{w}") for w in (2, 4)}
    return Judgement(holds(complete), f"writes {', '.join(sorted(wanted))}; {named(speeds)}")


# -- rows ------------------------------------------------------------------------------------------

NETWORK, CORES = "needs several machines", "needs 8 cores or more"
SMALL, LARGE = "small batch, W = 1, 2, 4", "large batch, W = 1, 2"

ROWS = (
    Row("P0.4", "W learners end within 5% of one learner's return", CARTPOLE, TARGET,
        final_returns),
    Row("P0.4, P0.7", "more learners need less time to a return (here 475)", CARTPOLE, TARGET,
        target_times),
    Row("P0.5 A", "throughput increases with W", LARGE, SPEED, throughput),
    Row("P0.5 B", "efficiency E(W) stays near 1 (above 0.8)", LARGE, SPEED, efficiency),
    Row("P0.5 C", "an iteration's time is rollout + learning + all-reduce + waiting",
        "all runs that measure speed", SPEED, parts),
    Row("P0.5 C", "rho_comm and rho_sync grow with W", SMALL, SPEED, overheads),
    Row("P0.5 C", "all-reduce and waiting explain most of the time lost to an ideal speed-up",
        "small batch, W = 2", SPEED, explained),
    Row("P0.5 D", "iterations take less than twice as long with W = 2",
        "batch growing with W", SPEED, latency),
    Row("P0.6, P1.3", "rollouts come from the current weights (on-policy)",
        "all runs on speed and returns", ("ddppo_target", "ddppo_speed"), on_policy),
    Row("P0.6, P1.6", "a larger batch B changes how many ratios PPO clips", CARTPOLE, TARGET,
        batch_dynamics),
    Row("P0.6, P1.9", "uneven environments make learners wait",
        "W = 2, E = 8; steps of 1 ms, or 32 ms for one step in 32", SLEEP, uneven),
    Row("P1.9", "more environments per learner (E) or capped rollouts reduce the waiting",
        "W = 2, uneven steps; E = 8 capped by `preempt_fraction=0.5`", SLEEP, remedies),
    Row("P1.3, P2.4", "all-reduced gradients equal one learner's; all learners' weights stay equal",
        "W = 2, 3, 4 processes", ("ddppo_equal",), one_gradient),
    Row("P1.6, P2.5", "future work: advantages normalised over all learners, as with one learner",
        "20 updates in float64", ("ddppo_equal",), global_advantages),
    Row("P2.5", "future work: evaluations during training", "CartPole, W = 2", TARGET,
        return_curve),
    Row("P2.5", "future work: continuous actions", "Pendulum, W = 2, evaluations",
        ("ddppo_continuous",), continuous),
    Row("P3.2", "one command measures W = 1, 2, 4", "`headrace bench scaling`, small batch",
        ("ddppo_command",), command),
    Row("P3.3, table", "a slowdown: S(2) = 0.79, S(4) = 0.41", SMALL, SPEED, papers_table),
    Row("P3.3", "waiting takes less than 1% of the time", "small batch, W = 2, 4", SPEED,
        small_waits),
    Row("P3.4", "more work per learner scales better", "W = 2", SPEED, more_work),
    Row("P0.5 B, P0.7", "scaling with W = 8, 16, 32", why=CORES),
    Row("P0.6", "all-reduce dominates beyond some W", why=f"{CORES}, or {NETWORK}"),
    Row("P1.5", "NCCL between GPUs", why="needs two GPUs"),
    Row("P1.5", "all-reduce overlaps with backpropagation", why="not implemented"),
    Row("P1.7", "rollout lengths for Atari and MuJoCo",
        why="the document gives no result to compare with"),
    Row("P1.10", "a parameter server is a bottleneck", why="not implemented"),
    Row("P2.3", "training on macOS", why="needs a Mac"),
)  # fmt: skip
