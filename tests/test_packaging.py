"""Packaging: pins for each Python, the source distribution, and its description."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
EXTRAS = ("box2d", "envpool", "dev", "bench")  # what make train, make test and benchmarks take
SHIPPED = ("benchmarks", "docs", "examples", "headrace", "headrace_ssa", "tests")
PINNED_BY_TORCH = re.compile("nvidia-|cuda-|triton")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def holds(requirement: Requirement, python: str) -> bool:
    """Return whether a module belongs to a package."""
    there = {"python_version": python, "python_full_version": f"{python}.1", "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(there)


def pins(python: str) -> dict[str, str]:
    """Return versions by name, and check that names are unique."""
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        requirement = None if line.startswith("#") else Requirement(line)
        if requirement is not None and holds(requirement, python):
            (exact,) = requirement.specifier
            name = canonicalize_name(requirement.name)
            assert exact.operator == "==", line
            assert name not in found, f"{name} is pinned twice for Python {python}"
            found[name] = exact.version
    return found


def ours(extras: tuple[str, ...]) -> list[Requirement]:
    """Return the requirements of pyproject.toml with some extras."""
    known = PROJECT["optional-dependencies"]
    asked = map(Requirement, [*PROJECT["dependencies"], *(r for e in extras for r in known[e])])
    return [
        found
        for one in asked
        for found in ([one] if one.name != PROJECT["name"] else ours(tuple(one.extras)))
    ]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_dependency_is_pinned_for_each_python(python):
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    pinned = pins(python)
    for requirement in ours(EXTRAS):
        if holds(requirement, python):
            version = pinned.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement} is not pinned for Python {python}"
            assert version in requirement.specifier, f"{requirement} is pinned to {version}"
    assert f"torch=={pinned['torch']}" in (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in pinned:  # what they need in turn, as far as it is installed here
        try:
            needs = [Requirement(text) for text in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue
        names = {canonicalize_name(r.name) for r in needs if holds(r, python)}
        missing = {n for n in names - pinned.keys() if not PINNED_BY_TORCH.match(n)}
        assert not missing, f"{name} needs {missing} on Python {python}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """The unpacked source distribution of this tree."""
    folder = tmp_path_factory.mktemp("sdist")
    caches = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=caches)
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, folder / "tree")
    build = "from setuptools import build_meta; print(build_meta.build_sdist('..'))"
    subprocess.run(
        [sys.executable, "-c", build], cwd=folder / "tree", check=True, capture_output=True
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


def test_the_source_distribution_holds_all_that_its_tests_need(sdist):
    def inside(root: Path) -> set[str]:
        return {str(f.relative_to(root)) for name in SHIPPED for f in (root / name).rglob("*")
                if f.is_file() and "__pycache__" not in f.parts and f.suffix != ".so"}  # fmt: skip

    assert inside(sdist) == inside(ROOT)
    for name in ("Makefile", "README.md", "constraints.txt", "pyproject.toml", "setup.py"):
        assert (sdist / name).read_bytes() == (ROOT / name).read_bytes()


def test_what_a_package_index_shows_has_no_relative_link(sdist):
    shown = (sdist / "PKG-INFO").read_text(encoding="utf-8")
    assert "Description-Content-Type: text/markdown" in shown
    prose = re.sub("```.*?```", "", shown, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)]*)\)", prose)
    assert links
    assert all(link.startswith(("https://", "#")) for link in links), links
    assert "Getting started (`docs/start.md`)" in prose


@pytest.mark.full
def test_tests_run_in_an_unpacked_source_distribution(sdist):
    files = ("tests/ops", "tests/rundir", "tests/spaces", "tests/test_imports.py")
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files]
    subprocess.run(run, cwd=sdist, check=True, env={"PYTHONPATH": str(sdist), "PATH": ""})
