"""The pages of the site: their code runs, their tables are true, their drawings are up to date."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import re
import shlex
from pathlib import Path

import pytest
from warm import run

import headrace as hr
from headrace.algos import ALGORITHMS
from headrace.cli.commands import COMMANDS
from headrace.cli.training import config_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WITHOUT_PICTURES = (
    "import headrace.evaluating.run_end as ending\nending._report = ending.plot = lambda *_: None\n"
)
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TRACKERLESS = ("index", "optuna", "tensorboard")  # pages of integrations that need no server


def blocks(page: str, language: str) -> list[str]:
    """Return a page's code with few steps and episodes."""
    text = (DOCS / page).read_text(encoding="utf-8")
    counts = {"total[_-](?:time)?steps": 600, "(?:n_)?(?:eval_)?episodes": 2, "n_trials": 2}
    for setting, count in counts.items():
        text = re.sub(rf"(\b{setting}[\"\']?[=: ] ?)[\d_]+", rf"\g<1>{count}", text)
    return [code for kind, code in BLOCK.findall(text) if kind == language]


def tool(name: str):
    """Import a module of docs/_site."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"_site/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "count"), [("start.md", 3), pytest.param("migrating.md", 4, marks=pytest.mark.slow)]
)
def test_the_files_of_a_page_run_in_order(tmp_path, page, count):
    here = [code for code in blocks(page, "python") if "import ray" not in code]
    files = [re.match(r"# (\w+\.py)\n", code)[1] for code in here]
    assert len(files) == count
    for file, code in zip(files, here, strict=True):
        (tmp_path / file).write_text(WITHOUT_PICTURES * ("hr.train" in code) + code)
        run(tmp_path, file)
    for code in blocks(page, "bash"):
        for line in code.splitlines():
            run(tmp_path, "-m", *shlex.split(line))
    assert list(tmp_path.glob("runs/*/summary.json"))


@pytest.mark.slow  # tests/envs holds what it shows
def test_what_is_said_of_environments_runs_from_top_to_bottom(tmp_path):
    code = [WITHOUT_PICTURES, *blocks("your_environment.md", "python")]
    (tmp_path / "script.py").write_text("\n".join(code))
    run(tmp_path, "script.py")
    names = {"by-id", "by-function", "by-class", "wrapped", "masked"}
    assert {path.parent.name for path in tmp_path.glob("runs/*/summary.json")} == names


def test_the_command_with_image_wrappers_gives_settings_that_a_run_takes():
    (command,) = blocks("your_environment.md", "bash")
    config = config_of("appo", shlex.split(command)[3:])
    assert [name.partition(":")[0] for name in config.wrappers] == [
        "ResizeObservation", "GrayscaleObservation", "FrameStackObservation",
    ]  # fmt: skip


def short_scripts() -> list[str]:
    """Return headrace's side of the pages that train CartPole in one call each."""
    pages = [f"algorithms/{name}.md" for name in ALGORITHMS]
    code = [block for page in [*pages, "migrating.md"] for block in blocks(page, "python")]
    ours = [block for block in code if "import headrace" in block]
    assert len(ours) == len(ALGORITHMS) + 3
    return ours


@pytest.mark.slow  # tests/algos/test_identity.py trains all of them
def test_the_pages_of_algorithms_train_them(tmp_path):
    (tmp_path / "script.py").write_text("\n".join([WITHOUT_PICTURES, *short_scripts()]))
    run(tmp_path, "script.py")
    names = {*ALGORITHMS, "from-sb3", "from-cleanrl", "from-rllib"}
    assert {path.parent.name for path in tmp_path.glob("runs/*/summary.json")} == names


@pytest.mark.slow  # tests/test_callbacks.py and tests/zoo hold what they show
@pytest.mark.parametrize("page", ["zoo.md", *(f"integrations/{x}.md" for x in TRACKERLESS)])
def test_what_needs_no_tracker_on_the_pages_of_tools_runs(tmp_path, page):
    (tmp_path / "script.py").write_text("\n".join([WITHOUT_PICTURES, *blocks(page, "python")]))
    run(tmp_path, "script.py")
    assert list(tmp_path.glob("runs/**/summary.json"))


def test_the_pages_of_algorithms_give_settings_that_a_run_takes(monkeypatch):
    given = []

    class Trained(Exception):
        """Return the config of a command without training."""

    def taken(env, algo=None, **settings):
        given.append(env if isinstance(env, hr.Config) else hr.Config(env, algo, **settings))
        raise Trained

    monkeypatch.setattr(hr, "train", taken)
    monkeypatch.setattr(hr, "Trainer", taken)
    for code in short_scripts():
        with pytest.raises(Trained):
            exec(code, {})
    assert {config.algo_name for config in given} == set(ALGORITHMS)


def test_what_is_shown_of_other_libraries_is_what_make_test_elsewhere_runs():
    elsewhere = tool("elsewhere")
    shown = {name: elsewhere.blocks(name) for name in elsewhere.PACKAGES}
    assert [command[1] for command in shown["CleanRL"]] == ["ppo.py"]
    ((_, _, program),) = shown["RLlib"]
    compile(program, "rllib_appo.py", "exec")
    assert "< 20000:" in program
    assert [command[2].split(".")[-1] for command in shown["Sample Factory"]] == [
        "train_gym_env", "enjoy_gym_env",
    ]  # fmt: skip
    page = (DOCS / "migrating.md").read_text(encoding="utf-8")
    for name, packages in elsewhere.PACKAGES.items():
        row = re.findall(rf"^\| {name} \| (.*)$", page, re.MULTILINE)[0]
        version = elsewhere.CLEANRL[:7] if name == "CleanRL" else packages[-1].split("==")[1]
        assert version in row, name


LONG = {"atari": 3, "clusters": 3, "environments": 1, "inference": 1, "tasks": 3, "index": 1}


@pytest.mark.parametrize(("page", "count"), LONG.items())
def test_what_would_train_for_long_or_elsewhere_gives_settings_that_a_run_takes(
    monkeypatch, page, count
):
    given = []

    class Trained(Exception):
        """Return the config of a script without training."""

    def taken(env="CartPole-v1", algo=None, **settings):
        given.append(hr.Config(env, algo or hr.APPO(), **settings))
        raise Trained

    monkeypatch.setattr(hr, "train", taken)
    for code in blocks(f"{page}.md", "python"):
        if "train(" in code:
            with pytest.raises(Trained):
                exec(code, {"hr": hr})
    for code in blocks(f"{page}.md", "bash"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["headrace", "train"]:
                given.append(config_of(words[2], words[3:]))
    assert len(given) == count


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_defaults_on_an_algorithms_page_are_its_own(name):
    text = (DOCS / f"algorithms/{name}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", text, re.MULTILINE)
    assert len(rows) >= 6
    for setting, default in rows:
        shown = repr(getattr(ALGORITHMS[name](), setting)).replace("'", '"')
        assert default == shown, setting


def test_the_settings_tables_have_every_setting_and_its_default():
    tables = tool("settings_table")
    markers = tables.MARKER.findall((DOCS / "reference/settings.md").read_text(encoding="utf-8"))
    kinds = [hr.Config, hr.Network, hr.Hyperparameters, *ALGORITHMS.values()]
    assert {name for _, name in markers} == {kind.__name__ for kind in kinds}
    shown = {name: tables.settings_of(ROOT / file, name) for file, name in markers}
    for kind in kinds:
        rows = {one.name: one for one in shown[kind.__name__]}
        fields = {
            x.name: x.default for x in dataclasses.fields(kind) if x.name in kind.__annotations__
        }
        assert set(rows) == set(fields) - {"env_file", "automatic"}
        for name, row in rows.items():
            assert row.text, name
            if isinstance(fields[name], bool | str | None):
                assert row.default.strip('"') == str(fields[name]), name
            elif isinstance(fields[name], int | float):
                assert float(row.default) == fields[name], name
    page = tables.on_page_markdown("<!-- settings: headrace/algos/impact.py IMPACT -->")
    assert "| <code>ratio</code> | <code>R1 &#124; R2 &#124; R3</code> |" in page


def test_the_page_on_the_command_line_has_every_command():
    page = (DOCS / "command_line.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)", cell)) == sorted(
        COMMANDS
    )


def test_every_page_is_in_the_navigation_once():
    nav = re.findall(r"(?::|-) (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(nav) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_timelines_are_what_their_program_draws():
    timelines = tool("timelines")
    assert set(timelines.TIMELINES) == set(ALGORITHMS)
    for name, lanes in timelines.TIMELINES.items():
        drawn = (DOCS / f"algorithms/{name}.svg").read_text(encoding="utf-8")
        assert drawn == timelines.picture(lanes), "run python docs/_site/timelines.py"
        for bars in lanes.values():
            assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(bars))


def test_links_to_files_beside_the_pages_become_their_names_and_equations_are_drawn():
    hooks = tool("hooks")

    class Page:
        class file:
            src_uri = "algorithms/new.md"

    shown = hooks.on_page_markdown(
        "[a](a2c.md#when), [types](../../headrace/types.py), `[b](../../Makefile)`, "
        "[`Makefile`](../../Makefile)\n\n```math\n\\frac{a}{b} < 1\n```\n",
        page=Page,
    )
    assert "[a](a2c.md#when), types (`headrace/types.py`), `[b](../../Makefile)`" in shown
    assert ", `Makefile`\n" in shown
    assert 'aria-label="\\frac{a}{b} &lt; 1"' in shown
    assert "```" not in shown
    assert hooks.equation("a \\qquad b").count("<svg") == 2
    name = "tests/trainer/test_resume.py::test_it_goes_on"
    cell = hooks.on_page_content(f"<td><code>{name}</code></td><p><code>{name}</code></p>")
    assert cell.startswith("<td><code>tests/<wbr>trainer/<wbr>test_<wbr>resume.<wbr>py::<wbr>test_")
    assert cell.endswith(f"<p><code>{name}</code></p>")
    role = hooks.on_page_content("see :class:<code>~headrace.callbacks.Callback</code>")
    assert role == "see <code>Callback</code>"
    for page in DOCS.rglob("*.md"):
        for latex in re.findall(r"^```math\n(.*?)^```", page.read_text(), re.DOTALL | re.M):
            assert "<path" in hooks.equation(latex)


@pytest.mark.parametrize("page", ["<h2>a</h2>", "<h1>a</h1><h1>b</h1>", "<p>no heading</p>"])
def test_a_page_of_the_site_has_one_title(page, tmp_path):
    (tmp_path / "a.html").write_text(page)
    (fault,) = tool("check").faults(tmp_path)
    assert fault.startswith("a.html needs one heading of level 1 at the beginning, not [")


def test_what_is_missing_in_a_built_site_is_told(tmp_path):
    check = tool("check")
    (tmp_path / "a.css").write_text("x { background: url(https://far/away.png) }")
    (tmp_path / "b.html").write_text(
        '<h1 id="top">B</h1><link rel="stylesheet" href="a.css"><code>](a.md)</code>'
        '<a href="#top"></a><a href="https://far/away"></a>'
    )
    assert check.faults(tmp_path) == ["a.css loads https://far/away.png"]
    (tmp_path / "a.css").write_text("x { background: url('data:x') }")
    (tmp_path / "c.html").write_text(
        '<a href="b.html#top"></a><a href="b.html#end"></a><script src="https://far/x.js">'
        '</script><a href="d.html"></a><p>\n- not a list [x](b.md)</p>'
        '<h1>C</h1><h3></h3><img src="data:x"><img src="data:y" alt="y">'
        "<p>a :class:<code>X</code></p>"
    )
    assert check.faults(tmp_path) == [
        "c.html loads https://far/x.js, which is not a file of the site",
        "c.html links to b.html#end, which doesn't exist",
        "c.html links to d.html, which doesn't exist",
        "c.html shows data:x without an alternative text",
        "c.html has a heading of level 3 below one of level 1",
        "c.html shows Markdown: - not a list [x](b.md)a :class:",
    ]
