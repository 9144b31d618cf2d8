"""Documentation pages follow the writing guide: words, subjects, length of sentences and pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from english import num_words, page_problems, prose, sentences

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
GENERATED = {  # from stored runs; of any length in all
    f"docs/results/{name}.md"
    for name in ("impala", "impact", "ddppo", "clusterenv", "lesson", "peers", "index")
}
OTHERS = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]  # of any length
MOST_WORDS = 2_500
MOST_WORDS_IN_ALL = 38_000
MOST_WORDS_OF_README = 900


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_a_page_is_plain_english(page):
    assert not page_problems(text_of(page))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short(page):
    assert len(text_of(page).split()) <= MOST_WORDS


def test_the_readme_is_short():
    assert len(text_of("README.md").split()) <= MOST_WORDS_OF_README


def test_the_pages_are_short_in_all():
    written = [page for page in PAGES[1:] if page not in GENERATED]
    assert sum(len(text_of(page).split()) for page in written) <= MOST_WORDS_IN_ALL


def test_the_changelog_keeps_its_format():
    _, *releases = text_of("CHANGELOG.md").split("\n## ")
    assert releases
    assert all(re.match(r"\[(Unreleased\]|[\d.]+\] - \d{4}-\d\d-\d\d)\n", x) for x in releases)
    kinds = re.findall(r"^### (.*)$", "\n".join(releases), re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    entries = re.findall(r"^- (.*)$", "\n".join(releases), re.MULTILINE)
    assert not [entry for entry in entries if num_words(entry) > 30]


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("It begins anew.", "'anew' in: It begins anew."),
        ("| a | a film |\n", "'film' in: a film"),
        ("Fine. What can't change is refused.", "a clause as the subject: What can't change is"),
        ("- two\n- " + 41 * "word " + "\n", "41 words: word word"),
    ],
)
def test_problems_are_found(page, problem):
    (line,) = page_problems(page)
    assert line.startswith(problem)


@pytest.mark.parametrize(
    "page",
    [
        "```bash\n# a film, beside\n```\n",
        "`film` is a name, and [this](film.md) a link.",
        "## What is an actor?\n",
        " ".join(21 * ["Two words."]),
    ],
)
def test_code_links_and_questions_are_no_problems(page):
    assert not page_problems(page)


def test_a_page_is_taken_apart():
    page = (
        "# Head\n\nOne two.\nThree *four*. `x` is\nfive!\n\n| a | b |\n|---|---|\n- item\n- more\n"
    )
    assert list(prose(page)) == [
        "Head", "One two. Three *four*. `x` is five!", "a", "b", "---", "---", "item", "more",
    ]  # fmt: skip
    assert sentences(page)[:4] == ["Head", "One two.", "Three *four*.", "`x` is five!"]
    assert num_words("a/b two-three , four") == 3
