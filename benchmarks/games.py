"""Training speed on multi-agent games: headrace vs. handwritten loops.

    python benchmarks/games.py
    python benchmarks/games.py --env-id mpe2:simple_reference_v3 --num-games 32
    python benchmarks/games.py --env-id headrace_ssa.dominance:parallel_env \
        --vectorised headrace_ssa:headrace/OrbitalDominance-v0

In both handwritten loops one network plays all agents and is trained by PPO on all of them: one
game at a time, as in tutorials, and ``num_games`` games stepped in turn with one forward pass.
headrace trains the same networks with the same epochs, minibatches and rollouts, with one actor and
with one per core. Each run is a separate process, cases are interleaved, and ratios are medians of
the ratios within a round. Rates are agent steps per second after the first update. "game alone" is
the game with random actions on one core. Times the number of cores, it bounds every program. Games
must be parallel, with Box observations and Discrete actions, which ``info["action_mask"]`` may
mask. All agents must stay until the end.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import tyro

from headrace.envs.names import Prepared, resolve
from headrace.processes import num_cores
from headrace.studies.children import Children
from headrace.studies.machine import machine, show, wide_console, write_csv

EPOCHS, MINIBATCHES, GAMMA, LAM, CLIP = 4, 4, 0.99, 0.95, 0.2
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Args:
    """Measure training speed; see the module's docstring."""

    env_id: str = "mpe2:simple_spread_v3"
    """A parallel game."""
    vectorised: str | None = None
    """The same game as a vector environment, which headrace also trains."""
    num_games: int = 16
    """Games of the second loop and of headrace."""
    num_steps: int = 64
    """Steps of a rollout."""
    repeats: int = 3
    """Number of measurements of each case."""
    seconds: float = 10.0
    """Approximate seconds of a run."""
    output: Path = Path("results/games")
    """Folder for games.csv."""


class Loop:
    """Handwritten PPO on ``num_games`` games."""

    def __init__(self, env_id: str, num_games: int, num_steps: int) -> None:
        import torch
        from learning_ppo import Agent

        make, _ = Prepared.split(resolve(env_id))
        self._games = [make() for _ in range(num_games)]
        self._shown = [game.reset(seed=i) for i, game in enumerate(self._games)]
        self.agents = list(self._games[0].possible_agents)
        one = self.agents[0]
        num_inputs = self._games[0].observation_space(one).shape[0]
        self._num_actions = int(self._games[0].action_space(one).n)
        torch.manual_seed(0)
        self._agent = Agent(num_inputs, self._num_actions, False)
        self._optimizer = torch.optim.Adam(self._agent.parameters(), lr=2.5e-4, eps=1e-5)
        self._num_steps = num_steps

    def _seen(self) -> tuple[Any, Any]:
        """Return observations ``[games * agents, ...]``, and masks or None."""
        import torch

        obs = np.stack([rows[a] for rows, _ in self._shown for a in self.agents])
        infos = [infos.get(a, {}) for _, infos in self._shown for a in self.agents]
        masks = [info["action_mask"] for info in infos if "action_mask" in info]
        return torch.tensor(obs), torch.tensor(np.stack(masks)) > 0 if masks else None

    def _policy(self, obs: Any, mask: Any) -> Any:
        import torch

        policy = self._agent.distribution(obs)
        if mask is None:
            return policy
        return torch.distributions.Categorical(logits=policy.logits.masked_fill(~mask, -1e8))

    def _step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Step all games, restart finished ones; return rewards and ends ``[games * agents]``."""
        rewards, ends, count = [], [], len(self.agents)
        for g, game in enumerate(self._games):
            own = actions[g * count : (g + 1) * count].tolist()
            obs, reward, dead, cut, infos = game.step(dict(zip(self.agents, own, strict=True)))
            rewards += [reward[a] for a in self.agents]
            over = [dead[a] or cut[a] for a in self.agents]
            ends += over
            self._shown[g] = game.reset() if all(over) else (obs, infos)
        return np.array(rewards, np.float32), np.array(ends, np.float32)

    def seconds_alone(self, rng: np.random.Generator) -> float:
        """Return seconds per step of each game with random actions, without choosing them."""
        _, mask = self._seen()
        chances = rng.random((len(self._games) * len(self.agents), self._num_actions))
        chosen = (chances if mask is None else chances * mask.numpy()).argmax(1)
        start = time.perf_counter()
        self._step(chosen)
        return time.perf_counter() - start

    def update(self) -> int:
        """Collect one rollout and train on it. Return the number of agent steps."""
        import torch
        from learning_ppo import advantages

        kept: list[tuple[Any, ...]] = []
        for _ in range(self._num_steps):
            obs, mask = self._seen()
            with torch.no_grad():
                policy, value = self._policy(obs, mask), self._agent.value(obs).squeeze(-1)
                action = policy.sample()
                log_prob = policy.log_prob(action)
            reward, ended = map(torch.from_numpy, self._step(action.numpy()))
            kept.append((obs, mask, action, log_prob, value, reward, ended))
        obs, masks, *others = zip(*kept, strict=True)
        action, log_prob, value, reward, ended = map(torch.stack, others)
        with torch.no_grad():
            last = self._agent.value(self._seen()[0]).T
        advantage = advantages(reward, torch.cat([value, last]), ended, GAMMA, LAM)
        each = torch.stack(obs), action, log_prob, advantage, advantage + value
        self._learn(
            *(x.flatten(0, 1) for x in each), None if masks[0] is None else torch.cat(masks)
        )
        return reward.numel()

    def _learn(
        self, obs: Any, action: Any, log_prob: Any, advantage: Any, target: Any, mask: Any
    ) -> None:
        import torch

        for _ in range(EPOCHS):
            for rows in torch.randperm(len(obs)).tensor_split(MINIBATCHES):
                policy = self._policy(obs[rows], None if mask is None else mask[rows])
                ratio = (policy.log_prob(action[rows]) - log_prob[rows]).exp()
                own = advantage[rows]
                own = (own - own.mean()) / (own.std() + 1e-8)
                gain = torch.minimum(ratio * own, ratio.clamp(1 - CLIP, 1 + CLIP) * own).mean()
                value = self._agent.value(obs[rows]).squeeze(-1)
                loss = 0.25 * (value - target[rows]).square().mean() - gain
                loss = loss - 0.01 * policy.entropy().mean()
                self._optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self._agent.parameters(), 0.5)
                self._optimizer.step()


def loop_rate(args: Args, num_games: int, threads: int) -> float:
    """Return agent steps per second of the handwritten loop after its first update."""
    import torch

    torch.set_num_threads(threads)
    loop = Loop(args.env_id, num_games, args.num_steps)
    loop.update()
    start, steps = time.monotonic(), 0
    while time.monotonic() < start + args.seconds:
        steps += loop.update()
    return steps / (time.monotonic() - start)


def alone_rate(args: Args) -> float:
    """Return agent steps per second of a game with random actions and without training."""
    loop, rng = Loop(args.env_id, 1, args.num_steps), np.random.default_rng(0)
    start, taken = time.monotonic(), []
    while time.monotonic() < start + args.seconds / 2:
        taken.append(loop.seconds_alone(rng))
    return len(loop.agents) * len(taken) / sum(taken)


def headrace_rate(args: Args, num_actors: int, vectorised: bool = False) -> float:
    """Return agent steps per second of headrace after its first update."""
    import headrace as hr

    made, _ = Prepared.split(resolve(args.env_id))
    agents = len(made().possible_agents)
    with tempfile.TemporaryDirectory() as folder:
        config = hr.Config(
            args.vectorised if vectorised else args.env_id,
            hr.PPO(epochs=EPOCHS, minibatches=MINIBATCHES),
            num_actors=num_actors,
            envs_per_actor=-(-args.num_games // num_actors) * agents,
            fragment_length=args.num_steps,
            total_steps=1 << 40,
            run_dir=f"{folder}/run",
            eval_episodes=0,
        )
        trainer = hr.Trainer(
            config, notify=lambda text: print(text, file=sys.stderr), handle_signals=False
        )
        with contextlib.closing(trainer):
            ends = None
            for _ in trainer:
                ends = ends or time.monotonic() + args.seconds
                if time.monotonic() > ends:
                    break
            return trainer.sps


def measured(request: dict[str, Any]) -> float:
    """Return the rate of one case, measured in this process."""
    args = Args(**request["args"] | {"output": Path()})
    return RATES[request["who"]](args, **request["how"])


RATES = {"loop": loop_rate, "headrace": headrace_rate, "game": alone_rate}


def cases_of(args: Args) -> dict[str, dict[str, Any]]:
    """Return the cases by name, with their functions and arguments."""
    one, many = {"num_games": 1, "threads": 1}, {"num_games": args.num_games, "threads": 1}
    cases = {
        "loop, 1 game": {"who": "loop", "how": one},
        f"loop, {args.num_games} games": {"who": "loop", "how": many},
        "headrace, 1 actor": {"who": "headrace", "how": {"num_actors": 1}},
        f"headrace, {num_cores()} actors": {"who": "headrace", "how": {"num_actors": num_cores()}},
        "game alone": {"who": "game", "how": {}},
    }
    if args.vectorised is not None:
        how = {"num_actors": num_cores(), "vectorised": True}
        cases[f"headrace, vectorised, {num_cores()} actors"] = {"who": "headrace", "how": how}
    return cases


def main(args: Args) -> None:
    """Measure, print and write the results."""
    console, cases = wide_console(), cases_of(args)
    found: dict[str, list[float]] = {name: [] for name in cases}
    asked = {key: value for key, value in asdict(args).items() if key != "output"}
    for _, (name, case) in itertools.product(range(args.repeats), cases.items()):
        found[name].append(Children().call(measured, case | {"args": asked}, TIMEOUT_S))
        console.print(f"{name}: {found[name][-1]:,.0f} agents' steps/s")
    bases = dict(zip(("one_game", "many_games"), found.values(), strict=False))
    report(found, bases, args.output / "games.csv", {"env_id": args.env_id})


def report(
    found: Mapping[str, Sequence[float]],
    bases: Mapping[str, Sequence[float]],
    path: Path,
    about: Mapping[str, Any],
) -> None:
    """Print the rates of each case, round by round, and write them.

    Args:
        bases: rates of the baselines by name. Other rates are given as multiples of them.
        about: additional columns of each row.
    """
    rows = [
        {"case": name, **about, **common.spread("sps", rates)}
        | {
            f"times_{of}": statistics.median(a / b for a, b in zip(rates, base, strict=True))
            for of, base in bases.items()
        }
        for name, rates in found.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, [row | {"machine": machine()} for row in rows])
    texts = [
        {k: f"{v:,.{2 if k.startswith('times') else 0}f}" if isinstance(v, float) else v
         for k, v in row.items()}
        for row in rows
    ]  # fmt: skip
    repeats = len(next(iter(found.values())))
    show(texts, f"{repeats} repeats on {machine()}", wide_console())


if __name__ == "__main__":
    main(tyro.cli(Args))
