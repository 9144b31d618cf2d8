"""Plots of training problems: short runs with one problem each, next to healthy runs.

    python benchmarks/pathologies.py --docs docs

Every case is trained with the same seeds with and without the problem. Its plot has two panels: the
return, and the metric that shows the problem. Runs in OUTPUT are not trained again.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import tyro
from matplotlib.ticker import EngFormatter

import headrace as hr
from headrace.errors import require
from headrace.rundir.curves import RunCurves, read_run
from headrace.studies.plotting import curves, picture

RETURN = "charts/episodic_return"
SIZES: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 16, "fragment_length": 32}


class Far(gymnasium.ObservationWrapper):
    """CartPole with position and speeds in very different units."""

    def observation(self, observation: Any) -> Any:
        return (observation * np.array([1e3, 1.0, 1e-2, 1.0])).astype(np.float32)


def far_cartpole() -> gymnasium.Env:
    """Return observations of very different sizes."""
    return Far(gymnasium.make("CartPole-v1"))


class Paid(gymnasium.RewardWrapper):
    """CartPole with rewards in other units."""

    def __init__(self, factor: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._factor = factor

    def reward(self, reward: Any) -> float:
        return self._factor * float(reward)


class Patience(gymnasium.Env):
    """A single choice: 0.2 at once, or 1 after 20 steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)  # the choice, the time
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._choice, self._time = 0.0, 0
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return np.array([self._choice, self._time / 20], np.float32)

    def step(self, action: Any) -> Any:
        reward = 0.0
        if self._time == 0:
            self._choice = float(action)
            reward = 0.0 if action else 0.2
        self._time += 1
        over = self._time == 20
        return self._seen(), self._choice if over else reward, over, False, {}


class Case(NamedTuple):
    """A training problem: two runs, and the metric that shows it."""

    common: dict[str, Any]
    well: tuple[str, dict[str, Any]]  # the name of the curve, and its settings
    ill: tuple[str, dict[str, Any]]
    figure: str  # a metric of metrics.jsonl or evaluations.jsonl
    words: str
    log: bool = False


def _ppo(**settings: Any) -> dict[str, Any]:
    return {"algo": hr.PPO(**settings)}


def _appo(**settings: Any) -> dict[str, Any]:
    return {"algo": hr.APPO(**settings)}


def _paid(factor: float) -> dict[str, Any]:
    paid = {"env": Paid, "env_kwargs": {"factor": factor}, "engine": "sync"}
    return {**SIZES, "total_steps": 60_000, **paid}


CARTPOLE = {"env": "CartPole-v1", **SIZES, "total_steps": 60_000}
CASES: dict[str, Case] = {
    "values": Case(
        _paid(100.0) | _ppo(),
        ("values normalised", {}),
        ("normalize_values=False", {"network": hr.Network(normalize_values=False)}),
        "losses/explained_variance", "explained variance"),
    "advantages": Case(
        _paid(0.001),
        ("advantages normalised", _ppo(entropy_coef=0.01)),
        ("scale_free=False, normalize_advantage=False",
         {"scale_free": False, **_ppo(entropy_coef=0.01, normalize_advantage=False)}),
        "losses/entropy", "entropy, nats"),
    "observations": Case(
        CARTPOLE | {"env": far_cartpole, "engine": "sync"} | _ppo(),
        ("observations normalised", {}),
        ("normalize_observations=False", {"network": hr.Network(normalize_observations=False)}),
        "losses/entropy", "entropy, nats"),
    "small-steps": Case(
        CARTPOLE,
        ("6 passes, 16 minibatches", _ppo()),
        ("1 pass, 2 minibatches", _ppo(epochs=1, minibatches=2)),
        "losses/approx_kl", "KL, nats", True),
    "large-steps": Case(
        CARTPOLE,
        ("learning_rate=7e-4", _ppo(lr_schedule="constant")),
        ("learning_rate=0.03", _ppo(lr_schedule="constant", learning_rate=0.03)),
        "losses/approx_kl", "KL, nats", True),
    "lag": Case(
        CARTPOLE,
        ("max_lag=1", _appo(learning_rate=1e-3)),
        ("max_lag=12, weight_sync='every-8'",
         {"weight_sync": "every-8", **_appo(learning_rate=1e-3, max_lag=12)}),
        "lag/mean", "lag, updates"),
    "bonus": Case(
        CARTPOLE,
        ("entropy_coef=0", _appo()),
        ("entropy_coef=1", _appo(entropy_coef=1.0)),
        "losses/entropy", "entropy, nats"),
    "collapse": Case(
        CARTPOLE,
        ("learning_rate=7e-4", _ppo(lr_schedule="constant")),
        ("learning_rate=0.1", _ppo(lr_schedule="constant", learning_rate=0.1)),
        "losses/entropy", "entropy, nats"),
    "horizon": Case(
        {"env": Patience, "engine": "sync", **SIZES, "total_steps": 60_000},
        ("gamma=0.99", _ppo()),
        ("gamma=0.9", _ppo(gamma=0.9)),
        "losses/explained_variance", "explained variance"),
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    """Draw the training problems; see the module's docstring."""

    seeds: int = 3
    cases: tuple[str, ...] = ()
    """Names of cases; all by default."""
    train: bool = True
    """Train missing runs; otherwise draw existing ones."""
    output: Path = Path("runs/pathologies")
    docs: Path | None = None
    """Folder whose pathologies/ receives the plots; OUTPUT by default."""

    def __post_init__(self) -> None:
        require(self.seeds >= 1, "seeds", self.seeds, "1 or more (nearest: 1)")


def main(args: Args) -> None:
    """Train missing runs, and draw."""
    folder = args.output if args.docs is None else args.docs / "pathologies"
    folder.mkdir(parents=True, exist_ok=True)
    for name in args.cases or CASES:
        case, runs = CASES[name], dict[str, list[RunCurves]]()
        for kind, (label, own) in {"well": case.well, "ill": case.ill}.items():
            for seed in range(args.seeds):
                run_dir = args.output / name / f"{kind}-{seed}"
                if args.train and not is_done(run_dir):
                    trained({**case.common, **own}, run_dir, seed)
                if (run_dir / "metrics.jsonl").exists():
                    runs.setdefault(label, []).append(read_run(run_dir))
        if runs:
            draw(case, runs, folder / f"{name}.png")
            print(name, *(f"{label}: {last(found)}" for label, found in runs.items()), sep=" | ")


def is_done(run_dir: Path) -> bool:
    """Return whether a run is complete."""
    file = run_dir / "summary.json"
    return file.exists() and not json.loads(file.read_text(encoding="utf-8")).get("interrupted")


def last(runs: list[RunCurves]) -> list[float]:
    """Return the final training metrics of each run."""
    return [round(run.curve("env_steps", RETURN)[1][-1], 2) for run in runs]


def trained(settings: dict[str, Any], run_dir: Path, seed: int) -> None:
    """Train with a result every few updates."""
    config = hr.Config(**settings, seed=seed, run_dir=str(run_dir), eval_episodes=0)
    config = dataclasses.replace(config, log_interval_s=0.05, overwrite=run_dir.exists())
    with warnings.catch_warnings(), hr.Trainer(config, notify=lambda text: None) as trainer:
        warnings.simplefilter("ignore")
        for _ in trainer:
            pass
    if trainer.interrupted:
        raise KeyboardInterrupt


def draw(case: Case, runs: dict[str, list[RunCurves]], path: Path) -> None:
    """Plot the return and the metric: means over seeds, and standard errors."""
    settings = {**case.common, **case.well[1]}
    env = settings["env"]
    title = env if isinstance(env, str) else " ".join((env.__doc__ or "").split()).rstrip(".")
    title = f"{type(settings['algo']).__name__}. {title}"
    with picture(path, title, (7.0, 3.4), ncols=2) as (figure, axes):
        for panel, name in zip(axes, (RETURN, case.figure), strict=True):
            curves(panel, {k: [r.curve("env_steps", name) for r in v] for k, v in runs.items()})
            panel.set_xlabel("environment steps")
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes[0].set_ylabel("training return")
        axes[1].set_ylabel(case.words)
        axes[1].set_yscale("log" if case.log else "linear")
        if "variance" in case.figure:
            axes[1].set_ylim(-1.0, 1.1)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
