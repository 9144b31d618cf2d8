"""Measures of a run from its files, and of a world size, counted by hand."""

from __future__ import annotations

import json

import pytest

from headrace.studies.scaling import figures
from headrace.studies.scaling.model import fit

# Two ranks, three iterations, the first of which is the warm-up: seconds and steps are the run's.
ENDS = [(100, 1.0), (200, 1.5), (300, 2.5)]
RANKS = [
    [
        {"t_iter": 9.0, "t_rollout": 9.0, "t_learn": 9.0, "t_comm": 9.0, "t_sync": 9.0},
        {"t_iter": 0.5, "t_rollout": 0.2, "t_learn": 0.1, "t_comm": 0.1, "t_sync": 0.05},
        {"t_iter": 1.0, "t_rollout": 0.4, "t_learn": 0.3, "t_comm": 0.1, "t_sync": 0.15},
    ],
    [
        {"t_iter": 9.0, "t_rollout": 9.0, "t_learn": 9.0, "t_comm": 9.0, "t_sync": 9.0},
        {"t_iter": 0.5, "t_rollout": 0.1, "t_learn": 0.2, "t_comm": 0.1, "t_sync": 0.05},
        {"t_iter": 1.0, "t_rollout": 0.3, "t_learn": 0.3, "t_comm": 0.3, "t_sync": 0.05},
    ],
]
LOSSES = {"approx_kl": 0.01, "clipfrac": 0.2, "entropy": 0.5, "value_loss": 4.0}


@pytest.fixture
def run_dir(tmp_path):
    """Write the files of a run of two learners."""
    (tmp_path / "iterations").mkdir()
    for rank, lines in enumerate(RANKS):
        known = [
            {"update": i + 1, "rank": rank, "env_steps": steps, "seconds": seconds, "steps": 50}
            for i, (steps, seconds) in enumerate(ENDS)
        ]
        losses = {} if rank else LOSSES
        write(
            tmp_path / "iterations" / f"rank_{rank}.jsonl",
            [{**a, **b, **losses} for a, b in zip(known, lines, strict=True)],
        )
    summary = {"episodic_return": 20.0, "evaluation": None}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def evaluations(*points):
    return [
        {"env_steps": s, "seconds": t, "return_mean": r, "return_std": 1.0, "episodes": 5}
        for s, t, r in points
    ]


def test_the_figures_are_those_of_the_iterations_after_the_warm_up(run_dir):
    found = figures.run_figures(run_dir, 2, 1, None)
    assert set(found) == set(figures.RUN_FIGURES)
    assert (found["iterations"], found["env_steps"], found["seconds"]) == (2, 200, 1.5)
    assert found["fps"] == pytest.approx(200 / 1.5)
    means = {"t_iter": 3.0, "t_rollout": 1.0, "t_learn": 0.9, "t_comm": 0.6, "t_sync": 0.3}
    for name, total in means.items():
        assert found[name] == pytest.approx(total / 4), name
    assert found["rho_comm"] == pytest.approx(0.6 / 3.0)
    assert found["rho_sync"] == pytest.approx(0.3 / 3.0)
    assert found["coverage"] == pytest.approx(2.8 / 3.0)
    assert {name: found[name] for name in LOSSES} == LOSSES
    assert found["time_to_target"] is None
    assert found["final_return"] == 20.0


def test_without_warm_up_the_clock_begins_with_training(run_dir):
    found = figures.run_figures(run_dir, 2, 0, None)
    assert (found["iterations"], found["env_steps"], found["seconds"]) == (3, 300, 2.5)
    assert found["t_iter"] == pytest.approx(21.0 / 6)


def test_a_run_that_ends_in_its_warm_up_has_no_speed_but_may_have_reached_the_target(run_dir):
    write(run_dir / "evaluations.jsonl", evaluations((100, 1.0, 50.0)))
    found = figures.run_figures(run_dir, 2, 3, 50.0)
    assert (found["iterations"], found["fps"], found["rho_comm"]) == (0, None, None)
    assert found["time_to_target"] == 1.0


def test_the_time_to_the_target_is_that_of_the_first_evaluation_that_reaches_it(run_dir):
    lines = evaluations((100, 1.0, 10.0), (200, 1.5, 40.0), (300, 2.5, 45.0))
    write(run_dir / "evaluations.jsonl", lines)
    assert figures.run_figures(run_dir, 2, 1, 40.0)["time_to_target"] == 1.5
    assert figures.run_figures(run_dir, 2, 1, 46.0)["time_to_target"] is None
    assert figures.run_figures(run_dir, 2, 1, 40.0)["final_return"] == 45.0


def test_the_closing_evaluation_is_the_final_return_where_there_is_one(run_dir):
    write(run_dir / "evaluations.jsonl", evaluations((100, 1.0, 10.0)))
    summary = {"episodic_return": 20.0, "evaluation": {"mean": 30.0}}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    assert figures.final_return(run_dir) == 30.0


def test_ranks_that_are_missing_or_stopped_early_are_an_error(run_dir):
    with pytest.raises(RuntimeError, match=r"rank_2\.jsonl"):
        figures.run_figures(run_dir, 3, 1, None)
    path = run_dir / "iterations" / "rank_1.jsonl"
    write(path, [json.loads(line) for line in path.read_text().splitlines()[:2]])
    with pytest.raises(RuntimeError, match=r"\[2, 3\] iterations"):
        figures.run_figures(run_dir, 2, 1, None)


# -- world sizes -----------------------------------------------------------------------------------


def run(size, fps, target=None, final=None, **more):
    known = dict.fromkeys(figures.RUN_FIGURES, 0.25)
    known |= {"iterations": 10, "env_steps": 5000, "fps": fps, "time_to_target": target}
    return {"world_size": size, **known, "final_return": final, **more}


def test_speedups_are_of_medians_over_seeds(monkeypatch):
    rows = [
        *(run(1, fps, target) for fps, target in ((100, 10.0), (90, 12.0), (500, 50.0))),
        *(run(4, fps, target) for fps, target in ((200, 6.0), (250, 4.0), (900, 2.0))),
    ]
    one, four = figures.summarise(rows, cores_per_learner=1, num_cores=2)
    assert (one["fps"], one["speedup_fps"], one["efficiency"]) == (100, 1.0, 1.0)
    assert (four["fps"], four["speedup_fps"], four["efficiency"]) == (250, 2.5, 0.625)
    assert (one["time_to_target"], four["time_to_target"]) == (12.0, 4.0)
    assert (one["speedup_time"], four["speedup_time"]) == (1.0, 3.0)
    assert (one["runs"], one["reached"], one["steps_per_iter"]) == (3, 3, 500)
    assert (one["exceeds_cores"], four["exceeds_cores"]) == (False, True)


def test_world_sizes_exceed_the_cores_by_the_cores_that_each_learner_wants():
    rows = [run(size, 100) for size in (1, 2, 4)]
    assert [r["exceeds_cores"] for r in figures.summarise(rows, 2, 4)] == [False, False, True]


def test_a_run_that_never_reaches_the_target_took_infinitely_long():
    rows = [run(1, 100, 10.0), run(1, 100, 20.0), run(1, 100), run(2, 100, 5.0), run(2, 100)]
    one, two = figures.summarise(rows, 1, 2)
    assert (one["time_to_target"], one["reached"]) == (20.0, 2)
    assert (two["time_to_target"], two["reached"], two["speedup_time"]) == (None, 1, None)


def test_without_1_speedups_are_those_over_the_smallest_times_its_size():
    two, eight = figures.summarise([run(8, 300, 4.0), run(2, 100, 8.0)], 1, 8)
    assert (two["world_size"], two["speedup_fps"], two["efficiency"]) == (2, 2.0, 1.0)
    assert (eight["speedup_fps"], eight["speedup_time"]) == (6.0, 4.0)
    assert eight["efficiency"] == 0.75


def test_returns_have_their_range_and_what_nobody_has_is_none():
    rows = [run(1, None, final=3.0, entropy=None), run(1, None, final=9.0, entropy=None)]
    rows += [run(1, None, final=5.0, entropy=None), run(2, 50)]
    one, two = figures.summarise(rows, 1, 2)
    assert [one[f"final_return{end}"] for end in ("", "_min", "_max")] == [5.0, 3.0, 9.0]
    assert (one["fps"], one["speedup_fps"], one["entropy"]) == (None, None, None)
    assert (two["speedup_fps"], two["final_return_min"]) == (2.0, None)
    assert figures.reference([one, two]) is two


def test_the_model_gets_what_was_measured():
    rows = [run(1, 100, t_iter=2.0, t_sync=0.5), run(2, None), run(4, 100)]
    one, two, four = figures.summarise(rows, 1, 2)
    assert (one["world_size"], one["exceeds_cores"], one["steps_per_iter"]) == (1, False, 500)
    assert (one["t_iter"], one["t_rollout"], one["t_sync"]) == (2.0, 0.25, 0.5)
    assert (four["world_size"], four["exceeds_cores"]) == (4, True)
    alone = fit("growing-batch", [one], [], [], 2)
    assert fit("growing-batch", [one, two, four], [], [], 2) == alone
    assert (alone.steps, alone.rollout[0]) == (500, 0.25)
