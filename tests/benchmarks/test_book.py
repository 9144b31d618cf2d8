"""Tests of the results book: stored runs, stale rows, verdicts, pages and README's quotes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import time
import types
from pathlib import Path

import pytest
from rich.console import Console

import headrace as hr
from headrace.errors import ConfigError
from tests.tries import few_of

QUIET = Console(quiet=True)


def config_of(case, **changes):
    algo = hr.PPO(**changes)
    return hr.Config("CartPole-v1", algo, seed=case["seed"], total_steps=case["steps"])


def cases(form):
    return [{"steps": form.pick(100, 1000), "seed": seed} for seed in form.seeds(2, 3)]


@pytest.fixture
def book(benchmark):
    names = ("data", "experiment", "forks", "page", "readme", "rows", "running", "training")
    return {name: benchmark(f"book.{name}") for name in names}


@pytest.fixture
def experiment(book):
    return book["experiment"].Experiment("demo", cases, config_of)


@pytest.fixture
def stored(book, experiment, tmp_path):
    """Data of the two quick cases, of which the first returned 1 and the second 3."""
    data = book["data"].Data(experiment, tmp_path)
    data.start("quick", cases(book["experiment"].Form("quick")))
    for case, value in zip(cases(book["experiment"].Form("quick")), (1.0, 3.0), strict=True):
        data.add(case, 0.5, values={"final_return": value})
    return data


def row_of(book, **changes):
    rows = book["rows"]

    def judge(data):
        values = data["demo"].values("final_return")
        return rows.Judgement(rows.Verdict.IN_KIND, rows.spread(values))

    row = rows.Row("Figure 1", "it learns", "two runs", ("demo",), judge)
    return dataclasses.replace(row, **changes)


def page_of(book, experiment, *rows):
    rows = rows or (row_of(book),)
    return book["page"].Page("demo", "Demo", "A source", rows, (experiment,))


# -- data ------------------------------------------------------------------------------------------


def test_runs_are_read_back_and_not_repeated(book, stored, experiment, tmp_path):
    again = book["data"].Data(experiment, tmp_path)
    assert [run.values for run in again.runs] == [{"final_return": 1.0}, {"final_return": 3.0}]
    assert again.form == "quick"
    both = cases(book["experiment"].Form("quick"))
    assert again.missing(both) == []
    assert again.missing([*both, {"steps": 100, "seed": 9}]) == [{"steps": 100, "seed": 9}]


def test_the_file_names_settings_commit_and_machine(stored):
    file = json.loads(stored.path.read_text())
    assert file["shared_settings"]["algo.epochs"] == hr.PPO().epochs
    assert "seed" not in file["shared_settings"]
    (key,) = file["settings"]
    for line in file["runs"]:
        assert line["settings"] == key
        assert line["machine"]
        assert "commit" in line


def test_a_failed_run_is_kept_and_repeated(book, stored, experiment, tmp_path):
    case = {"steps": 100, "seed": 1}
    stored.add(case, 0.1, error="RuntimeError: no")
    again = book["data"].Data(experiment, tmp_path)
    assert (again.failed, again.missing([case])) == (["RuntimeError: no"], [case])
    assert len(again.runs) == 1


def test_a_seed_does_not_change_the_settings_and_a_setting_does(experiment):
    a, b, c = ({"steps": n, "seed": seed} for n, seed in ((100, 0), (100, 1), (200, 0)))
    assert experiment.fingerprint(a) == experiment.fingerprint(b) != experiment.fingerprint(c)


def test_the_folder_of_the_checkout_does_not_change_the_settings(book):
    flat = book["experiment"].flat
    one, other = (flat({"algo": {"file": f"/{place}/mine.py"}}) for place in "ab")
    assert one == other == {"algo.file": "mine.py"}


def test_the_quick_form_has_at_most_two_seeds_and_the_medium_form_its_length(book):
    forms = {scale: book["experiment"].Form(scale, 7) for scale in ("quick", "medium", "full")}
    assert {k: list(f.seeds(3, 4)) for k, f in forms.items()} == {
        "quick": [7, 8], "medium": [7, 8, 9], "full": [7, 8, 9, 10]
    }  # fmt: skip
    assert [list(f.seeds(1, 2, quick=4)) for f in forms.values()] == [[7], [7], [7, 8]]
    assert [f.pick(10, 100) for f in forms.values()] == [10, 10, 100]
    assert [f.pick(10, 100, medium=50) for f in forms.values()] == [10, 50, 100]


def test_runs_of_another_default_are_stale_and_repeated(book, stored, experiment, tmp_path):
    changed = dataclasses.replace(experiment, settings=lambda case: config_of(case, epochs=7))
    data = book["data"].Data(changed, tmp_path)
    both = cases(book["experiment"].Form("quick"))
    assert (data.stale(), data.missing(both), data.changed()) == (both, both, ["algo.epochs"])
    assert book["data"].Data(experiment, tmp_path).stale() == []


@pytest.mark.parametrize(
    ("more", "is_stale"), [({"limit": None, "names": ()}, False), ({"limit": 3}, True)]
)
def test_a_setting_that_was_added_later_is_a_change_unless_it_is_off(
    book, stored, experiment, tmp_path, more, is_stale
):
    newer = dataclasses.replace(experiment, settings=lambda case: {"": config_of(case)} | more)
    data = book["data"].Data(newer, tmp_path)
    assert bool(data.stale()) == is_stale
    assert data.changed() == ([*more] if is_stale else [])


def test_a_case_that_is_no_longer_valid_is_stale(book, stored, experiment, tmp_path):
    def refuse(case):
        raise ConfigError("no")

    data = book["data"].Data(dataclasses.replace(experiment, settings=refuse), tmp_path)
    assert len(data.stale()) == 2
    page = page_of(book, dataclasses.replace(experiment, settings=refuse))
    assert "stale (settings changed)" in book["page"].render(page, page.data(tmp_path))


@pytest.mark.filterwarnings("ignore:t_target")  # a claim is about periods that the setting warns of
@pytest.mark.parametrize("scale", few_of(["quick", "medium", "full"], ["quick", "full"]))
@pytest.mark.parametrize("name", ["impala", "impact", "ddppo", "clusterenv", "lesson", "peers"])
def test_the_cases_of_a_page_are_unique_and_valid(book, name, scale):
    form = book["experiment"].Form(scale, first_seed=500)
    for experiment in book["readme"].page_named(name).experiments:
        each = experiment.cases(form)
        assert len({json.dumps(case) for case in each}) == len(each) > 0
        assert all(case.get("seed", 500) >= 500 for case in each)
        for case in {json.dumps({**case, "seed": 500}): case for case in each}.values():
            experiment.settings_of(case)


# -- verdicts and pages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("larger", "smaller", "verdict"),
    [
        ([10, 11, 12], [1, 2, 3], "in kind"),
        ([1, 2, 3], [10, 11, 12], "refuted"),
        ([1, 2, 3], [2, 3, 4], "not reproduced"),
        ([2.0, 2.1], 1.0, "in kind"),
        (1.0, [2.0, 2.1], "refuted"),
    ],
)
def test_means_are_compared_with_two_standard_errors(book, larger, smaller, verdict):
    assert book["rows"].more(larger, smaller).value == verdict


def test_one_run_is_not_compared(book):
    with pytest.raises(ValueError, match="two runs of each kind"):
        book["rows"].more([2.0], [1.0, 1.1])


def test_a_margin_shifts_the_comparison(book):
    values = [1.0, 1.1, 0.9]
    assert book["rows"].more(values, values).value == "not reproduced"
    assert book["rows"].more(values, values, margin=-0.5).value == "in kind"
    assert book["rows"].more(values, values, margin=0.5).value == "refuted"


def test_several_verdicts_give_the_weakest(book):
    rows = book["rows"]
    kind, none, refuted = rows.Verdict.IN_KIND, rows.Verdict.NOT_REPRODUCED, rows.Verdict.REFUTED
    assert rows.worst([kind, kind]) is kind
    assert rows.worst([kind, none]) is none
    assert rows.worst([kind, refuted]) is none
    assert rows.worst([refuted, refuted]) is refuted


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([100.0, 102.0], "101 ± 1"),
        ([0.5], "0.500"),
        ([-2.0, -4.0], "−3.00 ± 1.00"),
        ([], "–"),
        ([0.0], "0"),
    ],
)
def test_values_are_spelled_with_their_spread(book, values, text):
    assert book["rows"].spread(values) == text


def test_a_page_shows_result_and_verdict_and_what_was_not_run(book, stored, experiment, tmp_path):
    untested = row_of(book, where="Table 1", experiments=(), judge=None, why="too large")
    page = page_of(book, experiment, row_of(book), untested)
    text = book["page"].render(page, page.data(tmp_path))
    assert "| Figure 1 | it learns | two runs | 2.00 ± 1.00 | **in kind** |" in text
    assert "| Table 1 | it learns | too large |" in text
    assert "`python benchmarks/results.py demo --quick`: 2 runs" in text


def test_a_row_without_runs_is_not_run(book, experiment, tmp_path):
    page = page_of(book, experiment)
    text = book["page"].render(page, page.data(tmp_path))
    assert "| Figure 1 | it learns | not run yet: demo |" in text
    assert book["page"].counts(book["page"].findings(page, page.data(tmp_path)))["not run"] == 1


# -- runs ------------------------------------------------------------------------------------------


def test_missing_cases_run_in_processes(book, experiment, tmp_path, monkeypatch):
    calls = []

    def call(self, function, request, timeout_s, watch):
        calls.append((function.__name__, [case["seed"] for case in request["cases"]]))
        for number, case in enumerate(request["cases"]):
            result = {"error": "it broke"} if case["seed"] else {"values": {"final_return": 2.0}}
            path = Path(request["folder"]) / f"{number}.json"
            path.write_text(json.dumps({**result, "seconds": 0.5}))
            watch(0)

    monkeypatch.setattr(book["running"].Children, "call", call)
    data = book["data"].Data(dataclasses.replace(experiment, alone=True), tmp_path)
    monkeypatch.setattr(book["data"], "machine", lambda: "another machine")  # as in a pinned thread
    form = book["experiment"].Form("quick")
    printed = io.StringIO()
    book["running"].run_missing("demo", data, form, Console(file=printed, markup=False))
    assert printed.getvalue().count("[demo ") == 2  # each result once
    assert calls == [("run_cases", [0, 1])]
    assert data.runs.values("final_return") == [2.0]
    assert data.failed == ["it broke"]
    assert "another machine" not in data.path.read_text()
    calls.clear()
    book["running"].run_missing("demo", data, form, QUIET)
    assert calls == [("run_cases", [1])]


def test_results_are_kept_if_their_process_is_killed(book, experiment, tmp_path, monkeypatch):
    def call(self, function, request, timeout_s, watch):
        result = {"values": {"final_return": 2.0}, "seconds": 0.5}
        (Path(request["folder"]) / "0.json").write_text(json.dumps(result))
        raise RuntimeError("killed")

    monkeypatch.setattr(book["running"].Children, "call", call)
    data = book["data"].Data(dataclasses.replace(experiment, alone=True), tmp_path)
    with pytest.raises(RuntimeError, match="killed"):
        book["running"].run_missing("demo", data, book["experiment"].Form("quick"), QUIET)
    assert book["data"].Data(experiment, tmp_path).runs.values("final_return") == [2.0]


def test_processes_share_cases_and_keep_what_a_fork_changes_apart(book, monkeypatch, tmp_path):
    forks, numbers = book["forks"], []

    def measure(case):
        numbers.append(case["seed"])
        if case["seed"] == 1:
            raise ValueError("no")
        if case["seed"] == 2:
            os._exit(3)
        if case["seed"] == 3:
            time.sleep(60)
        return {"numbers": numbers}

    one = book["experiment"].Experiment("e", list, dict, measure, limit_s=5.0)
    page = types.SimpleNamespace(PAGE=types.SimpleNamespace(experiments=[one]))
    monkeypatch.setattr(forks.importlib, "import_module", lambda name: page)
    monkeypatch.setattr(forks.atexit, "_run_exitfuncs", lambda: None)  # those of pytest
    request = {"page": "p", "experiment": "e", "folder": str(tmp_path)}
    (tmp_path / "5.begun").touch()  # by another process
    forks.run_cases(request | {"cases": [{"seed": seed} for seed in range(6)]})
    assert not (tmp_path / "5.json").exists()
    results = [json.loads((tmp_path / f"{n}.json").read_text()) for n in range(5)]
    assert all(result.pop("seconds") > 0 for result in results)
    assert results == [
        {"values": {"numbers": [0]}},
        {"error": "ValueError: no"},
        {"error": "its process ended with code 3"},
        {"error": "it took longer than 5 s"},
        {"values": {"numbers": [4]}},
    ]


def test_values_of_a_run_come_from_its_summary_and_metrics(book):
    evaluation = {"deterministic": True, "mean": 5.0}
    evaluation["other_mode"] = {"deterministic": False, "mean": 4.0, "other_mode": None}
    summary = {
        "utilisation": {"learner": 0.5, "actor": 1.0}, "episodic_return": 3.0, "env_steps": 30,
        "evaluation": evaluation, "updates": 3, "seconds_total": 9.0, "sps": 10.0,
        "seconds_to_first_update": 2.0, "lag": {"mean": 0.5},
    }  # fmt: skip
    points = [(10, 0.0), (10, 0.0), (20, 4.0), (30, 2.0)]
    lines = [{"env_steps": n, "seconds": 1.0, "charts/episodic_return": y} for n, y in points]
    values = book["training"].values_of(summary, lines)
    assert (values["evaluated"], values["evaluated_sampled"]) == (5.0, 4.0)
    assert (values["area"], values["peak_return"], values["seconds"]) == (2.5, 4.0, 7.0)
    assert [point[0] for point in values["curve"]] == [10, 20, 30]
    assert book["training"].evaluations(None) == {"evaluated": None, "evaluated_sampled": None}


def test_a_long_curve_keeps_its_ends(book):
    curve = [[n, n, n] for n in range(1000)]
    thinned = book["training"].thinned(curve)
    assert (len(thinned), thinned[0], thinned[-1]) == (40, curve[0], curve[-1])


def test_runs_of_other_cases_are_kept_unless_replaced(book, stored, experiment, tmp_path):
    others = book["experiment"].Form("quick", first_seed=7)
    data = book["data"].Data(experiment, tmp_path)
    with pytest.raises(ConfigError, match=r"has 2 runs of other cases.*--replace"):
        data.start("quick", cases(others))
    assert len(data.runs) == 2
    data.start("quick", cases(others), replace=True)
    assert len(data.runs) == 0


def test_missing_runs_of_the_stored_form_are_counted(book, stored, experiment, tmp_path):
    assert stored.num_missing() == 0
    more = dataclasses.replace(experiment, cases=lambda form: [*cases(form), {"seed": 9}])
    page = page_of(book, more)
    assert page.data(tmp_path)["demo"].num_missing() == 1
    assert "(1 runs are missing)" in book["page"].render(page, page.data(tmp_path))


def test_runs_are_stored_in_the_order_of_the_cases(book, experiment, tmp_path):
    data, both = book["data"].Data(experiment, tmp_path), cases(book["experiment"].Form("quick"))
    data.start("quick", both)
    for case in both[::-1]:
        data.add(case, 0.1, values={"final_return": float(case["seed"])})
    assert data.runs.values("final_return") == [0.0, 1.0]


def test_the_command_runs_experiments_and_writes_pages(
    book, benchmark, experiment, tmp_path, monkeypatch
):
    command, forms = benchmark("results"), []

    def run_missing(page, data, form, console, replace):
        forms.append((page, form, replace))
        data.start(form.scale, cases(form), replace)
        for case in cases(form):
            data.add(case, 0.5, values={"final_return": 1.0})

    monkeypatch.setattr(command, "run_missing", run_missing)
    page = page_of(book, experiment)
    monkeypatch.setattr(command, "page_named", lambda name: page)
    shared = command.Args(("impala",), quick=True, first_seed=7, output=tmp_path)
    assert command.main(shared) == 0
    assert forms == [("demo", book["experiment"].Form("quick", 7), False)]
    written = [(tmp_path / name).read_text() for name in ("demo.md", "index.md")]
    assert "2 runs" in written[0]
    assert "[Demo](demo.md)" in written[1]
    assert command.main(dataclasses.replace(shared, report=True)) == 0
    assert len(forms) == 1
    with pytest.raises(ConfigError, match="exclude each other"):
        command.main(dataclasses.replace(shared, medium=True))


# -- README ----------------------------------------------------------------------------------------


def test_readme_quotes_a_row(book, stored, experiment, tmp_path):
    readme, page = book["readme"], page_of(book, experiment)
    ((_, found),) = readme.quoted(
        tmp_path, [readme.Quote("demo", "Figure 1", "it learns", "Runs")], lambda _: page
    )
    assert found.result == "2.00 ± 1.00"
    with pytest.raises(ConfigError, match=r"0 rows \('Figure 2'"):
        readme.quoted(
            tmp_path, [readme.Quote("demo", "Figure 2", "it learns", "Runs")], lambda _: page
        )


def test_readme_may_not_quote_a_stale_row(book, stored, experiment, tmp_path):
    changed = dataclasses.replace(experiment, settings=lambda case: config_of(case, epochs=7))
    readme, page = book["readme"], page_of(book, changed)
    with pytest.raises(ConfigError, match=r"'Figure 1' of demo, which is stale: algo\.epochs"):
        readme.quoted(
            tmp_path, [readme.Quote("demo", "Figure 1", "it learns", "Runs")], lambda _: page
        )


def test_readme_keeps_the_text_around_the_table(book, tmp_path, monkeypatch):
    readme, path = book["readme"], tmp_path / "README.md"
    monkeypatch.setattr(readme, "table", lambda folder: "| new |")
    path.write_text(f"before\n{readme.BEGIN}\n\nold\n\n{readme.END}\nafter\n")
    readme.write(path, tmp_path)
    text = path.read_text()
    assert readme.between(text) == "| new |"
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    path.write_text("nothing")
    with pytest.raises(ConfigError, match="lacks the lines"):
        readme.write(path, tmp_path)
