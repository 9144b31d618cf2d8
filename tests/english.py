"""Word list and sentence lengths of the writing guide: python tests/english.py docs/start.md

Prints the phrases of the list, and the twenty longest sentences, of Markdown files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

DIALECT = [
    r"\banew\b",
    r"\bas it comes\b",
    r"(?<!`)\bbeside\b(?!`)",
    r"\bbut for\b",
    r"\bends? the run\b",
    r"\b(films?|illness(es)?)\b",
    r"\bfor it is\b",
    r"\bgo(es)? on\b",
    r"\b(is|are|was|were) told\b",
    r"(?<!there )\bis no (?!longer)",
    r"\blearnt\b",
    r"\b(mended|mends?)\b",
    r"\b(nobody|somebody)\b",
    r"\bof (its|one's|their) own\b",
    r"\b(says so|tells of|tell of)\b",
]
PATTERN = re.compile(  # all begin a word, which is searched for once
    rf"\b(?:{'|'.join(DIALECT)})", re.IGNORECASE
)
# Pages also avoid these; in code they may be names of the field (a figure of matplotlib).
PAGES_ONLY = [r"\bpictures?\b", r"\balike\b", r"\b(said|shown|seen) of\b"]
PAGES_ONLY += [r"\bfigures?\b(?! [A-Z]?\d)"]  # except numbered figures of papers
PAGES_ONLY += [r"\boptimizers?\b"]  # British spelling; `optimizer` is a setting
PAGE_PATTERN = re.compile("|".join([*DIALECT, *PAGES_ONLY]), re.IGNORECASE)
RELATIVE_SUBJECT = re.compile(r"^(What|Who|Whoever|Whether|Whose)\b.*\.\)?$")
LONGEST_SENTENCE = 40  # words

_CODE_BLOCK = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_NO_TEXT = re.compile(
    r"<!--.*?-->|<[^>\n]+>|^:::.*$|^ +(options|members|filters):.*$", re.MULTILINE
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_MARK = re.compile(r"^\s*([-*+]|\d+\.|#+|>|!!!\s*\w*)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_A-Z0-9`])")


def prose(markdown: str) -> Iterator[str]:
    """Yield the paragraphs, list items, headings and table cells, with code as `x`."""
    text = _CODE_BLOCK.sub("\n\n", markdown)
    text = re.sub(r"`+[^`\n]+`+", "`x`", text)
    text = _LINK.sub(r"\1", _NO_TEXT.sub("", text))
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_row = line.lstrip().startswith("|")
        if (not line.strip() or is_row or _MARK.match(line)) and block:
            yield " ".join(block)
            block = []
        if is_row:
            yield from (cell.strip() for cell in line.strip().strip("|").split("|"))
        elif line.strip():
            block.append(_MARK.sub("", line).strip())


def sentences(markdown: str) -> list[str]:
    """Return the sentences of a page."""
    return [s for block in prose(markdown) for s in _SENTENCE_END.split(block) if s.strip()]


def num_words(sentence: str) -> int:
    """Return the number of words, where ``a/b`` and ``a-b`` are one."""
    return len(re.findall(r"[^\s]*\w[^\s]*", sentence))


def page_problems(markdown: str) -> list[str]:
    """Return phrases of the word list, clauses as subjects and long sentences of a page."""
    problems = []
    for sentence in sentences(markdown):
        problems += [f"{m[0]!r} in: {sentence}" for m in PAGE_PATTERN.finditer(sentence)]
        if RELATIVE_SUBJECT.match(sentence):
            problems.append(f"a clause as the subject: {sentence}")
        if num_words(sentence) > LONGEST_SENTENCE:
            problems.append(f"{num_words(sentence)} words: {sentence}")
    return problems


def report(paths: list[Path]) -> None:
    """Print each page's problems, and the twenty longest sentences of all pages."""
    ranked = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for problem in page_problems(text):
            print(f"{path}: {problem}")
        ranked += [(num_words(s), str(path), s) for s in sentences(text)]
    print("\nlongest sentences:")
    for words, name, sentence in sorted(ranked, reverse=True)[:20]:
        print(f"{words:4d} {name}: {sentence}")


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    names = sys.argv[1:] or [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    report([Path(name) for name in names])
