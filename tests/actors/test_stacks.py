"""Frame stacks stored as single frames are bit for bit the stacks of the actor."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from worlds import Stacks

import headrace as hr
from headrace.actors.asynchronous import AsynchronousStepper
from headrace.actors.collector import Collector, rollout_spec
from headrace.algos.minibatches import flatten, new_generator
from headrace.algos.replay import CircularBuffer, ReplayBuffer, as_dict, concatenate, from_dict
from headrace.envs.make import make_vec
from headrace.envs.probe import probe
from headrace.errors import ConfigError, EnvironmentFault
from headrace.learner.batches import gather
from headrace.nn import Network, Policy
from headrace.ops import stacks, tree
from headrace.transport.slab import Slab
from headrace.types import Rollout
from tests.actors.test_cut_rollouts import After

B = 5
BEGINS = ["black", "same", "goes_on", "mixed"]


def filler(once, num_steps, engine="sync", network=None, env=Stacks, **env_kwargs):
    """Return a policy, and a function that fills a poisoned slot with frames or whole stacks."""
    envs = make_vec(env, B, engine, env_kwargs)
    torch.manual_seed(1)
    network = network or Network(conv="impala_shallow")
    policy = Policy(envs.single_observation_space, envs.single_action_space, network)
    slab = Slab(rollout_spec(policy, num_steps, B, stacks=once), 1, 1)
    pace = AsynchronousStepper(envs, policy, "Stacks") if engine == "threads" else None
    collector = Collector(envs, policy, "Stacks", stepping=pace)
    collector.reset(3)

    def fill(cut=None) -> Rollout:
        slab.poison(0)
        slab.trees[0]["first"].fill_(False)
        collector.fill(Rollout(**slab.trees[0]), 0, cut)
        return Rollout(**tree.map_leaves(torch.clone, slab.trees[0]))

    fill.close = envs.close
    return policy, fill


def num_bytes(obs):
    return sum(x.nbytes for x in tree.leaves(obs))


def seen(rollout):
    """Return the observations of the learner's policy, ``[(T + 1) * B, S, ...]``."""
    found = stacks.flat(rollout.obs)
    return found if isinstance(found, torch.Tensor) else found["observation"]


def check_same(once, whole, num_steps=None):
    """Check that real parts of two rollouts are equal, and that the first stores frames once."""
    assert num_bytes(once.obs) < num_bytes(whole.obs)
    end = None if num_steps is None else (num_steps + 1) * B  # behind are fillers
    assert torch.equal(seen(once)[:end], seen(whole)[:end])
    for name in ("action", "log_prob", "reward", "first", "terminated"):
        assert torch.equal(getattr(once, name), getattr(whole, name)), name


@pytest.mark.parametrize("num_steps", [1, 3, 8])
@pytest.mark.parametrize("begins", BEGINS)
def test_the_learner_sees_what_the_actor_acted_on(begins, num_steps):
    (_, once), (_, whole) = (filler(x, num_steps, begins=begins) for x in (True, False))
    ends = 0
    for _ in range(24 // num_steps):
        rollout = once()
        check_same(rollout, whole())
        ends += int(rollout.first[1:].sum())
    assert ends > 5


@pytest.mark.parametrize("space", [(20, 20, 3), (20, 41)])
def test_pictures_of_any_shape_are_held(space):
    kwargs = {"size": 3, "space": space}
    (_, once), (_, whole) = (filler(x, 6, **kwargs) for x in (True, False))
    for _ in range(4):
        check_same(once(), whole())


def test_what_stands_beside_the_stacks_stays_there():
    network = Network(conv="impala_shallow", previous_action_reward=True, core="lstm")
    (policy, once), (_, whole) = (filler(x, 6, network=network) for x in (True, False))
    for _ in range(4):
        ours, theirs = once(), whole()
        check_same(ours, theirs)
        for a, b in ((ours, theirs), (theirs, ours)):
            known, others = policy(a.obs, a.first, a.core), policy(b.obs, b.first, b.core)
            assert all(map(torch.equal, known[:2], others[:2]))


@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_rollouts_that_are_cut_short_go_on_with_the_same_stacks(engine):
    kwargs = {"engine": engine, "num_actions": 1}
    (_, once), (_, whole) = (filler(x, 8, **kwargs) for x in (True, False))
    for steps in (3, 1, 8, 5, 2, 8):
        cuts = [After(steps) if engine == "sync" else None for _ in range(2)]
        check_same(once(cuts[0]), whole(cuts[1]), steps if engine == "sync" else None)
    once.close(), whole.close()


@pytest.fixture
def batches():
    """Return a batch with frames stored once, and the same with whole stacks."""
    fills = [filler(x, 7)[1] for x in (True, False)]
    return [gather([fill() for _ in range(3)]) for fill in fills]


def test_minibatches_have_the_same_stacks(batches):
    once, whole = (flatten(replace(batch, version=())) for batch in batches)
    index = torch.randperm(7 * 3 * B)[:20]
    parts = [batch.columns(index) for batch in (once, whole)]
    assert torch.equal(stacks.flat(parts[0].obs), stacks.flat(parts[1].obs))
    for ours, theirs in zip(*(part.cut(3) for part in parts), strict=True):
        assert torch.equal(stacks.flat(ours.obs), stacks.flat(theirs.obs))
    held = {x.untyped_storage().data_ptr() for x in tree.leaves(once.obs)}
    assert held <= {x.untyped_storage().data_ptr() for x in tree.leaves(batches[0].obs)}  # views


def test_memories_hold_pictures_once(batches):
    index = torch.tensor([3, 0, 14, 3])
    drawn = []
    for batch in batches:
        replay = ReplayBuffer(20)
        replay.add(batch), replay.add(batch.columns(slice(2, 9)))
        restored = ReplayBuffer(20)
        restored.load_state_dict(copy.deepcopy(replay.state_dict()))
        drawn.append(concatenate([batch, restored.sample(9, new_generator().manual_seed(1))]))
        ring = CircularBuffer(2, 2)
        ring.visit(0, lambda batch=batch: batch)
        drawn.append(from_dict(as_dict(ring.visit(0, list))).columns(index))
    for once, whole in zip(drawn[:2], drawn[2:], strict=True):
        assert torch.equal(stacks.flat(once.obs), stacks.flat(whole.obs))
        assert num_bytes(once.obs) < 0.5 * num_bytes(whole.obs)


def test_elsewhere_than_on_the_cpu_no_row_is_asked_for(batches, monkeypatch):
    expected = stacks.flat(batches[1].obs)
    monkeypatch.setattr(stacks, "_begun", stacks._filled)
    assert torch.equal(stacks.flat(batches[0].obs), expected)


RUN = dict(  # noqa: C408
    env=Stacks, env_kwargs={"begins": "mixed"}, transport="serial", num_actors=2, envs_per_actor=3,
    fragment_length=6, batch_size=36, total_steps=36 * 4, eval_episodes=0,
    network=hr.Network(conv="impala_shallow"), deterministic=True, checkpoint_interval=36 * 2,
)  # fmt: skip


def weights(run_dir, **settings):
    """Return the weights of a run as one vector."""
    with hr.Trainer(hr.Config(**RUN | settings, run_dir=str(run_dir)), notify=print) as trainer:
        for _ in trainer:
            pass
    return torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])


@pytest.mark.parametrize(
    "algo",
    [
        hr.IMPALA(replay_fraction=0.5, replay_capacity=10),
        *(
            pytest.param(algo, marks=pytest.mark.slow)
            for algo in (
                hr.APPO(epochs=1, minibatches=1),
                hr.PPO(epochs=2, minibatches=3),
                hr.IMPACT(buffer_size=2, passes=2),
                hr.A3C(),
            )
        ),
    ],
    ids=lambda algo: type(algo).__name__,
)
def test_runs_learn_the_same(algo, tmp_path):
    learnt = [
        weights(tmp_path / held, algo=algo, stacked_frames=held) for held in ("auto", "whole")
    ]
    assert torch.equal(*learnt)


@pytest.mark.slow
def test_shared_memory_and_resumed_runs_learn_the_same(tmp_path):
    settings = {"algo": hr.PPO(epochs=1, minibatches=2, lr_schedule="constant")}
    settings["env_kwargs"] = {"begins": "same"}  # a reset leaves nothing of what was before
    expected = weights(tmp_path / "whole", **settings, stacked_frames="whole")
    assert torch.equal(weights(tmp_path / "shm", **settings, transport="shm"), expected)
    weights(tmp_path / "part", **settings, total_steps=72)
    settings["total_steps"] = RUN["total_steps"]
    assert torch.equal(weights(tmp_path / "part", **settings, resume=True), expected)


def looked_at(**kwargs):
    return probe(Stacks, "auto", kwargs, seed=0).stacks


@pytest.mark.parametrize("begins", ["black", "same"])
def test_a_look_at_the_environment_finds_stacks(begins):
    assert looked_at(begins=begins)


class Colours(Stacks):
    """Observes three channels of a new image each, as large as a stack's."""

    def _push(self, new):
        self._stack = self.np_random.integers(0, 256, self._stack.shape, dtype="u1")


class Dark(Stacks):
    """Is black for its first hundred steps, like a possible stack."""

    def _picture(self):
        return super()._picture() * 0


class Late(Stacks):
    """Shows its first image after up to three steps."""

    def reset(self, **kwargs):
        super().reset(**kwargs)
        for _ in range(self.np_random.integers(4)):
            self._push(self._picture())
        return self._stack, {}


def test_a_look_gives_one_seed_for_each_of_which_a_game_is_loaded_anew():
    seeds = []

    class Loaded(Stacks):
        def reset(self, *, seed=None, **kwargs):
            seeds.append(seed)
            return super().reset(seed=seed, **kwargs)

    assert probe(Loaded, "auto", {}, seed=3, looks_for_stacks=False).stacks is False
    assert seeds == [3]
    assert probe(Loaded, "auto", {}, seed=3).stacks
    assert seeds[1] == 3
    assert len(seeds) > 8
    assert not any(seeds[2:])


def test_one_reset_that_looks_like_stacks_is_not_enough():
    assert not any(probe(Late, "auto", {"begins": "same"}, seed).stacks for seed in range(20))


@pytest.mark.parametrize("env", [Colours, Dark])
def test_what_may_be_no_stack_is_held_whole(env, tmp_path):
    assert not probe(env, "auto", {"begins": "black"}, seed=0).stacks
    with pytest.raises(ConfigError, match=r"stacked_frames='once'.*are not frame stacks"):
        weights(tmp_path, env=env, stacked_frames="once")


def transitions(fill, count):
    """Return observations, rewards and next observations per environment."""
    found = [[] for _ in range(B)]
    for _ in range(count):
        rollout = fill()
        obs = seen(rollout).unflatten(0, (-1, B))
        for t, b in (~rollout.first[1:]).nonzero().tolist():
            flags = rollout.first[t, b], rollout.terminated[t, b]
            found[b].append((obs[t, b], rollout.reward[t, b], *flags, obs[t + 1, b]))
    return found


@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_a_rollout_ends_where_an_episode_begins_in_a_way_that_it_can_not_hold(engine):
    kwargs = {"engine": engine, "begins": "odd", "num_actions": 1}
    (_, once), (_, whole) = (filler(x, 12, **kwargs) for x in (True, False))
    ours, theirs = transitions(once, 15), transitions(whole, 10)
    once.close(), whole.close()
    for column, all_of_it in zip(ours, theirs, strict=True):
        assert 15 < len(column) < len(all_of_it)  # it continues in more rollouts
        for step, same in zip(column, all_of_it, strict=False):
            assert all(map(torch.equal, step, same))


class Jumps(Stacks):
    """Shows only new images at its tenth step, in mid-episode."""

    steps = 0

    def _push(self, new):
        super()._push(new)
        self.steps += 1
        if self.steps == 10:
            self._stack = self.np_random.integers(0, 256, self._stack.shape, dtype="u1")


@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_pictures_that_do_not_go_on_within_an_episode_are_refused(engine):
    _, fill = filler(True, 40, engine=engine, env=Jumps, begins="black")
    expected = r"environment \d of this actor, row \d+ of the fragment.*stacked_frames='whole'"
    with pytest.raises(EnvironmentFault, match=expected):
        fill()
    fill.close()


def test_the_choice_is_told_and_kept(tmp_path, capsys):
    weights(tmp_path / "a", algo=hr.A2C(), total_steps=36)
    assert "auto: stacks of images are stored as single frames" in capsys.readouterr().out
    assert '"stacked_frames": "once"' in (tmp_path / "a" / "config.json").read_text()


def test_several_learners_print_the_choice_once(tmp_path, capsys):
    settings = {"transport": "shm", "num_learners": 2, "eval_episodes": 0, "total_steps": 36}
    hr.train(hr.Config(**RUN | {"algo": hr.A2C(), "run_dir": str(tmp_path)} | settings))
    assert capsys.readouterr().out.count("auto: stacks of images are stored as single frames") == 1


def test_a_resumed_run_holds_stacks_as_before(tmp_path):
    weights(tmp_path, algo=hr.A2C(), total_steps=36, stacked_frames="whole")
    weights(tmp_path, algo=hr.A2C(), total_steps=72, resume=True)
    assert '"stacked_frames": "whole"' in (tmp_path / "config.json").read_text()
