"""``headrace plan``: its tables, its plot, and the costs that it measures."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from worlds import SlowEnv, Stacks

import headrace as hr
from headrace.actors.asynchronous import AsynchronousStepper
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.studies.plan import command
from headrace.studies.plan.command import span
from headrace.studies.plan.measure import measure
from headrace.studies.plan.parts import ActorBenchmark, actor_spec
from headrace.studies.plan.settings import Plan
from headrace.studies.plan.simulate import simulate
from headrace.studies.stopwatch import measure_time
from headrace.transport.slab import num_bytes

SIZES = {"envs_per_actor": 2, "fragment_length": 32}


class Sleeper(gymnasium.Env):
    """Waits 2 ms per step; episodes have 9 steps, so that every tenth step is a reset step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(0.002)
        self.steps += 1
        return np.zeros(3, np.float32), 0.0, False, self.steps == 9, {}


def words(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_without_flags_it_plans_the_worked_example(capsys):
    assert main(["plan"]) == 0
    shown = words(capsys)
    assert "as given │ 25,600 │ 32.6 min │ actors" in shown
    assert "2 learners │ 25,600 │ 32.6 min" in shown
    assert "625 actors saturate" in shown


def test_flags_change_the_plan(capsys):
    assert main(["plan", "--env-step-ms", "2", "--total-steps", "1000000"]) == 0
    shown = words(capsys)
    assert "as given │ 256,000 │ 3.9 s" in shown
    assert "63 actors saturate" in shown
    assert main(["plan", "ppo", "--env-step-ms", "2"]) == 0
    assert "taking turns" in words(capsys)


def test_a_simulation_agrees_with_the_arithmetic_and_leaves_a_picture(capsys, tmp_path):
    picture = tmp_path / "deep" / "plan.png"
    arguments = ["plan", "ppo", "--env-step-ms", "2", "--simulate", "--updates", "20"]
    assert main([*arguments, "--num-actors", "4", "--output", str(picture)]) == 0
    shown = words(capsys)
    exact = 4 * 16 * 32 / (32 * 0.002 + 4 * 16 * 32 / 500_000)
    assert f"as given │ {exact:,.0f} │" in shown
    assert f"steps/s │ {exact:,.0f} │" in shown
    assert "policy lag │ mean 0.00" in shown
    assert f"plot: {picture}" in shown
    assert picture.stat().st_size > 1000


def test_the_simulation_gets_what_the_flags_say(capsys, tmp_path):
    base = ["plan", "impala", "--num-actors", "4", "--simulate", "--updates", "50",
            "--output", str(tmp_path / "plan.png")]  # fmt: skip
    assert main([*base, "--mtbf-s", "2", "--restart-s", "1", "--stragglers", "1"]) == 0
    assert "crashes │ 0" not in words(capsys)
    assert main([*base, "--bandwidth-gbps", "0.008", "--rollout-kb", "1000"]) == 0
    assert "steps/s │ 441" in words(capsys)  # 4 of 512 steps take 4 s to send and 0.64 s to fill
    assert main([*base, "--cores", "1", "--envs", "computing"]) == 0
    assert "steps/s │ 50 " in words(capsys)  # one core, 20 ms a step


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["a3c"], "a3c"), (["--updates", "3"], "updates=3"), (["--cores", "0"], "cores=0"),
     (["--bandwidth-gbps", "0"], "bandwidth_gbps=0"), (["--env-step-ms", "-1"], "env_step_ms=-1"),
     (["--env-step-ms", "0"], "env_step_ms=0"),
     (["ppo", "--measure", "CartPol-v1"], "CartPole-v1"),
     (["--measure", "CartPole-v1", "--transport", "serial"], "serial")],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_refused_by_name(arguments, named, capsys):
    try:
        status = main(["plan", *arguments])
    except SystemExit as end:  # tyro reports a bad value of a field itself
        status = end.code
    shown = capsys.readouterr().err
    assert status == 2
    assert "Traceback" not in shown
    assert named in " ".join(shown.split())


def test_costs_are_measured_and_planned_with(capsys, tmp_path):
    arguments = ["--num-actors", "2", "--envs-per-actor", "4", "--fragment-length", "8",
                 "--measure-seconds", "0.4", "--simulate", "--updates", "20"]  # fmt: skip
    output = ["--output", str(tmp_path / "plan.png")]
    assert main(["plan", "ppo", "--measure", "CartPole-v1", *arguments, *output]) == 0
    shown = words(capsys)
    assert "per step of an actor; a rollout" in shown
    assert "learner busy" in shown


@pytest.mark.serial
def test_what_waits_needs_no_core_and_fillers_count_as_no_steps():
    config = hr.Config(Sleeper, hr.APPO(), num_actors=2, envs_per_actor=2, fragment_length=10)
    costs = measure(config, 1.0)
    assert costs.engine == "sync"
    assert costs.env_step_s >= 2 * 0.002
    assert costs.acting_s >= 10 * 2 * 0.002 * costs.valid_share  # a reset takes no time
    assert costs.acting_cores < 0.9
    assert costs.valid_share == pytest.approx(0.9, abs=0.1)
    assert min(costs.update_s, costs.publish_s, costs.pull_s, costs.inference_s) > 0
    plan = Plan(config=config, cores=1e6)
    setup = plan.setup(costs)
    per_rollout = setup.vector_step_s * config.fragment_length * costs.valid_share
    assert per_rollout == pytest.approx(costs.acting_s)
    # What the learner was seen to need depends on who else computes: here it needs next to nothing.
    idle = replace(costs, update_s=1e-5, publish_s=1e-6, pull_s=1e-6)
    found = simulate(plan.scenario(idle), 50)
    assert found.sps == pytest.approx(plan.setup(idle).rates.sps, rel=0.1)


def test_the_measuring_leaves_no_process_and_no_thread_count_behind(gone):
    import psutil

    before = torch.get_num_threads()
    config = hr.Config("CartPole-v1", hr.IMPALA(), num_actors=2, **SIZES)
    measure(config, 0.2)
    assert torch.get_num_threads() == before
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            assert "plan" not in child.name()


def test_stacks_of_pictures_are_planned_as_a_run_holds_them():
    sizes, shown = {}, []
    for held in ("auto", "once", "whole"):
        network = hr.Network(conv="impala_shallow")
        made = hr.Config(Stacks, hr.PPO(), network=network, num_actors=1, **SIZES)
        spec = actor_spec(replace(made, stacked_frames=held))
        sizes[held] = num_bytes(spec.layout())
        acting = ActorBenchmark(spec)
        acting.fill()
        policy, act = spec.policy, spec.policy.act
        policy.act = lambda obs, *rest, act=act: shown.append(obs) or act(obs, *rest)
        assert acting.inference_s(0.01) > 0
        acting.close()
    assert sizes["auto"] == sizes["once"] < 0.5 * sizes["whole"]
    assert {(x.shape, x.dtype) for x in shown} == {((2, 4, 20, 20), torch.uint8)}


def test_algorithms_that_reuse_batches_are_measured_per_batch():
    config = hr.Config("CartPole-v1", hr.IMPACT(), num_actors=1, **SIZES)
    assert measure(config, 0.2).update_s > 0


def test_actors_that_learn_are_not_planned():
    with pytest.raises(ConfigError, match="a3c"):
        measure(hr.Config("CartPole-v1", hr.A3C()), 0.1)


def test_a_stopwatch_counts_units_of_work():
    calls: list[int] = []

    def call() -> float:
        calls.append(0)
        time.sleep(0.004)
        return 1e6

    found = measure_time(call, 0.0)
    assert len(calls) == 4  # one to warm up, and three blocks
    assert 0.003 / 1e6 < found.wall_s < 1.0 / 1e6 * 100
    assert found.cores < 0.9


def test_spans_of_time_have_the_unit_that_suits_them():
    assert [span(s) for s in (1.0, 119.0, 1_953.0, 9_000.0, 200_000.0)] == [
        "1.0 s", "119.0 s", "32.5 min", "2.5 h", "2.3 days",
    ]  # fmt: skip


def test_the_closing_screen_names_the_bottleneck_and_what_would_help(tmp_path):
    from headrace.rundir.closing_table import closing_table

    summary = {
        "episodic_return": None, "env_steps": 1, "seconds_total": 1.0, "sps": 1.0,
        "seconds_training": 1.0,
        "seconds_to_first_update": None, "utilisation": {"learner": 0.5, "actor": None},
        "time": {"wait": 0.0, "learn": 0.0, "publish": 0.0, "comm": None, "sync": None},
        "lag": {"mean": None, "max": None}, "dropped": 0,
        "sync": {"pulls": 0, "bytes": 0, "divergence": None},
    }  # fmt: skip

    def rows(values) -> dict[str, str]:
        names, texts = closing_table(values).columns
        return dict(zip(map(str, names.cells), map(str, texts.cells), strict=True))

    assert "bottleneck" not in rows(summary)
    assert "bottleneck" not in rows(summary | {"plan": None})
    line = "taking turns, actors are the bottleneck: 9 of 10 steps/s planned; {}, Y only a little"
    plan = {"plan": {"line": line.format("another actor would help")}}
    text = "actors are the bottleneck; another actor would help"
    assert rows(summary | plan)["bottleneck"] == text
    plan["plan"]["bottleneck"] = "actors"
    for busy, is_shown in (
        ({"learner": 0.5, "actor": 0.9}, True),
        ({"learner": 0.9, "actor": 0.5}, False),
    ):
        assert ("bottleneck" in rows(summary | plan | {"utilisation": busy})) == is_shown


def test_environments_in_threads_are_measured_at_their_own_pace(monkeypatch):
    rounds = []
    run = AsynchronousStepper.run

    def spy(self, rollout, *rest):
        steps = run(self, rollout, *rest)
        rounds.append(int(steps.num_steps.max()))
        return steps

    monkeypatch.setattr(AsynchronousStepper, "run", spy)
    settings = {"num_actors": 1, "envs_per_actor": 4, "fragment_length": 8}
    settings |= {"env_kwargs": {"step_seconds": 0.001}}
    config = hr.Config(SlowEnv, hr.APPO(), engine="threads", **settings)
    each = [measure(config, 0.3) for _ in range(3)]
    assert {costs.engine for costs in each} == {"threads"}
    assert max(rounds) == 8  # whole rollouts, whose steps are counted once
    # 8 steps; counted twice they would be 4. Other programs make single measurements shorter.
    assert max(costs.acting_s for costs in each) > 6 * 0.001


def test_the_network_is_shared_by_all_learners(monkeypatch):
    seen = []
    monkeypatch.setattr(command, "simulate", lambda scenario, n: seen.append(scenario) or 1 / 0)
    for learners in ("1", "2"):
        arguments = ["--num-learners", learners, "--num-actors", "4", "--batch-size", "2048"]
        with pytest.raises(ZeroDivisionError):
            command.main(["appo", *arguments, "--simulate", "--bandwidth-gbps", "8"])
    assert [scenario.bytes_per_s for scenario in seen] == [1e9, 0.5e9]
