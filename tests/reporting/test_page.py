"""A report is one self-contained file, with the numbers of the run's files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from reporting.runs import Page, write_run

import headrace as hr
from headrace.api import run
from headrace.cli import main
from headrace.errors import CheckpointError, ConfigError
from headrace.reporting import facts, panels
from headrace.reporting.comparison import title_of
from headrace.reporting.drawing import drawn
from headrace.reporting.page import write
from headrace.reporting.panels import KINDS, MOST_POINTS, short
from headrace.rundir.curves import GRID_POINTS, RunCurves, by_settings, on_grid, read_run
from headrace.rundir.files import read_jsonl
from headrace.studies.statistics import interquartile


@pytest.fixture(autouse=True)
def few_panels(request, monkeypatch):
    """Draws few panels, as each is slow; tests with ``all_panels`` draw all."""
    if "all_panels" not in request.fixturenames:
        monkeypatch.setattr(panels, "KINDS", KINDS[:1])


@pytest.fixture
def all_panels():
    """Draws all panels; see ``few_panels``."""


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Return three runs that differ only in their seed, and one with another learning rate."""
    folder = tmp_path_factory.mktemp("seeds")
    runs = [write_run(folder / f"s{seed}", seed) for seed in range(3)]
    return [*runs, write_run(folder / "other", 7, num_actors=3)]


def values_of(page: Page, title: str) -> list[dict]:
    (found,) = [panel["lines"] for panel in page.data if panel["title"] == title]
    return found


def test_every_point_of_one_run_is_a_line_of_its_files(seeds, tmp_path, all_panels):
    page = Page(write([seeds[0]], tmp_path / "a.html").read_text())
    rows = {name: read_jsonl(seeds[0] / f"{name}.jsonl") for name in ("metrics", "evaluations")}
    shown = {shown.metric: shown for kind in KINDS for shown in kind.shown}
    seen = set()
    for panel in page.data:
        for line in panel["lines"]:
            metric = line["metric"]
            lines = rows["evaluations" if metric == "return_mean" else "metrics"]
            factor = shown[metric].factor
            wanted = [(row["env_steps"], row[metric] * factor) for row in lines if metric in row]
            assert list(zip(line["x"], line["y"], strict=True)) == wanted, metric
            seen.add(metric)
    wanted = {name for name in rows["metrics"][0] if "/" in name}
    wanted -= {"charts/episodes", "lag/dropped", "queue/lost"}
    assert seen == wanted | {"return_mean"}
    assert "0 throughout: Rollouts lost." in page.text


def test_the_tables_say_what_the_files_say(seeds, tmp_path):
    page = Page(write([seeds[0]], tmp_path / "a.html").read_text())
    for text in (
        *("480.2 ± 3.0", "40,000", "12.5 s", "9,100 steps/s", "after 0.7 s", "10,000 steps/s"),
        *("the learner is it", "learner waiting for rollouts", "APPO".lower(), "CartPole-v1"),
        *("Discrete(2)", "Box([4], -1 to 1, float32)", "2.13", "num_actors", "learning_rate"),
    ):
        assert text in page.text, text


@pytest.mark.draws
def test_runs_of_other_seeds_are_one_curve_with_the_interval_of_rliable(seeds, tmp_path):
    assert main(["report", *map(str, seeds), "--output", str(tmp_path / "all.html")]) == 0
    page = Page((tmp_path / "all.html").read_text())
    returns = [line for line in values_of(page, "Return") if line["metric"].startswith("charts")]
    assert [line["group"] for line in returns] == [0, 1]
    three = [read_run(run).curve("env_steps", "charts/episodic_return") for run in seeds[:3]]
    x, y = on_grid(three)
    found = interquartile({"": y[:, None, :]})[""]
    assert returns[0]["x"] == x.tolist()
    assert len(x) == GRID_POINTS
    for name, wanted in (("y", found.value), ("low", found.low), ("high", found.high)):
        assert returns[0][name] == pytest.approx(wanted.tolist(), rel=1e-3), name
    assert (np.array(returns[0]["low"]) <= returns[0]["high"]).all()
    assert returns[1]["y"] == three_of(seeds[3])
    assert "Settings that differ" in page.text
    rows = {
        name: (values, differ)
        for name, values, differ in facts.settings_table([read_run(run) for run in seeds])[
            "Settings that differ"
        ]
    }
    assert set(rows) == {"seed", "num_actors"}
    assert rows["num_actors"][0] == ["auto", "auto", "auto", "3"]


def three_of(folder: Path) -> list[float]:
    return read_run(folder).curve("env_steps", "charts/episodic_return")[1]


def test_without_rliable_there_is_a_report_and_a_sentence(seeds, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "rliable.library", None)
    assert main(["report", *map(str, seeds[:2]), "--output", str(tmp_path / "a.html")]) == 0
    assert "pip install 'headrace[bench]'" in capsys.readouterr().err
    page = Page((tmp_path / "a.html").read_text())
    assert "pip install 'headrace[bench]'" in page.text
    assert "low" not in values_of(page, "Return")[0]
    single = [str(seeds[0]), str(seeds[3])]  # with different settings, so nothing needs an interval
    assert main(["report", *single, "--output", str(tmp_path / "b.html")]) == 0
    assert "intervals" not in capsys.readouterr().err


def test_a_report_is_one_small_file_that_asks_for_nothing(seeds, tmp_path, all_panels):
    file = write(seeds, tmp_path / "a.html")
    assert file.stat().st_size < 1_000_000  # the limit is 3 MB
    html = file.read_text()
    page = Page(html)
    assert not re.search(r"https?://(?!www\.w3\.org/)", html)
    for tag, attributes in page.elements:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name)
            assert not target or target.startswith(("#", "data:")), (tag, target)
        assert not any(name.startswith("on") for name in attributes)
    script = page.scripts[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for t, a in page.elements
                 if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]  # fmt: skip
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"


def test_what_a_run_is_called_or_holds_is_text(tmp_path):
    folder = tmp_path / HOSTILE.replace("/", "_")
    write_run(folder)
    described = json.loads((folder / "config.json").read_text())
    described["config"]["env"] = HOSTILE
    described["config"]["env_kwargs"] = {HOSTILE: [HOSTILE]}
    described["action_space"]["type"] = "Discrete"
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "machine.json").write_text(json.dumps({"machine": {HOSTILE: HOSTILE}}))
    told = {"env_steps": 9, "name": HOSTILE, "text": HOSTILE, "remedy": HOSTILE}
    (folder / "warnings.jsonl").write_text(json.dumps(told) + "\n")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines = [json.dumps({**json.loads(x), f"tasks/{HOSTILE}/episodic_return": 1.0}) for x in lines]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    other = write_run(tmp_path / "b", 1)
    for runs in ([folder], [folder, other]):
        page = Page(write(runs, tmp_path / "a.html").read_text())
        tags = [tag for tag, _ in page.elements]
        assert tags.count("script") == 2
        assert "img" not in tags
        assert HOSTILE in page.text


def test_settings_of_one_run_are_grouped_by_who_chose_them(tmp_path):
    resolved = {"num_actors": 3, "engine": "native", "precision": "float32"}
    run = write_run(tmp_path / "run", seed=2, total_steps=5_000, **resolved)
    table = facts.settings_table([read_run(run)])
    names = {heading: {name for name, *_ in rows} for heading, rows in table.items()}
    assert names["Changed settings"] == {"seed", "total_steps"}
    assert names["Chosen at the start, unless set"] == set(resolved)
    assert {"gamma", "batch_size"} < names["Default settings"]


def test_code_of_a_script_has_no_module_in_titles(tmp_path):
    def run(name: str, algo: str) -> RunCurves:
        settings = {"algo": algo, "env": "__main__:Catch"}
        return RunCurves(tmp_path / name, settings, 0, [{"env_steps": 1, "seconds": 1.0}], [])

    ours, other = run("a", "__main__:Mine"), run("b", "ppo")
    assert facts.about(ours)["what"] == "Mine on Catch"
    assert title_of(by_settings([ours, other])) == "Mine vs. ppo on Catch"


def test_an_environment_of_a_script_is_the_same_by_its_module(tmp_path):
    def run(name: str, env: str, file: str | None, gamma: float = 0.99) -> RunCurves:
        settings = {"algo": "ppo", "env": env, "env_file": file, "gamma": gamma}
        return RunCurves(tmp_path / name, settings, name, [{"env_steps": 1, "seconds": 1.0}], [])

    module, script = run("a", "reach:Reach", None), run("b", "__main__:Reach", "/work/reach.py")
    assert list(by_settings([module, script])) == ["ppo on reach:Reach"]
    far = run("c", "__main__:Reach", "/work/reach.py", 0.999)
    assert list(by_settings([module, script, far])) == ["gamma=0.99", "gamma=0.999"]
    other = run("d", "__main__:Reach", "/other/reach.py")  # which of them is the module?
    assert len(by_settings([module, script, other])) == 3
    assert list(by_settings([script])) == ["ppo on Reach"]
    odd = run("e", "__main__:Reach", '/work/my"reach.py')
    assert len(by_settings([odd, run("f", 'my"reach:Reach', None)])) == 1
    for env, file in (([], None), ("reach:Reach", ["a"]), ("reach:Reach", -1), ({}, "/a.py")):
        assert len(by_settings([script, run("g", env, file)])) == 2


def test_sizes_that_were_chosen_count_as_equal(tmp_path):
    def run(name: str, automatic, **sizes) -> RunCurves:
        settings = {"algo": "ppo", "env": "A", **sizes}
        described = {"config": {"automatic": automatic}}
        return RunCurves(tmp_path / name, settings, name, [{"env_steps": 1}], [], described)

    names = ["num_actors", "envs_per_actor"]
    two = [
        run("a", names, num_actors=1, envs_per_actor=32),
        run("b", names, num_actors=2, envs_per_actor=16),
    ]
    assert len(by_settings(two)) == 1
    given = run("c", [], num_actors=2, envs_per_actor=16)
    assert list(by_settings([*two, given])) == [
        "num_actors=auto, envs_per_actor=auto",
        "num_actors=2, envs_per_actor=16",
    ]
    for odd in (None, 3, ["gamma", "x"], "num_actors"):
        assert len(by_settings([given, run("d", odd, num_actors=2, envs_per_actor=16)])) == 1


def test_settings_are_shown_and_compared_as_they_are():
    values = (float("inf"), 0.99999, 1.0, 1e-5, "auto", None)
    assert [facts.shown_value(value) for value in values] == [
        *("inf", "0.99999", "1.0", "1e-05", "auto", "null")
    ]
    near = [RunCurves(Path(n), {"algo": "ppo", "lam": lam}, 0, [{"env_steps": 1}], [])
            for n, lam in (("a", 0.99999), ("b", 0.999991))]  # fmt: skip
    (rows,) = [rows for name, rows in facts.settings_table(near).items() if "differ" in name]
    assert rows == [("lam", ["0.99999", "0.999991"], True)]
    shown = {1.5e6: "1.5M", 12_000: "12k", 0.02: "0.02", -0.0075: "-0.0075", 2.5e-4: "2.5e-4",
             -1.25e-4: "-1.25e-4", 1e-12: "1e-12", 0.0: "0", float("inf"): "inf"}  # fmt: skip
    assert {value: short(value) for value in shown} == shown


def test_a_gradient_that_is_not_clipped_has_no_line(tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "KINDS", tuple(k for k in KINDS if k.title == "Gradient norm"))
    for norm, told in ((float("inf"), False), (0.25, True)):
        run = read_run(write_run(tmp_path / str(norm)))
        run.settings["max_grad_norm"] = norm
        (panel,), _ = panels.panels({"run": [run]}, None)
        assert (panel.level is not None) == told


def test_an_evaluation_without_a_finite_mean_is_no_figure(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "summary.json").write_text('{"evaluation": {"mean": null, "std": null}}')
    assert "evaluated return" not in facts.about(read_run(run))["figures"]


def ticks(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)<", svg)


def test_a_panel_is_drawn_as_it_is_alone(seeds):
    found, _ = panels.panels({"a": [read_run(seeds[0])]}, None)
    other = panels.Panel("Other", "", "", True, None, "", [found[0].lines[1]])
    alone, first = map(ticks, [*drawn([found[0]], 1), *drawn([other], 1)])
    assert alone != first
    assert [*map(ticks, drawn([found[0], other, found[0]], 1))] == [alone, first, alone]
    pictures = drawn([other, found[0]], 1)
    assert [svg.count("stroke-dasharray") for svg in pictures] == [
        *(next(drawn([panel], 1)).count("stroke-dasharray") for panel in (other, found[0]))
    ]


def test_a_run_that_goes_on_or_was_interrupted_has_a_report_too(tmp_path):
    run = write_run(tmp_path / "run")
    for name in ("summary.json", "evaluations.jsonl", "machine.json", "config.json"):
        (run / name).unlink()
        page = Page(write([run]).read_text())
        assert "running, or killed" in page.text
    assert values_of(page, "Return")[0]["y"] == three_of(run)
    (run / "summary.json").write_text('{"interrupted": true}')
    assert "interrupted" in Page(write([run]).read_text()).text


def test_the_summary_of_a_run_that_was_resumed_since_is_not_its_own(tmp_path):
    run = write_run(tmp_path / "a")
    summary = json.loads((run / "summary.json").read_text())
    for env_steps, state in ((40_000, "ended"), (30_000, "running, or killed")):
        (run / "summary.json").write_text(json.dumps(summary | {"env_steps": env_steps}))
        overview = facts.about(read_run(run))
        assert overview["state"] == state
        assert ("evaluated return" in overview["figures"]) == (state == "ended")
    assert overview["figures"]["training time"] == "39.0 s"


def test_what_the_doctor_says_is_in_the_report(tmp_path):
    run = write_run(tmp_path / "run")
    assert "No problems found." in Page(write([run]).read_text()).text
    lines = read_jsonl(run / "metrics.jsonl")
    flat = "\n".join(json.dumps(line | {"charts/episodic_return": 1.0}) for line in lines) + "\n"
    (run / "metrics.jsonl").write_text(flat)
    assert "too short to judge whether it learns: " in Page(write([run]).read_text()).text
    text = "\n".join(json.dumps(line | {"losses/approx_kl": 0.4}) for line in lines) + "\n"
    (run / "metrics.jsonl").write_text(text)
    shown = Page(write([run]).read_text()).text
    assert "kl-high" in shown
    assert "KL 0.4 nats" in shown
    assert "Usually fixed by: a smaller learning_rate" in shown


def test_films_are_in_the_page_while_there_is_room(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    (run / "episode.mp4").write_bytes(b"a video")
    (run / "a task").mkdir()
    (run / "a task" / "episode.mp4").write_bytes(b"b" * 100)
    monkeypatch.setattr(facts, "VIDEO_BYTES", 50)
    page = Page(write([run], tmp_path / "out" / "a.html").read_text())
    sources = [a.get("src") for tag, a in page.elements if tag == "video"]
    assert sources == ["data:video/mp4;base64," + base64.b64encode(b"a video").decode()]
    assert [a["href"] for tag, a in page.elements if tag == "a"] == ["../run/a%20task/episode.mp4"]


def test_long_curves_lose_points_but_not_their_extremes():
    rng = np.random.default_rng(0)
    y = rng.normal(size=5000)
    y[1234], y[4000] = 50.0, -50.0
    rows = [{"env_steps": i, "a": float(v)} for i, v in enumerate(y)]
    run = RunCurves(Path("x"), {}, 0, rows, [])
    kind = panels.Kind("A", "", (panels.Shown("a", "a"),))
    (line,) = panels._panel(kind, {"x": [run]}, []).lines
    assert len(line.x) <= MOST_POINTS
    assert {50.0, -50.0} <= set(line.y)
    assert all(y[int(at)] == value for at, value in zip(line.x, line.y, strict=True))
    assert (line.x[0], line.x[-1]) == (0, 4999)


def test_what_is_no_run_is_one_sentence(tmp_path, capsys):
    with pytest.raises(ConfigError, match="headrace report runs/one"):
        write([])
    with pytest.raises(CheckpointError, match="no metrics"):
        write([tmp_path])
    run = write_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    assert main(["report", str(run), "--output", str(tmp_path / "file" / "a.html")]) == 2
    assert "can't be written" in capsys.readouterr().err


@pytest.mark.draws
def test_a_run_ends_with_its_report_and_names_it(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    config = tiny(transport="serial", total_steps=640)
    hr.train(config)
    shown = capsys.readouterr().out
    assert re.search(r"report +\S+/run/report.html", shown)
    page = Page((tmp_path / "run" / "report.html").read_text())
    rows = [x for f in ("returns", "metrics") for x in read_jsonl(tmp_path / f"run/{f}.jsonl")]
    rows.sort(key=lambda row: row["env_steps"])
    held = values_of(page, "Return")[0]
    assert held["y"] == [r["charts/episodic_return"] for r in rows if "charts/episodic_return" in r]
    machine = json.loads((tmp_path / "run" / "machine.json").read_text())
    assert machine["versions"]["torch"] in page.text
    assert "ended" in page.text


def test_one_run_of_many_is_not_drawn(tiny, tmp_path, capsys):
    run(tiny(transport="serial", total_steps=64), draw=False)
    assert (tmp_path / "run" / "summary.json").exists()
    assert not list((tmp_path / "run").glob("[cr]*.[ph][nt][gm]*"))
    assert "report.html" not in capsys.readouterr().out


@pytest.mark.draws
def test_an_interrupted_run_has_one_too(tiny, tmp_path):
    with hr.Trainer(tiny(transport="serial", total_steps=10**6), notify=lambda t: None) as trainer:
        for result in trainer:
            if result.updates == 3:
                trainer.interrupt()
    assert "interrupted" in Page((tmp_path / "run" / "report.html").read_text()).text
