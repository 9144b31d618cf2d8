"""A learner observes only its seats, in order; snapshots play the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.errors import CheckpointError, ConfigError, EnvironmentFault
from headrace.games.frozen_opponents import FrozenOpponents
from headrace.games.league_folder import Snapshot
from headrace.games.opponent_env import OpponentEnv
from headrace.games.opponent_mix import OpponentMix
from headrace.games.opponent_sampling import OpponentSampler, SeatAssignment
from headrace.games.zero_sum import ZeroSum
from headrace.nn.network import Network
from headrace.nn.policy import Policy

AGENTS = ("red", "blue", "grey")
SPACES = Box(0.0, 1e6, (4,), np.float32), Discrete(10)


class Ledger(VectorEnv):
    """Games of 2 to 4 steps in which every number identifies itself.

    An observation is (game, agent, episode, step); the reward of a step is
    ``1000 agent + 100 episode + 10 step + action``, minus the mean over the game's agents.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_games: int, agents: int = 3, unfair: bool = False) -> None:
        self.agents, self._shape, self._unfair = AGENTS[:agents], (num_games, agents), unfair
        self.num_envs, self.render_mode = num_games * agents, None
        self.single_observation_space, self.single_action_space = SPACES
        self.observation_space = batch_space(SPACES[0], self.num_envs)
        self.action_space = batch_space(SPACES[1], self.num_envs)
        self.played: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._episode, self._step = np.zeros((2, self._shape[0]), int)
        return self._obs(), {"action_mask": self._mask()}

    def step(self, actions: Any) -> Any:
        self.played.append(np.array(actions).reshape(self._shape))
        over = self._step == 2 + (np.arange(self._shape[0]) + self._episode) % 3
        agent = np.arange(self._shape[1])
        reward = 1000 * agent + (100 * self._episode + 10 * self._step)[:, None] + self.played[-1]
        reward = reward - reward.mean(1, keepdims=True) + self._unfair * (self._step == 1)[:, None]
        reward = np.where(over[:, None], 7.0, reward)  # of a reset step, which has no reward
        self._step = np.where(over, 0, self._step + 1)
        self._episode = self._episode + over
        ends = self._step == 2 + (np.arange(self._shape[0]) + self._episode) % 3
        ends = np.repeat(ends, self._shape[1])
        infos = {"action_mask": self._mask()}
        return self._obs(), reward.ravel(), ends, np.zeros_like(ends), infos

    def _obs(self) -> np.ndarray:
        games, agents = np.indices(self._shape)
        rows = [games, agents, np.broadcast_to(self._episode[:, None], self._shape)]
        rows.append(np.broadcast_to(self._step[:, None], self._shape))
        return np.stack(rows, -1).reshape(self.num_envs, 4).astype(np.float32)

    def _mask(self) -> np.ndarray:
        """Agent ``a`` may take ``a`` and ``a + 5``."""
        mask = np.zeros((self.num_envs, 10), np.int8)
        agent = np.tile(np.arange(self._shape[1]), self._shape[0])
        mask[np.arange(self.num_envs), agent] = mask[np.arange(self.num_envs), agent + 5] = 1
        return mask


def policy(seed: int, **network: Any) -> Policy:
    torch.manual_seed(seed)
    made = Policy(*SPACES, Network(**{"hidden": (8,), **network}), True)
    torch.nn.init.normal_(made.policy_head.weight, std=2.0)
    return made


class Fixed:
    """Draws snapshots in turn, and records results."""

    def __init__(self, *names: str, load: Any = lambda path: policy(int(path.name))) -> None:
        self.names, self.load, self.noted = names, load, list[tuple[str, float]]()
        self._count = 0

    def seed(self, seed: int | None) -> None:
        self._count = 0

    def opponents(self, count: int) -> list[Snapshot]:
        at = range(self._count, self._count + count)
        self._count += count
        names = [self.names[i % len(self.names)] for i in at]
        return [Snapshot(name, Path(name), "run", 0) for name in names]

    def another(self, lost: Snapshot, error: Exception) -> Snapshot:
        return self.opponents(1)[0]

    def note(self, opponent: Snapshot, score: float) -> None:
        self.noted.append((opponent.name, score))

    def close(self) -> None:
        self.noted.append(("closed", 0.0))


def seats(games: Any, columns: int, text: str, draw: Any) -> OpponentEnv:
    return OpponentEnv(games, columns, len(games.agents), OpponentMix.of(text), draw)


def test_every_step_of_the_learners_seats_arrives_once_with_its_own_reward() -> None:
    """3 games with all seats and 5 with one, for 60 steps: each number is the expected one."""
    games = Ledger(8)
    envs = seats(games, 3 * 3 + 5, "latest:0.65,pfsp:0.35", Fixed("0", "1"))
    obs, infos = envs.reset(seed=0)
    rng = np.random.default_rng(0)
    ended, seen = np.zeros(14, bool), list[tuple[int, ...]]()
    for _ in range(60):
        agent = obs[:, 1].astype(int)
        assert (infos["action_mask"].argmax(1) == agent).all()
        action = agent + 5 * rng.integers(0, 2, 14)
        after, reward, terminated, truncated, infos = envs.step(action)
        assert not truncated.any()
        game = obs[:, 0].astype(int)
        assert (game == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7]).all()
        done = games.played[-1][game]
        assert (done[np.arange(14), agent] == action).all()
        own = 1000 * agent + 100 * obs[:, 2] + 10 * obs[:, 3] + action
        everyone = 1000 * np.arange(3) + (100 * obs[:, 2] + 10 * obs[:, 3])[:, None] + done
        want = own - everyone.mean(1)
        np.testing.assert_allclose(reward[~ended], want[~ended], atol=1e-9)
        seen += [tuple(row) for row, filler in zip(obs.astype(int).tolist(), ended, strict=True)
                 if not filler]  # fmt: skip
        ended = terminated.copy()
        obs = after
    assert len(seen) == len(set(seen))
    of_game_5 = [(agent, episode) for game, agent, episode, _ in seen if game == 5]
    assert [a for a, _ in dict.fromkeys(of_game_5)][:4] == [2, 0, 1, 2]  # the seat goes round


@pytest.mark.parametrize(
    "network",
    [{}, {"normalize_observations": True}, {"core": "gru", "core_size": 4}, {"hidden": (5, 6)}],
)
def test_frozen_seats_play_what_their_policies_say(network: dict[str, Any]) -> None:
    """Each frozen column's action is drawn from its snapshot's distribution and mask.

    Both snapshots have the same network, or one has another shape.
    """

    def load(path: Path) -> Policy:
        other = "hidden" in network and path.name == "3"
        made = policy(int(path.name), **({} if other else network))
        if made.torso.normalizer is not None:
            made.torso.normalizer.center.fill_(int(path.name))
        return made

    games, draw = Ledger(400, agents=2), Fixed("3", "4", load=load)
    envs = seats(games, 400, "uniform", draw)
    obs, _ = envs.reset(seed=1)
    chosen = []
    whole = games._obs()
    envs.step(obs[:, 1].astype(int))
    for name, first in (("3", 0), ("4", 1)):
        game = np.arange(first, 400, 2)
        seat = (game % 2) ^ 1
        column = 2 * game + seat
        one = load(Path(name))
        mask = games._mask()[column]
        inputs = one.inputs.compose(whole[column], mask, None, None, np.ones(200, bool))
        inputs = {key: torch.as_tensor(x) for key, x in inputs.items()}
        params, _ = one.act(inputs, torch.ones(200, dtype=torch.bool), one.initial_core(200))
        low = torch.softmax(params, -1)[torch.arange(200), torch.as_tensor(seat)].detach().numpy()
        acted = games.played[0][game, seat]
        assert (np.isin(acted - seat, (0, 5))).all()
        chosen.append(((acted == seat).sum() - low.sum()) / np.sqrt((low * (1 - low)).sum()))
    assert np.abs(chosen).max() < 4  # standard errors


def test_the_result_is_told_for_the_learners_seat() -> None:
    """Agent 1 always beats agent 0."""
    draw = Fixed("a", "b", load=lambda path: policy(0))
    envs = seats(Ledger(2, agents=2), 2, "pfsp", draw)
    obs, _ = envs.reset(seed=0)
    for _ in range(40):
        obs, *_ = envs.step(obs[:, 1].astype(int))
    scores = [score for _, score in draw.noted]
    assert set(scores) == {0.0, 1.0}
    assert 0.3 < np.mean(scores) < 0.7  # seats alternate
    assert {name for name, _ in draw.noted} == {"a", "b"}


def test_a_recurrent_opponent_begins_each_game_without_memory() -> None:
    """Recurrent state belongs to the column: equal games have equal actions."""
    memory = {"core": "lstm", "core_size": 8, "previous_action_reward": True}

    def run(games_before: int) -> list[Any]:
        acted = []
        draw = Fixed("5", load=lambda path: policy(5, **memory))
        games = Ledger(1, agents=2)
        envs = seats(games, 1, "uniform", draw)
        params = []
        envs.reset(seed=0)
        frozen_opponents = envs._frozen.policy(draw.opponents(1)[0])
        own = frozen_opponents.act
        monkey = lambda *given: params.append(own(*given)) or params[-1]  # noqa: E731
        frozen_opponents.act = monkey  # type: ignore[method-assign]
        obs = envs.reset(seed=0)[0]
        for _ in range(200):
            before = obs
            obs, *_ = envs.step(obs[:, 1].astype(int))
            if before[0, 3] == 0 and before[0, 2] == games_before:
                acted.append(params[-1][0].numpy())
        return acted

    first, again = run(0), run(0)
    np.testing.assert_array_equal(first[0], again[0])
    fresh = policy(5, **memory)
    obs = torch.tensor([[0.0, 1, 6, 0]])
    mask = torch.as_tensor(Ledger(1, agents=2)._mask()[1:2] > 0)
    inputs = {"observation": obs, "action_mask": mask}
    inputs["previous_action"] = fresh.inputs.zero_action(1)
    inputs["previous_reward"] = torch.zeros(1)
    with torch.inference_mode():
        want, _ = fresh.act(inputs, torch.ones(1, dtype=torch.bool), fresh.initial_core(1))
    np.testing.assert_allclose(run(6)[0], want.numpy(), rtol=1e-5)


def test_the_same_seed_plays_the_same_games() -> None:
    def run() -> list[np.ndarray]:
        games = Ledger(6)
        envs = seats(games, 8, "latest:0.4,uniform:0.6", Fixed("0", "1"))
        for _ in range(2):  # also after another reset
            games.played.clear()
            obs, _ = envs.reset(seed=3)
            for _ in range(20):
                obs, *_ = envs.step(obs[:, 1].astype(int))
        return games.played

    np.testing.assert_array_equal(run(), run())


def test_an_exploiter_meets_its_rival_only() -> None:
    rival = Snapshot("theirs", Path("7"), "", 0)
    mixture = OpponentMix((("exploit", 1.0),))
    draw = OpponentSampler(SeatAssignment(mixture, lambda path: policy(7), rival=rival), "w")
    draw.seed(0)
    assert draw.opponents(3) == [rival] * 3
    draw.note(rival, 1.0)  # nothing to write
    assert mixture.games(5, 2) == (0, 5)


def test_unfair_rewards_are_refused_with_agents_and_step() -> None:
    envs = ZeroSum(Ledger(2), "Ledger")
    obs, _ = envs.reset(seed=0)
    for _ in range(12):
        obs, *_ = envs.step(obs[:, 1].astype(int))
    envs = ZeroSum(Ledger(2, unfair=True), "Ledger")
    obs, _ = envs.reset(seed=0)
    obs, *_ = envs.step(obs[:, 1].astype(int))
    with pytest.raises(EnvironmentFault) as caught:
        envs.step(obs[:, 1].astype(int))
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in ("Ledger", "step 2", "game 0", "red", "blue", "grey", "3"))


@pytest.mark.parametrize("error", [CheckpointError, ConfigError])
def test_an_opponent_that_cannot_be_read_is_drawn_again(error: type[Exception]) -> None:
    """It is missing, or its code can't be imported here."""

    def load(path: Path) -> Policy:
        if path.name == "gone":
            raise error("gone")
        return policy(0)

    envs = seats(Ledger(3, agents=2), 3, "uniform", Fixed("a", "gone", "a", "gone", load=load))
    envs.reset(seed=0)
    assert [one.name for one in envs._matches.opponents] == ["a", "a", "a"]


def test_many_snapshots_may_play_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read once while it plays, and inactive ones are released."""
    from headrace.games import frozen_opponents

    monkeypatch.setattr(frozen_opponents, "_LOADED", 2)
    read = list[str]()

    def load(path: Path) -> Policy:
        read.append(path.name)
        return policy(0)

    envs = seats(Ledger(4, agents=2), 4, "uniform", Fixed(*"abcd", *"e" * 100, load=load))
    obs, _ = envs.reset(seed=0)
    for _ in range(12):
        obs, *_ = envs.step(obs[:, 1].astype(int))
    assert read == list("abcde")
    assert "e" in envs._frozen._players
    assert len(envs._frozen._players) <= 2


def test_frozen_policies_keep_their_own_deviations() -> None:
    """For continuous actions there are parameters in addition to the network's."""
    spaces = Box(-1.0, 1.0, (2,), np.float32), Box(-1e6, 1e6, (1,), np.float32)

    def load(path: Path) -> Policy:
        made = Policy(*spaces, Network(hidden=(4,), squash_actions=False))
        made.log_std.data.fill_(float(path.name))
        return made

    frozen = FrozenOpponents(load, spaces, 400)
    frozen.seed(0)
    players = [Snapshot(name, Path(name), "run", 0) for name in ("-3", "3")] * 200
    obs, first = np.zeros((400, 2), np.float32), np.ones(400, bool)
    frozen.act(players, np.arange(400), (obs, None, np.zeros(400, np.float32), first))
    for start, log_std in ((0, -3.0), (1, 3.0)):
        assert np.log(frozen.actions[start::2].std()) == pytest.approx(log_std, abs=0.2)
    frozen.close()
