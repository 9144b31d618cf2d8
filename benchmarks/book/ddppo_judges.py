"""Rows of the page ddppo, and how their runs are judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from book.rows import Judgement, Row, Runs, Verdict, holds, more, named, own_setting, spread, worst

Data = Mapping[str, Runs]
SPEED, TARGET, SLEEP = ("ddppo_speed",), ("ddppo_target",), ("ddppo_sleep",)
CARTPOLE = "CartPole"


def layout(data: Data, learners: int, size: str = "small", batch: str = "constant") -> Runs:
    """Return runs of the speed experiment; one learner's count for both kinds of batch."""
    batch = "constant" if learners == 1 else batch
    return data["ddppo_speed"].where(size=size, batch=batch, world_size=learners)


def ratios(above: Runs, below: Runs, name: str) -> list[float]:
    """Return the ratio of a value in runs with the same seed."""
    others = {run.case["seed"]: run.get(name) for run in below}
    pairs = [(run.get(name), others.get(run.case["seed"])) for run in above]
    return [a / b for a, b in pairs if a is not None and b]


def speedup(data: Data, learners: int, size: str = "small", batch: str = "constant") -> list[float]:
    """Return the speed-ups of the throughput over one learner, a value per seed."""
    return ratios(layout(data, learners, size, batch), layout(data, 1, size), "fps")


# -- learning --------------------------------------------------------------------------------------


def final_returns(data: Data) -> Judgement:
    """Judge whether several learners reach one learner's return, within 5%."""
    runs = data["ddppo_target"]
    one = runs.where(world_size=1).values("final_return")
    others = {
        f"W = {w}, {batch}": runs.where(world_size=w, batch=batch).values("final_return")
        for w, batch in ((2, "constant"), (2, "growing"), (4, "constant"))
    }
    verdicts = [more(values, one, margin=-25.0) for values in others.values()]
    return Judgement(own_setting(worst(verdicts)), named({"W = 1": one, **others}))


def target_times(data: Data) -> Judgement:
    """Judge whether two learners need less time to the target."""
    runs = data["ddppo_target"]
    seconds = {
        "W = 1": runs.where(world_size=1),
        "W = 2": runs.where(world_size=2, batch="constant"),
        "W = 2 growing": runs.where(world_size=2, batch="growing"),
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
    return Judgement(verdict, f"seconds to 475: {named(times)}; S(2) {spread(speed)}")


def batch_dynamics(data: Data) -> Judgement:
    """Judge whether a batch that grows with W changes clipping."""
    runs = data["ddppo_target"]
    one, grown = runs.where(world_size=1), runs.where(batch="growing")
    same = runs.where(world_size=2, batch="constant")
    found = {"B": one, "2 B": grown, "B with W = 2": same}
    clipped = {name: [100 * x for x in of.values("clipfrac")] for name, of in found.items()}
    steps = {name: of.values("steps_to_target") for name, of in found.items()}
    changed = more(clipped["B"], clipped["2 B"])
    verdict = {Verdict.REFUTED: Verdict.REPRODUCED}.get(changed, own_setting(changed))
    return Judgement(verdict, f"clipped %: {named(clipped)}; steps to 475: {named(steps)}")


def return_curve(data: Data) -> Judgement:
    """Judge whether evaluations during training show that it learns."""
    runs = data["ddppo_target"].where(world_size=2)
    first, last = runs.values("first_return"), runs.values("final_return")
    return Judgement(own_setting(more(last, first)), f"first {spread(first)}, last {spread(last)}")


def continuous(data: Data) -> Judgement:
    """Judge whether two learners learn a task of continuous actions."""
    runs = data["ddppo_continuous"]
    first, last = runs.values("first_return"), runs.values("final_return")
    return Judgement(more(last, first), f"first {spread(first)}, last {spread(last)}")


# -- speed -----------------------------------------------------------------------------------------


def throughput(data: Data) -> Judgement:
    """Judge whether steps per second increase with W."""
    found = {batch: speedup(data, 2, "large", batch) for batch in ("constant", "growing")}
    verdict = worst([more(values, 1.0) for values in found.values()])
    fps = layout(data, 1, "large").values("fps")
    return Judgement(verdict, f"W = 1 {spread(fps)} steps/s; S(2): {named(found)}")


def efficiency(data: Data) -> Judgement:
    """Judge whether efficiency is near 1, above 0.8."""
    found = {
        batch: [s / 2 for s in speedup(data, 2, "large", batch)]
        for batch in ("constant", "growing")
    }
    return Judgement(worst([more(v, 0.8) for v in found.values()]), f"E(2): {named(found)}")


def parts(data: Data) -> Judgement:
    """Judge whether the four parts add up to the iteration, within 5%."""
    coverage = data["ddppo_speed"].values("coverage")
    low, high = min(coverage), max(coverage)
    text = f"sum of parts / t_iter: {low:.3f} to {high:.3f} in {len(coverage)} runs"
    return Judgement(holds(low > 0.95 and high < 1.05), text)


def overheads(data: Data) -> Judgement:
    """Judge whether communication and waiting grow with W."""
    texts, verdicts = [], []
    for name in ("rho_comm", "rho_sync"):
        of = [layout(data, w).values(name) for w in (1, 2, 4)]
        verdicts += [more(of[1], of[0]), more(of[2], of[1])]
        texts.append(f"{name} {', '.join(spread(values, 3) for values in of)}")
    return Judgement(own_setting(worst(verdicts)), f"W = 1, 2, 4: {'; '.join(texts)}")


def explained(data: Data) -> Judgement:
    """Judge whether communication and waiting are most of the time lost with two learners."""
    before = {run.case["seed"]: run for run in layout(data, 1)}
    shares = []
    for run in layout(data, 2):
        lost = run.get("t_iter") - before[run.case["seed"]].get("t_iter") / 2
        shares.append((run.get("t_comm") + run.get("t_sync")) / lost)
    return Judgement(
        own_setting(more(shares, 0.5)), f"{spread(shares)} of t_iter(2) − t_iter(1) / 2"
    )


def latency(data: Data) -> Judgement:
    """Judge whether iterations take less than twice as long with two learners."""
    found = {
        size: ratios(layout(data, 2, size, "growing"), layout(data, 1, size), "t_iter")
        for size in ("small", "large")
    }
    verdict = worst([more(2.0, values) for values in found.values()])
    return Judgement(own_setting(verdict), f"t_iter(2) / t_iter(1): {named(found)}")


def papers_table(data: Data) -> Judgement:
    """Judge whether the paper's batch loses speed with more learners."""
    two, four = speedup(data, 2), speedup(data, 4)
    verdict = own_setting(worst([more(1.0, two), more(two, four)]))
    fps = ", ".join(spread(layout(data, w).values("fps")) for w in (1, 2, 4))
    return Judgement(verdict, f"S(2) {spread(two)}, S(4) {spread(four)}; steps/s {fps}")


def small_waits(data: Data) -> Judgement:
    """Judge whether learners wait for less than 1% of the time."""
    found = {f"W = {w}": layout(data, w).values("rho_sync") for w in (2, 4)}
    verdict = worst([more(0.01, values) for values in found.values()])
    return Judgement(own_setting(verdict), f"{named(found)}, waits in each sum included")


def more_work(data: Data) -> Judgement:
    """Judge whether efficiency is higher if each learner has more work."""
    constant, growing = speedup(data, 2), speedup(data, 2, batch="growing")
    large = speedup(data, 2, "large", "growing")
    verdict = own_setting(worst([more(growing, constant), more(large, growing)]))
    found = {"small constant": constant, "small growing": growing, "large growing": large}
    return Judgement(verdict, f"S(2): {named(found)}")


def uneven(data: Data) -> Judgement:
    """Judge whether uneven environments make learners wait."""
    runs = data["ddppo_sleep"].where(envs=8, preempt=None)
    found = {
        ("even" if e else "uneven"): of.values("rho_sync") for e, of in runs.by("even").items()
    }
    return Judgement(more(found["uneven"], found["even"]), f"rho_sync: {named(found)}")


def remedies(data: Data) -> Judgement:
    """Judge whether more environments, or shorter rollouts, reduce the waiting."""
    runs = data["ddppo_sleep"].where(even=False)
    plain = runs.where(envs=8, preempt=None)
    found = {"E = 8": plain, "E = 32": runs.where(envs=32), "cut": runs.where(preempt=0.5)}
    waits = {name: of.values("rho_sync") for name, of in found.items()}
    speeds = {name: of.values("fps") for name, of in found.items()}
    verdict = worst([more(waits["E = 8"], waits[name]) for name in ("E = 32", "cut")])
    return Judgement(verdict, f"rho_sync: {named(waits)}; steps/s: {named(speeds)}")


# -- correctness -----------------------------------------------------------------------------------


def on_policy(data: Data) -> Judgement:
    """Judge whether no rollout was older than the weights."""
    lags = [lag for name in ("ddppo_target", "ddppo_speed") for lag in data[name].values("lag_max")]
    return Judgement(holds(max(lags) == 0), f"greatest lag {max(lags)} in {len(lags)} runs")


def one_gradient(data: Data) -> Judgement:
    """Judge whether all learners take the step of one learner with all data."""
    runs = data["ddppo_equal"]
    gradient, between = max(runs.values("gradient")), max(runs.values("between"))
    text = f"gradient differs by at most {gradient:.1e} of its largest element; "
    text += f"learners' weights by {between:g}"
    return Judgement(holds(gradient < 1e-5 and between == 0.0), text)


def global_advantages(data: Data) -> Judgement:
    """Judge whether advantages are scaled as by one learner with all data."""
    runs = data["ddppo_equal"]
    weights, moved = max(runs.values("weights")), min(runs.values("moved"))
    text = f"weights differ by at most {weights:.1e} after moving by {moved:.2g}"
    return Judgement(holds(weights < 1e-10 < moved), text)


def command(data: Data) -> Judgement:
    """Judge whether the paper's command and artefacts have their equals."""
    runs = data["ddppo_command"]
    wanted = {"per_run.csv", "summary.csv", "scaling.png"}
    complete = all(wanted <= set(run.get("files")) for run in runs)
    speeds = {f"S({w})": runs.values(f"speedup_fps_{w}") for w in (2, 4)}
    return Judgement(holds(complete), f"{', '.join(sorted(wanted))}; {named(speeds)}")


# -- rows ------------------------------------------------------------------------------------------

NETWORK, CORES = "needs several machines", "needs 8 cores or more"
_Judge = Callable[[Data], Judgement]


def _row(where: str, claim: str, ran: str, experiments: tuple[str, ...], judge: _Judge) -> Row:
    return Row(where, claim, ran, experiments, judge)


ROWS = (
    _row("P0.4", "R_W(end) ≈ R_1(end), within 5%", CARTPOLE, TARGET, final_returns),
    _row("P0.4, P0.7", "T_W to a target falls with W", CARTPOLE, TARGET, target_times),
    _row("P0.5 A", "FPS increases with W", "large batch, W = 1, 2", SPEED, throughput),
    _row("P0.5 B", "E(W) stays near 1: above 0.8", "large batch, W = 2", SPEED, efficiency),
    _row("P0.5 C", "t_iter is the sum of its four parts", "all speed runs", SPEED, parts),
    _row("P0.5 C", "rho_comm and rho_sync grow with W", "small batch", SPEED, overheads),
    _row("P0.5 C", "they explain most of the lost time", "small batch, W = 2", SPEED, explained),
    _row("P0.5 D", "t_iter doesn't blow up: less than doubles", "growing batches", SPEED, latency),
    _row(
        "P0.6, P1.3", "rollouts come from the weights that are updated", "speed, CartPole",
        ("ddppo_target", "ddppo_speed"), on_policy,
    ),
    _row("P0.6, P1.6", "a larger B changes clipping", CARTPOLE, TARGET, batch_dynamics),
    _row(
        "P0.6, P1.9", "uneven environments cause waiting",
        "W = 2, 8 environments × 16 steps of 1 ms; or 32 ms in one of 32", SLEEP, uneven,
    ),
    _row(
        "P1.9", "larger E, or capped rollouts, reduce it",
        "the uneven ones; cut by `preempt_fraction=0.5`", SLEEP, remedies,
    ),
    _row(
        "P1.3, P2.4", "the all-reduced gradient is one learner's; weights stay equal",
        "W = 2, 3, 4 processes", ("ddppo_equal",), one_gradient,
    ),
    _row(
        "P1.6, P2.5", "future: advantages scaled over all workers",
        "20 updates in float64", ("ddppo_equal",), global_advantages,
    ),
    _row("P2.5", "future: evaluations and a return curve", CARTPOLE, TARGET, return_curve),
    _row(
        "P2.5", "future: continuous actions", "Pendulum, W = 2, 40,960 steps in quick",
        ("ddppo_continuous",), continuous,
    ),
    _row(
        "P3.2", "one command measures W = 1, 2, 4", "`headrace bench scaling`, its flags",
        ("ddppo_command",), command,
    ),
    _row("P3.3, table", "S(2) = 0.79, S(4) = 0.41", "small batch", SPEED, papers_table),
    _row("P3.3", "sync fraction below 1%", "small batch", SPEED, small_waits),
    _row("P3.4", "more work per worker scales better", "W = 2", SPEED, more_work),
    Row("P0.5 B, P0.7", "W = 8, 16, 32", why=CORES),
    Row("P0.6", "all-reduce dominates beyond some W", why=f"{CORES}, or {NETWORK}"),
    Row("P1.5", "NCCL between GPUs", why="needs two GPUs"),
    Row("P1.5", "overlap of communication and backpropagation", why="not implemented"),
    Row("P1.7", "horizons for Atari and MuJoCo", why="gives no result to compare with"),
    Row("P1.10", "a parameter server is a bottleneck", why="not implemented"),
    Row("P2.3", "macOS", why="needs a Mac"),
)  # fmt: skip
