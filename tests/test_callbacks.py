"""Callbacks are called at the start, during and at the end of a run, however it ends."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

import headrace as hr
from headrace import zoo
from headrace.callbacks import CallbackList
from headrace.errors import CheckpointError, ConfigError
from headrace.integrations import final, flat, hub, needed
from headrace.integrations.tensorboard import HyperParameters


class Notes:
    """Records its calls."""

    def __init__(self, name, seen, fails_at=""):
        self.name, self.seen, self.fails_at = name, seen, fails_at

    def _note(self, what, value):
        self.seen.append((self.name, what, value))
        if what == self.fails_at:
            raise RuntimeError(f"{self.name} failed")

    def begin(self, trainer):
        self._note("begin", trainer)

    def __call__(self, result, trainer):
        self._note("result", (result, trainer))

    def end(self, trainer, summary):
        self._note("end", summary)


def calls_of(callbacks, summary):
    """Run a successful training without training."""
    calls = CallbackList(callbacks)
    with calls.around("trainer"):
        calls.result(1, "trainer")
        calls.summary = summary


def test_callbacks_begin_in_order_and_end_in_the_opposite_one():
    seen, plain = [], []
    calls_of([Notes("a", seen), plain.append, Notes("b", seen)], {"sps": 1})
    assert seen == [
        ("a", "begin", "trainer"), ("b", "begin", "trainer"),
        ("a", "result", (1, "trainer")), ("b", "result", (1, "trainer")),
        ("b", "end", {"sps": 1}), ("a", "end", {"sps": 1}),
    ]  # fmt: skip
    assert plain == [1]


@pytest.mark.parametrize(
    ("fails_at", "ended"), [("begin", "a"), ("result", "ba"), ("end", "ba")], ids=lambda x: x
)
def test_what_has_begun_is_ended_once_whatever_fails(fails_at, ended):
    seen = []
    with pytest.raises(RuntimeError, match="b failed"):
        calls_of([Notes("a", seen), Notes("b", seen, fails_at)], {"sps": 1})
    assert "".join(name for name, what, _ in seen if what == "end") == ended
    summaries = [value for _, what, value in seen if what == "end"]
    assert summaries == [{"sps": 1} if fails_at == "end" else None] * len(summaries)


def test_one_false_ends_a_run_and_what_cant_be_called_is_refused_before_it_begins(tiny):
    assert CallbackList([lambda result: None, lambda result: 0]).result(1, None)
    assert not CallbackList([lambda result: False, print]).result(1, None)
    with pytest.raises(ConfigError, match=r"callbacks=.*must be functions"):
        hr.train(tiny(), callbacks=["print"])
    assert not Path(tiny().run_dir).exists()


def test_a_class_instead_of_an_object_raises_before_the_run_begins(tiny):
    with pytest.raises(ConfigError, match=r"callbacks=.*must be objects, such as Notes\(\)"):
        hr.train(tiny(), callbacks=[Notes])
    assert not Path(tiny().run_dir).exists()


class Tracker(Notes):
    """An optional callback."""

    dispensable = True


@pytest.mark.parametrize(
    ("fails_at", "seen_then"),
    [
        ("begin", ["begin"]),
        ("result", ["begin", "result", "end"]),
        ("end", ["begin", "result", "result", "result", "end"]),
    ],
    ids=["begin", "result", "end"],
)
def test_a_tracker_that_fails_is_told_once_and_costs_nothing_else(fails_at, seen_then):
    seen, others, told = [], [], []
    calls = CallbackList([Tracker("b", seen, fails_at), Notes("a", others)], told.append)
    with calls.around("trainer"):
        assert all(calls.result(number, "trainer") for number in range(3))
        calls.summary = {"sps": 1}
    assert [what for _, what, _ in seen] == seen_then
    assert [what for _, what, _ in others] == ["begin", "result", "result", "result", "end"]
    assert others[-1][2] == {"sps": 1}
    assert told == ["Tracker failed, training continues: RuntimeError: b failed"]


def test_a_tracker_gets_results_again_when_its_pause_is_over(monkeypatch):
    now, seen, told = [0.0], [], []
    monkeypatch.setattr("headrace.callbacks.time.monotonic", lambda: now[0])
    tracker = Tracker("b", seen, "result")
    calls = CallbackList([tracker], told.append)
    for second in (0, 59, 60, 179, 180):  # fails at 0, 60 and 180
        now[0] = float(second)
        calls.result(second, "trainer")
    assert [value[0] for _, what, value in seen] == [0, 60, 180]
    assert len(told) == 1
    tracker.fails_at, now[0] = "", 419.0
    calls.result(419, "trainer")
    assert len(seen) == 3
    now[0] = 420.0
    calls.result(420, "trainer")
    assert len(seen) == 4


@pytest.mark.parametrize(
    "name", ["tensorboard.HyperParameters", "wandb.WandB", "mlflow.MLflow", "hub.Hub"]
)
def test_all_trackers_that_come_along_are_dispensable(name):
    module, _, kind = name.partition(".")
    assert getattr(importlib.import_module(f"headrace.integrations.{module}"), kind).dispensable


def test_settings_are_flattened_and_final_figures_are_those_that_there_are():
    assert flat({"a": 1, "b": {"c": [1, 2], "d": None, "e": {}}, "f": True}) == {
        "a": 1, "b.c": "[1, 2]", "b.d": "None", "b.e": "{}", "f": True,
    }  # fmt: skip
    summary = {"evaluation": {"mean": 3}, "episodic_return": None, "sps": 2}
    assert final(summary) == {"eval/episodic_return": 3.0, "charts/SPS": 2.0}
    assert final({"evaluation": None}) == {}
    words = r"needs no_such_thing, which isn't installed: pip install 'headrace\[wandb\]'"
    with pytest.raises(ConfigError, match=words):
        needed("no_such_thing", "wandb")


def test_what_goes_to_the_hub_names_no_place_of_this_machine():
    network = {"vocabulary": ["/", "~"], "torso": None}
    config = {"run_dir": "runs/a", "init_from": "b", "env_file": "c.py", "league": "d", "seed": 3,
              "cluster": "ray://head:10001", "env": "CartPole-v1", "network": network,
              "env_kwargs": {"rom": "/home/me/x.bin", "maps": ["~/m", "C:\\m", "m"]}}  # fmt: skip
    shared = hub.shareable({"config": config, "signature": "s", "info_mask": False})
    assert shared["info_mask"] is False
    assert "signature" not in shared
    given = shared["config"]
    assert [name for name, value in given.items() if value is None] == [
        "run_dir", "init_from", "env_file", "league", "cluster",
    ]  # fmt: skip
    assert given["env_kwargs"] == {"rom": None, "maps": [None, None, "m"]}
    assert (given["network"], given["seed"], given["env"]) == (network, 3, "CartPole-v1")


def test_a_strangers_run_is_not_imported_to_be_saved(tmp_path, monkeypatch):
    asked = []

    def load_one(folder, trusted):
        asked.append(trusted)
        raise CheckpointError("names a torso")

    monkeypatch.setattr(hub, "needed", lambda *_: MagicMock())
    monkeypatch.setattr(hub, "_check_name", lambda *_: None)
    monkeypatch.setattr(hub.checkpoint, "load_one", load_one)
    with pytest.raises(CheckpointError, match="names a torso"):
        hub.save(zoo.folder("cartpole"), "me/cartpole")
    with pytest.raises(CheckpointError, match="names a torso"):
        hub.Hub("me/cartpole").end(SimpleNamespace(run_dir=zoo.folder("cartpole")), {})
    assert asked == [False, True]


def test_tensorboard_has_the_settings_and_what_came_out(tiny):
    seen = []
    config = tiny(eval_episodes=2, transport="serial")
    hr.train(config, callbacks=[HyperParameters(["algo.clip", "seed"]), Notes("run", seen)])
    summary = json.loads((Path(config.run_dir) / "summary.json").read_text())
    assert seen[-1][1] == "end"
    assert json.loads(json.dumps(seen[-1][2])) == summary
    events = EventAccumulator(config.run_dir).Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    given = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert {k: v.number_value for k, v in given.items()} == {"algo.clip": 0.2, "seed": 0.0}
    (point,) = [e for e in events.Scalars("eval/episodic_return") if e.step][-1:]
    assert point.value == pytest.approx(summary["evaluation"]["mean"])
    run = SimpleNamespace(config=config, run_dir=Path(config.run_dir))
    HyperParameters().end(run, summary)


def test_a_run_that_fails_ends_its_callbacks_without_a_summary(tiny):
    seen = []
    with pytest.raises(RuntimeError, match="run failed"):
        hr.train(tiny(transport="serial"), callbacks=[Notes("run", seen, "result")])
    assert [(what, value) for _, what, value in seen][-1] == ("end", None)


def result_at(env_steps, episode_return):
    return SimpleNamespace(env_steps=env_steps, episode_return=episode_return)


def test_a_trial_of_optunas_is_told_returns_at_equal_steps_and_ends_where_it_is_pruned():
    optuna = pytest.importorskip("optuna")
    from headrace.integrations.optuna import Pruning

    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.ThresholdPruner(5.0))
    run = SimpleNamespace(config=SimpleNamespace(total_steps=1600), run_dir=Path("a"), env_steps=0)
    trial = study.ask()
    pruning = Pruning(trial)
    pruning.begin(run)
    for result in (result_at(99, 7.0), result_at(150, None), result_at(320, 8.0)):
        pruning(result, run)
    assert trial.storage.get_trial(trial._trial_id).intermediate_values == {
        100: 8.0, 200: 8.0, 300: 8.0,
    }  # fmt: skip
    pruning(result_at(390, 1.0), run)  # nothing is due
    with pytest.raises(optuna.TrialPruned, match="a return of 4 at step 400"):
        pruning(result_at(401, 4.0), run)
    assert trial.user_attrs == {"run_dir": "a"}
    again, run.env_steps = Pruning(study.ask(), every=300), 650
    again.begin(run)
    again(result_at(1000, 6.0), run)
    assert study.trials[1].intermediate_values == {900: 6.0}
    with pytest.raises(ConfigError, match="every=0 must be None, or 1 or more steps"):
        Pruning(trial, every=0)


def test_a_run_that_optuna_prunes_leaves_a_checkpoint_and_a_pruned_trial(tiny):
    optuna = pytest.importorskip("optuna")
    from headrace.integrations.optuna import Pruning

    def objective(trial):
        config = tiny(transport="serial", total_steps=6400, run_dir=f"{tiny().run_dir}/0")
        hr.train(config, callbacks=[Pruning(trial, every=64)])
        return 0.0

    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=-1.0))
    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert trial.last_step < 1000
    assert hr.load(trial.user_attrs["run_dir"]).predict([0.0, 0.0, 0.05, 0.0])
