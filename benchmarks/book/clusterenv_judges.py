"""Rows of the page on ClusterEnv, with their verdicts and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from book.rows import Judgement, Row, Runs, Verdict, holds, more, named, own_setting, spread, worst

Data = Mapping[str, Runs]
TOLERANCE = 40.0  # of LunarLander's return: without any fetch it stays about 200 lower
CHECKS = ("clusterenv_checks",)
LANDER = ("clusterenv_thresholds",)
UPDATES = ("clusterenv_updates",)


# -- thresholds ------------------------------------------------------------------------------------


def every(data: Data) -> Runs:
    """Return the runs that fetch after every update."""
    return data["clusterenv_thresholds"].where(weight_sync="every")


def thresholds(data: Data, kind: str) -> dict[float, Runs]:
    """Return the adaptive runs by threshold, of means or of sums."""
    return data["clusterenv_thresholds"].where(weight_sync="adaptive", kl=kind).by("threshold")


def described(runs: Runs) -> str:
    """Return the mean return of runs, with their fetches in brackets."""
    syncs = runs.values("syncs_per_worker")
    return f"{spread(runs.values('final_return'))} ({sum(syncs) / len(syncs):.1f})"


def learns(kind: str, values: Sequence[float]) -> Callable[[Data], Judgement]:
    """Return a judge of thresholds that should lose nothing, and fetch less often."""

    def judge(data: Data) -> Judgement:
        found, base = thresholds(data, kind), every(data)
        verdicts, texts = [], [f"every update: {described(base)}"]
        for value in values:
            if value not in found:
                return Judgement(Verdict.NOT_RUN, f"not run yet: δ = {value:g}")
            runs = found[value]
            fewer = more(base.values("syncs_per_worker"), runs.values("syncs_per_worker"))
            own = runs.values("final_return")
            kept = more(own, base.values("final_return"), margin=-TOLERANCE)
            verdicts.append(fewer if kept is Verdict.IN_KIND else kept)
            texts.append(f"δ = {value:g}: {described(runs)}")
        return Judgement(worst(verdicts), f"return (fetches) {', '.join(texts)}")

    return judge


def delays(data: Data) -> Judgement:
    """Judge whether the largest threshold learns less."""
    largest, base = thresholds(data, "mean")[1.0], every(data)
    verdict = more(base.values("final_return"), largest.values("final_return"))
    text = f"return (fetches) every update: {described(base)}, δ = 1: {described(largest)}"
    return Judgement(verdict, text)


def ordered(kind: str) -> Callable[[Data], Judgement]:
    """Return a judge of whether higher thresholds fetch less often."""

    def judge(data: Data) -> Judgement:
        found = {k: runs.values("syncs_per_worker") for k, runs in thresholds(data, kind).items()}
        means = [sum(values) / len(values) for values in found.values()]
        falls = means == sorted(means, reverse=True)
        first, *_, last = found.values()
        verdict = more(first, last)
        if verdict is Verdict.IN_KIND and not falls:
            verdict = Verdict.NOT_REPRODUCED
        text = ", ".join(f"{k:g}: {spread(v, 1)}" for k, v in found.items())
        return Judgement(verdict, f"fetches with δ = {text}")

    return judge


# -- many small updates ----------------------------------------------------------------------------


def savings(algo: str) -> Callable[[Data], Judgement]:
    """Return a judge of whether less than half of the fetches lose no return."""

    def judge(data: Data) -> Judgement:
        runs = data["clusterenv_updates"].where(algo=algo)
        base, own = runs.where(weight_sync="every"), runs.where(weight_sync="adaptive")
        kept = more(own.values("final_return"), base.values("final_return"), margin=-50.0)
        fewer = more([x / 2 for x in base.values("pulls")], own.values("pulls"))
        verdict = fewer if kept is Verdict.IN_KIND else kept
        return Judgement(verdict, f"every update: {cost(base)}; adaptive: {cost(own)}")

    return judge


def cost(runs: Runs) -> str:
    """Return the mean return, fetches and megabytes of runs."""
    units = {"return": "final_return", "fetches": "pulls", "MB": "megabytes"}
    return ", ".join(f"{unit} {spread(runs.values(name))}" for unit, name in units.items())


def fixed(data: Data) -> Judgement:
    """Judge whether adaptive fetches learn more than as many fixed ones."""
    verdicts, texts = [], []
    for algo, runs in data["clusterenv_updates"].by("algo").items():
        own, other = runs.where(weight_sync="adaptive"), runs.where(weight_sync="every-12")
        verdicts.append(more(own.values("final_return"), other.values("final_return")))
        texts.append(f"{algo.upper()} adaptive {short(own)}, every 12th update {short(other)}")
    return Judgement(worst(verdicts), f"return (fetches) {'; '.join(texts)}")


def short(runs: Runs) -> str:
    """Return the mean return of runs, with the fetches of all workers in brackets."""
    return f"{spread(runs.values('final_return'))} ({spread(runs.values('pulls'), 0)})"


# -- the interface ---------------------------------------------------------------------------------


def checked(data: Data, name: str) -> Runs:
    """Return the runs of a check; raises LookupError without any."""
    runs = data["clusterenv_checks"].where(check=name)
    if not len(runs):
        raise LookupError(name)
    return runs


def identical(name: str) -> Callable[[Data], Judgement]:
    """Return a judge of a check whose trajectories should be equal."""

    def judge(data: Data) -> Judgement:
        greatest = max(checked(data, name).values("difference"))
        return Judgement(holds(greatest == 0.0), f"largest difference {greatest:g}")

    return judge


def listing(data: Data) -> Judgement:
    """Judge whether the listing runs, and fetches weights when the agent changes much."""
    runs = checked(data, "listing")
    early, late = runs.values("syncs_before"), runs.values("syncs_after")
    text = f"{max(early):g} fetches during 500 small changes of the weights, "
    text += f"{min(late):g} during 500 large ones"
    return Judgement(holds(max(early) < min(late)), text)


def formula(data: Data) -> Judgement:
    """Judge whether the measured divergence is that of the formula."""
    error = max(checked(data, "divergence").values("relative_error"))
    return Judgement(holds(error < 1e-4), f"relative difference at most {error:.1e}")


def partial(data: Data) -> Judgement:
    """Judge whether two of 16 endless environments can be reset."""
    runs = checked(data, "partial")
    good = all(r.get("reset") == [1.0, 1.0] and r.get("others") == [301.0] for r in runs)
    return Judgement(holds(good), "2 of 16 were reset; the others continued at step 301")


def same_loop(data: Data) -> Judgement:
    """Judge whether a training loop reaches the same return with workers."""
    runs = data["clusterenv_examples"].where(example="ppo.py")
    names = {0: "no workers", 2: "2 workers"}
    found = {names[n]: of.values("evaluated") for n, of in runs.by("nodes").items()}
    own, base = found["2 workers"], found["no workers"]
    verdict = own_setting(more(own, base, margin=-25.0))
    return Judgement(verdict, f"return with {named(found)}")


def off_policy(data: Data) -> Judgement:
    """Judge whether DQN learns."""
    runs = data["clusterenv_examples"].where(example="clusterenv_dqn.py")
    first, last = runs.values("first_return"), runs.values("evaluated")
    return Judgement(
        more(last, first), f"return {spread(first)} after 10,000 steps, {spread(last)} at the end"
    )


def continuous(data: Data) -> Judgement:
    """Judge whether PPO learns Pendulum."""
    runs = data["clusterenv_continuous"]
    first, last = runs.values("first_return"), runs.values("final_return")
    text = f"return {spread(first)} (first 20 episodes), {spread(last)} (last 20)"
    return Judgement(more(last, first), text)


# -- speed -----------------------------------------------------------------------------------------


def asynchronous(data: Data) -> Judgement:
    """Judge whether collect_async is faster if environments are uneven."""
    found = {call: of.values("sps") for call, of in data["clusterenv_waits"].by("call").items()}
    return Judgement(more(found["collect_async"], found["collect"]), f"steps/s with {named(found)}")


def ratio(data: Data, above: str, below: str) -> list[float]:
    """Return the ratio of two speeds of each run."""
    return [run.get(above) / run.get(below) for run in data["clusterenv_speed"]]


def faster(data: Data) -> Judgement:
    """Judge whether two workers are faster than one process."""
    found = {name: ratio(data, name, "one") for name in ("collect", "step")}
    found["two processes"] = ratio(data, "two", "one")
    text = f"steps/s relative to one process with {named(found)}"
    return Judgement(more(found["collect"], 1.0), text)


def overhead(data: Data) -> Judgement:
    """Judge whether collect reaches 80% of two separate processes."""
    values = ratio(data, "collect", "two")
    return Judgement(more(values, 0.8), f"{spread(values)} of their steps/s")


def saves_time(data: Data) -> Judgement:
    """Judge whether measuring drift is cheaper than fetching weights, on one machine."""
    values = ratio(data, "adaptive", "every")
    text = f"{spread(values)} times the steps/s of fetching after every update"
    return Judgement(more(values, 1.0), text)


# -- rows ------------------------------------------------------------------------------------------

SMALL = "LunarLander"
TINY = "CartPole, updates of 128 steps"
TWO = "2 workers × 32 environments"

ROWS = (
    Row("Abstract, III-B", "replaces a Gymnasium vector environment", "CartPole, 200 steps, same "
        "seeds and actions as SyncVectorEnv", CHECKS, identical("gymnasium")),
    Row("Abstract", "on-policy training loops need few changes",
        "PPO of `examples/ppo.py` on CartPole", ("clusterenv_examples",), same_loop),
    Row("Abstract", "off-policy algorithms work, too",
        "DQN of `examples/clusterenv_dqn.py` on CartPole", ("clusterenv_examples",), off_policy),
    Row("Abstract, VI", "high throughput: `collect` is faster than one process",
        f"LunarLander, {TWO}", ("clusterenv_speed",), faster),
    Row("VI", "minimal overhead: `collect` reaches 80% of two separate processes",
        f"LunarLander, {TWO}", ("clusterenv_speed",), overhead),
    Row("Abstract", "adaptive: less than half of the fetches, equal return", f"APPO, {TINY}",
        UPDATES, savings("appo")),
    Row("Abstract", "adaptive, with V-trace: less than half of the fetches, equal return",
        f"IMPALA, {TINY}", UPDATES, savings("impala")),
    Row("II-C", "adaptive fetches reach a higher return than as many at fixed intervals", TINY,
        UPDATES, fixed),
    Row("III-C", "the measured divergence is the formula's KL", "computed again from the same "
        "observations", CHECKS, formula),
    Row("III-C", "adaptive fetches save time", f"CartPole, {TWO}, updates of 16 steps",
        ("clusterenv_speed",), saves_time),
    Row("Listing 1", "the listing runs; changed: `step` returns five values, local workers",
        "1,000 steps, an agent with only `act` and `get_parameters`", CHECKS, listing),
    Row("Figure 2", "δ = 0.05 fetches less and learns as well, with the mean KL", SMALL, LANDER,
        learns("mean", (0.05,))),
    Row("Figure 2", "intermediate δ fetch less and learn as well, with the summed KL", SMALL,
        LANDER, learns("sum", (0.2, 0.5))),
    Row("IV-D", "δ = 0.8 still converges, with the mean KL", SMALL, LANDER,
        learns("mean", (0.8,))),
    Row("IV-D", "δ = 0.8 still converges, with the summed KL", SMALL, LANDER,
        learns("sum", (0.8,))),
    Row("IV-D", "δ = 1 delays convergence, with the mean KL", SMALL, LANDER, delays),
    Row("Figure 3", "a lower δ fetches more often, with the mean KL", SMALL, LANDER,
        ordered("mean")),
    Row("Figure 3", "a lower δ fetches more often, with the summed KL", SMALL, LANDER,
        ordered("sum")),
    Row("V", "future work: continuous control", "PPO on Pendulum, 2 workers × 8 environments",
        ("clusterenv_continuous",), continuous),
    Row("V", "future work: persistent environments, reset in part",
        "16 environments that never end, `reset_mask`", CHECKS, partial),
    Row("V", "future work: asynchronous rollouts are faster with uneven loads",
        "4 workers × 4 environments, 32 ms for one step in 32", ("clusterenv_waits",),
        asynchronous),
    Row("V", "other clusters: Ray gives the same trajectories", "CartPole, 200 steps", CHECKS,
        identical("ray")),
    Row("III-E", "workers run on SLURM",
        why="no SLURM here; `tests/jobs/test_slurm.py` runs on four nodes"),
    Row("V", "future work: Kubernetes", why="no cluster here; see `tests/jobs`"),
    Row("IV-A", "the full setting: 5 million steps, 4 × 64 environments, 30 epochs",
        why="takes hours per run"),
)  # fmt: skip
