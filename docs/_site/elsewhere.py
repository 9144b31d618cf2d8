"""Runs the snippets of other libraries in docs/migrating.md: python docs/_site/elsewhere.py FOLDER

Each library gets a separate virtual environment in FOLDER, with the versions that the page names.
Each snippet runs with 20,000 steps. If one fails, its output is printed and the script stops.
Missing packages and CleanRL's single file are downloaded. ``make test-elsewhere`` calls this.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

PAGE = Path(__file__).parents[1] / "migrating.md"
CLEANRL = "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"
SINGLE_FILE = f"https://raw.githubusercontent.com/vwxyzjn/cleanrl/{CLEANRL}/cleanrl/ppo.py"
TORCH = "torch==2.13.0"
PACKAGES = {
    "CleanRL": (TORCH, "gymnasium==0.29.1", "numpy==1.26.4", "tensorboard", "tyro"),
    "RLlib": (TORCH, "ray[rllib]==2.60.0"),
    "Sample Factory": (TORCH, "gymnasium==0.29.1", "numpy==1.26.4", "sample-factory==2.1.1"),
}
_ENDED = re.compile(
    r"^\(0, [\d.]+\)$", re.MULTILINE
)  # last line of Sample Factory's evaluation, which exits with status 1


def blocks(library: str) -> list[list[str]]:
    """Return the commands of a library's snippets: Python programs and shell lines."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^## {library}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section, f"{PAGE} has no section on {library}"
    short = re.sub(r"(timesteps |env_steps=|< )\d[\d_]+", r"\g<1>20000", section[1])
    found = []
    for language, code in re.findall(r"^```(\w*)\n(.*?)^```", short, re.DOTALL | re.MULTILINE):
        if language == "python" and "import headrace" not in code:
            found.append(["python", "-c", code])
        elif language == "":
            lines = code.replace("\\\n", " ").splitlines()
            found += [shlex.split(line) for line in lines]
    return found


def python_of(folder: Path, library: str) -> Path:
    """Return the interpreter of a library's environment, and create the environment if missing."""
    home = folder / library.replace(" ", "-").lower()
    python = home / "bin/python"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES[library]], check=True)
        (home / "installed").touch()
    return python


def main(folder: Path) -> None:
    """Run the snippets of all libraries."""
    for library in PACKAGES:
        python = python_of(folder.resolve(), library)
        with tempfile.TemporaryDirectory() as place:
            if library == "CleanRL":
                kept = folder / "ppo.py"
                if not kept.exists():
                    kept.write_bytes(urllib.request.urlopen(SINGLE_FILE, timeout=60).read())
                (Path(place) / "ppo.py").write_bytes(kept.read_bytes())
            for _, *arguments in blocks(library):
                done = subprocess.run([python, *arguments], cwd=place, timeout=600, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
                if done.returncode and not _ENDED.search(done.stdout):
                    sys.exit(f"{done.stdout}\n{library}: {arguments[:2]} failed")
                print(f"{library}: {arguments[1][:40].splitlines()[0]} ran")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
