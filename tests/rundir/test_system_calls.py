"""Commands on untrusted run directories write nothing outside, by their system calls (strace).

``test_hostile.py`` sees what Python opens, and this also what libraries in C open.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rundir.test_hostile import COMMANDS, OUTPUTS, PRECIOUS, SIZES, link

import headrace as hr

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
OPENED = re.compile(r"= \d+<(.*)>$")
PLACE = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
READ_ONLY = {"access", "faccessat", "faccessat2", "stat", "lstat", "statx", "newfstatat",
             "readlink", "readlinkat", "execve", "chdir", "getcwd", "statfs", "getxattr",
             "lgetxattr", "inotify_add_watch"}  # fmt: skip
FOLLOWING = {"truncate", "chmod", "fchmodat", "fchmodat2", "chown", "fchownat", "utime", "utimes",
             "utimensat", "setxattr"}  # fmt: skip


def calls(log: Path) -> Iterator[str]:
    """Yield the system calls that succeeded, without process ids; joins interrupted ones."""
    begun: dict[str, str] = {}
    for line in log.read_text(errors="replace").splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[pid] = call.removesuffix("<unfinished ...>").rstrip()
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
            call = begun.pop(pid, "") + resumed[1]
        if "(" in call and not re.search(r"= -1 E\w+", call):
            yield call


def written(log: Path, cwd: Path) -> Iterator[str]:
    """Yield the real paths that were opened for writing, created, renamed or changed."""
    for call in calls(log):
        name, _, arguments = call.partition("(")
        if name in ("open", "openat", "openat2", "creat"):
            if (name == "creat" or WRITES.search(arguments)) and (path := OPENED.search(call)):
                yield path[1]
        elif name not in READ_ONLY:
            for folder, path in PLACE.findall(arguments):
                place = Path(folder or cwd, path)
                if name in FOLLOWING:
                    yield os.path.realpath(place)
                else:
                    yield str(Path(os.path.realpath(place.parent), place.name))


def traced(words: list[str], folder: Path) -> tuple[int, list[str]]:
    """Run a program under strace in ``folder``; return its exit status and what it wrote."""
    scratch, log = folder / "scratch", folder.parent / "strace.log"
    scratch.mkdir(exist_ok=True)
    homes = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")
    environment = os.environ | dict.fromkeys(homes, str(scratch)) | {"PYTHONDONTWRITEBYTECODE": "1"}
    strace = ["strace", "-f", "-y", "-qq", "-s", "4096", "-e", "trace=%file", "-o", str(log)]
    how = {"cwd": folder, "env": environment, "capture_output": True, "timeout": 300}
    done = subprocess.run([*strace, *words], check=False, **how)
    return done.returncode, list(written(log, folder))


def beyond(paths: list[str], folder: Path) -> list[str]:
    """Return the paths outside the run, its video, scratch files and devices."""
    allowed = (*(f"{folder}/{name}" for name in ("run", "video", "scratch")), "/dev/", "/proc/")
    return [path for path in paths if not path.startswith(allowed)]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "victim").write_text(PRECIOUS)
    return folder


@pytest.mark.parametrize(
    "code",
    [
        "open('run/link', 'w')",
        "import os; os.truncate('run/link', 0)",
        "import os; os.chmod('run/link', 0o600)",
        "import os; os.mkdir('../made')",
        "import os; os.rename('run/link', '../renamed')",
        "import os; os.open('victim', os.O_RDWR, dir_fd=os.open('..', os.O_RDONLY))",
    ],
)
def test_writes_outside_are_seen(folder, code):
    (folder / "run").mkdir()
    (folder / "run/link").symlink_to(folder.parent / "victim")
    status, paths = traced([sys.executable, "-c", code], folder)
    assert status == 0
    assert beyond(paths, folder)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_outside_an_untrusted_run(command, folder):
    run = folder / "run"
    hr.train(
        "CartPole-v1", "ppo", total_steps=32, run_dir=run, quiet=True, eval_episodes=1, **SIZES
    )
    for name in OUTPUTS:
        link(run, name, folder.parent / "victim")
    program = [sys.executable, "-m", "headrace", command, "run", *COMMANDS[command]]
    _, paths = traced(program, folder)
    assert beyond(paths, folder) == []
    assert (folder.parent / "victim").read_text() == PRECIOUS
    if command in ("report", "plot", "resume"):
        assert any(path.startswith(str(run)) for path in paths)
