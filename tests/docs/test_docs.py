"""The README's Python and commands run in order in an empty folder."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from warm import headrace, run

from tests.tries import few_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
BLOCKS = re.findall(r"```(python|bash)\n(.*?)```", README, re.DOTALL)


def shorter(text: str, share: int = 100) -> str:
    """Return the block with fewer steps, and half of a study's iterations.

    It keeps 1,000 steps, or a tenth if that is less, and two episodes of evaluations. Measurements
    take half a second. Games of OrbitalDominance have four steps, and a league plays four games per
    pair.
    """

    def fewer(found: re.Match) -> str:
        steps = int(found[2])
        return found[1] + str(max(steps // share, min(steps // 10, 1_000)))

    text = re.sub(r"(total[_-]steps[= ])([\d_]+)", fewer, text)
    if "eval_episodes" not in text:
        text = re.sub(r"(total_steps=\d+)", r"\1, eval_episodes=2", text)
    text = re.sub(r"(train (?!.*--eval-ep).*--total-steps \d+)", r"\1 --eval-episodes 2", text)
    text = re.sub(r"(total[_-]iters[= ])([\d_]+)", lambda m: m[1] + str(int(m[2]) // 2), text)
    text = text.replace("--recipe orbital", """--recipe orbital --env-kwargs '{"horizon":4}'""")
    text = re.sub(r"(headrace league .+ --episodes) \d+", r"\1 4", text)
    return re.sub(r"(--measure \S+)", r"\1 --measure-seconds 0.5", text)


def commands_of(text: str) -> list[list[str]]:
    """Return the arguments of each command of headrace."""
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("headrace ")]


def test_every_snippet_and_command_of_the_readme_runs(tmp_path):
    num_run = 0
    for language, whole in BLOCKS:
        text = shorter(whole)
        if language == "python":
            (tmp_path / "snippet.py").write_text(text)
            run(tmp_path, "snippet.py")
            num_run += 1
        elif commands := commands_of(text):
            headrace(tmp_path, *commands)
            num_run += len(commands)
    assert num_run >= 6
    assert (tmp_path / "runs/demo/summary.json").exists()
    assert (tmp_path / "curves.png").exists()


def test_the_page_on_networks_runs_from_top_to_bottom(tmp_path):
    page = (ROOT / "docs/networks.md").read_text(encoding="utf-8")
    script, commands = [], []
    for language, text in re.findall(r"```(python|bash)\n(.*?)```", page, re.DOTALL):
        named = re.match(r"# (\w+\.py)\n", text)
        if named:
            (tmp_path / named[1]).write_text(text)
        elif language == "python":
            script.append(shorter(text))
        else:
            for line in shorter(text).splitlines():
                # The installed command, which doesn't look into the current folder by itself.
                installed = Path(sys.executable).with_name("headrace")
                commands.append([str(installed), *shlex.split(line)[1:]])
    assert (len(script), len(commands)) == (4, 1)
    (load,) = re.findall(r"`(hr\.load\(.*?\))`", page)
    script += ["from my_torsos import Waves", load]
    (tmp_path / "script.py").write_text("\n".join(script))
    for command in (["script.py"], *commands):
        run(tmp_path, *command)
    assert (tmp_path / "runs/named/summary.json").exists()
    assert (tmp_path / "waves.onnx").exists()


def test_the_page_on_several_learners_runs(tmp_path):
    page = (ROOT / "docs/learners.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|bash)\n(.*?)```", page, re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "bash", "bash"]
    (tmp_path / "script.py").write_text(shorter(blocks[0][1], 10))
    again = 'import headrace as hr\nhr.resume("runs/two", num_learners=1, total_steps=100_000)'
    assert again.split("\n")[1] in page
    (tmp_path / "again.py").write_text(shorter(again, 10))
    for arguments in (["script.py"], ["again.py"]):
        run(tmp_path, *arguments)
    headrace(tmp_path, *commands_of(shorter(blocks[1][1])))
    assert len((tmp_path / "runs/two/iterations/rank_1.jsonl").read_text().splitlines()) > 3
    assert (tmp_path / "runs/two-impala/summary.json").exists()


@pytest.mark.slow  # studies/scaling/test_scaling.py runs a shorter one
def test_the_study_on_the_page_on_several_learners_runs(tmp_path):
    page = (ROOT / "docs/learners.md").read_text(encoding="utf-8")
    *_, study = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    assert study.startswith("headrace bench scaling ")
    run(tmp_path, "-m", "headrace", *shlex.split(shorter(study))[1:])
    assert (tmp_path / "runs/scaling/scaling.png").exists()


@pytest.mark.parametrize(
    ("name", "num_blocks", "writes"),
    [
        ("plan", 3, "plan.png"),
        ("ssa", 2, "runs/conjunction/summary.json"),
        pytest.param("orbital", 3, "runs/orbital/episode.mp4", marks=pytest.mark.full),
        ("report", 2, "runs/comparison.html"),
        pytest.param("doctor", 1, "runs/timid/report.html", marks=pytest.mark.draws),
    ],
)
def test_the_blocks_of_a_page_run_in_order(tmp_path, name, num_blocks, writes):
    page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|bash)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == num_blocks
    for language, whole in blocks:
        text = shorter(whole)
        if language == "bash":
            commands = commands_of(text)
            assert len(commands) == len(text.splitlines())
            headrace(tmp_path, *commands)
        else:
            (tmp_path / "script.py").write_text(text)
            run(tmp_path, "script.py")
    assert (tmp_path / writes).exists()


@pytest.mark.parametrize(
    ("name", "num_blocks", "writes"),
    [
        ("simulators_with_ports", 3, ["runs/line/summary.json", "runs/factory/summary.json"]),
        ("curriculum", 1, ["runs/ladder/summary.json", "runs/ladder/env_changes.jsonl"]),
        *few_of(
            [
                ("evaluation_sets", 2, ["runs/poles/summary.json", "runs/line/summary.json"]),
                ("custom_metrics", 4, ["runs/line/curve.png", "runs/logged/summary.json"]),
            ],
            [],
        ),
    ],
)
def test_the_scripts_and_commands_of_a_how_to_page_run(tmp_path, name, num_blocks, writes):
    page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|bash)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == num_blocks
    for language, whole in blocks:
        text = shorter(whole, 20)
        if language == "bash":
            commands = commands_of(text)
            assert len(commands) == len(text.splitlines())
            headrace(tmp_path, *commands)
        else:
            named = re.match(r"# (\w+\.py)\n", text)
            assert named, "a script begins with its name"
            (tmp_path / named[1]).write_text(text)
            run(tmp_path, named[1])
    for file in writes:
        assert (tmp_path / file).exists()


def test_the_page_on_the_doctor_has_every_rule():
    from headrace.doctor.rules import RULES, either

    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([\w-]+)` \| (.+) \| (.+) \|$", page, re.M)
    assert [(name, fix) for name, _, fix in table] == [(r.name, either(r.remedies)) for r in RULES]


@pytest.mark.parametrize("file", PAGES)
def test_json_in_the_commands_of_a_page_is_quoted_for_the_shell(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for code in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
        for argument in itertools.chain(*commands_of(code.replace("\\\n", " "))):
            if argument.startswith("{"):
                json.loads(argument)


@pytest.mark.parametrize("file", PAGES)
def test_links_to_files_point_to_files(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)]+)\)", text):
        name, _, heading = target.partition("#")
        page = (ROOT / file).parent / name if name else ROOT / file
        assert page.exists(), target
        titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M) if heading else []
        assert heading in ("", *(title.lower().replace(" ", "-") for title in titles)), target


def test_the_first_snippet_is_short_and_the_make_targets_exist():
    first = next(text for language, text in BLOCKS if language == "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 5
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert all(f"\n{target}:" in makefile for target in targets)


@pytest.mark.parametrize("file", PAGES)
def test_tests_that_a_page_names_are_there(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), (path, name)
