"""Adds the README without relative links as the long description of pyproject.toml."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from setuptools import Extension, setup

LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
NOTE = "*Files named here are part of the source distribution.*"


def for_index(readme: str) -> str:
    """Return Markdown with images and relative links replaced by their text and file name."""

    def name(link: re.Match[str]) -> str:
        text, file = link.groups()
        return text if text == file else f"{text} (`{file}`)"

    parts = re.split(r"(```.*?```)", readme, flags=re.DOTALL)  # code stays as it is
    title, _, rest = "".join(
        part if part.startswith("```") else LINK.sub(name, part) for part in parts
    ).partition("\n")
    return f"{title}\n\n{NOTE}\n{rest}"


SOURCES = Path(__file__).with_name("headrace") / "native"
FILES = sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.inc")])
SUM = zlib.crc32(b"".join(path.read_bytes() for path in FILES))
DENSE = Extension(
    "headrace.native._dense",
    ["headrace/native/dense.c"],
    depends=[str(path) for path in FILES],
    define_macros=[("SOURCES", f"{SUM}LL")],  # library.py leaves a library of other sources alone
    extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
    libraries=["m"],
    optional=True,  # without a compiler, torch computes the same
)

setup(
    ext_modules=[DENSE],
    long_description=for_index(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
