"""Runs commands on damaged directories, and checks that they end with a result or an error.

A trial copies a small run, sweep, population or league, damages one of its files or folders (cut,
changed bits, swapped, replaced by a link, a pipe, a folder, other data, or made very large), and
runs one command. It fails if the command hangs, crashes, fails without a one-line message, uses
over 2 GB, or changes anything outside the directory. The same seed, number and kinds draw the
same trial, except for time-dependent values. The damaged directory of a failed trial is kept.

    python benchmarks/fuzz_runs.py --trials 500
    python benchmarks/fuzz_runs.py --seed 7 --trial 31   repeat one trial
    python benchmarks/fuzz_runs.py --kinds sweep league
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro
from fuzz_trials import ended, import_early

from headrace.cli import main as command

SIZES = ("--transport=serial", "--num-actors=1", "--fragment-length=16")
CARTPOLE = ("ppo", "--env-id=CartPole-v1", "--envs-per-actor=4", *SIZES)
SWEEP = ("sweep", *CARTPOLE, "--total-steps=128", "--sample=learning-rate=loguniform:1e-4,1e-2",
         "--sampler=random", "--eval-episodes=0", "--output=DIR")  # fmt: skip
POPULATION = ("pbt", *CARTPOLE, "--members=2", "--interval=64", "--burn-in=0", "--threshold=1",
              "--eval-episodes=1", "--output=DIR")  # fmt: skip
POKER = ("ppo", "--env-id=OpenSpiel/kuhn_poker-v0", "--envs-per-actor=4", *SIZES,
         "--opponents=latest:0.5,uniform:0.5", "--eval-episodes=0")  # fmt: skip
TRAIN = {  # by kind of directory
    "run": ("train", *CARTPOLE, "--total-steps=576", "--eval-episodes=2", "--eval-interval=256",
            "--run-dir=DIR"),
    "sweep": (*SWEEP, "--trials=2"),
    "population": (*POPULATION, "--total-steps=128"),
    "league": ("train", *POKER, "--total-steps=512", "--league=DIR", "--run-dir=NEW"),
}  # fmt: skip
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "run": {
        "report": ("report", "DIR"),
        "doctor": ("doctor", "DIR"),
        "plot": ("plot", "DIR"),
        "evaluate": ("evaluate", "DIR", "--episodes=1"),
        "resume": ("resume", "DIR", "--total-steps=1152", "--eval-episodes=0"),
        "init from": ("train", *CARTPOLE, "--init-from=DIR", "--total-steps=64",
                      "--eval-episodes=0", "--run-dir=NEW"),
        "score": ("score", "DIR"),
        "play": ("play", "DIR", "--episodes=1", "--video=NEW"),
    },
    "sweep": {"continue": (*SWEEP, "--trials=3"), "score": ("score", "DIR")},
    "population": {"continue": (*POPULATION, "--total-steps=192")},
    "league": {
        "rate": ("league", "DIR"),
        "play": ("league", "DIR", "--episodes=2"),
        "join": ("train", *POKER, "--total-steps=512", "--league=DIR", "--run-dir=NEW"),
    },
}  # fmt: skip
_LIMIT_S = 180.0


@dataclass(frozen=True)
class Args:
    trials: int = 500
    """Number of trials."""
    seed: int = 0
    """Random seed of the trials."""
    trial: int | None = None
    """Repeat only this trial, and print its output."""
    kinds: tuple[str, ...] = ("run", "sweep", "population", "league")
    """Kinds of directories to draw from."""
    output: Path = Path("results/fuzz_runs")
    """Folder of the damaged directories of failed trials."""


def main(args: Args) -> int:
    """Run trials; returns 0 if none failed."""
    import_early()
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        made = {kind: trained(kind, Path(folder)) for kind in args.kinds}
        for number in range(args.trials) if args.trial is None else [args.trial]:
            rng = random.Random(f"{args.seed} {number}")
            kind = rng.choice(args.kinds)
            what, problem, output = trial(kind, made[kind], Path(folder) / "trial", rng)
            ends[problem or "ok"] += 1
            if problem or args.trial is not None:
                again = f"--seed {args.seed} --trial {number} --kinds {' '.join(args.kinds)}"
                print(f"{again}: {what}: {problem}")
                print("\n".join(f"    {x[:200]}" for x in output.splitlines()[-12:]), flush=True)
            if problem:
                args.output.mkdir(parents=True, exist_ok=True)
                kept = args.output / f"{args.seed}_{number}"
                shutil.rmtree(kept, ignore_errors=True)
                copied(Path(folder) / "trial" / "damaged", kept)
    print(f"{sum(ends.values())} trials: {dict(ends)}")
    return int(bool(set(ends) - {"ok"}))


def trained(kind: str, folder: Path) -> Path:
    """Train a small run, sweep, population or league to damage."""
    path = folder / kind
    end = ended(lambda: int(command(words(TRAIN[kind], path, folder / "new")) or 0), _LIMIT_S)
    assert end.status == 0, end.output
    return path


def words(template: tuple[str, ...], directory: Path, new: Path) -> list[str]:
    """Fill in the paths of a command."""
    return [word.replace("DIR", str(directory)).replace("NEW", str(new)) for word in template]


def trial(
    kind: str, original: Path, folder: Path, rng: random.Random
) -> tuple[str, str | None, str]:
    """Damage a copy and run a command; return what was done, the problem, and the output."""
    shutil.rmtree(folder, ignore_errors=True)
    copy, outside, damaged = folder / kind, folder / "outside", folder / "damaged"
    outside.mkdir(parents=True)
    for name in ("precious", "config.json", "metrics.jsonl"):
        (outside / name).write_text("precious\n" * 50)
    shutil.copytree(original, copy, symlinks=True)
    path, name = damage(copy, outside, rng)
    if rng.random() < 0.5:
        signed(copy)
    copied(copy, damaged)
    before = digest(outside)
    which = rng.choice(list(COMMANDS[kind]))
    given = words(COMMANDS[kind][which], copy, folder / "new")

    def run_command() -> int:
        os.chdir(folder)
        return int(command(given) or 0)

    end = ended(run_command, _LIMIT_S)
    problem = end.problem
    if digest(outside) != before:
        problem = "changed files outside"
    return f"{name} {path.relative_to(copy.parent)}, {which}", problem, end.output


def copied(source: Path, target: Path) -> None:
    """Copy a folder, with its links, pipes and holes."""
    subprocess.run(["cp", "-a", "-T", "--sparse=always", source, target], check=True)


def damage(directory: Path, outside: Path, rng: random.Random) -> tuple[Path, str]:
    """Damage something in a directory; return its path, and how it was damaged."""
    paths = sorted(p for p in directory.rglob("*") if not p.is_symlink())
    while True:  # until something has changed
        path, name = rng.choice(paths), rng.choice(list(DAMAGES))
        before = _content(path)
        DAMAGES[name](path, outside, rng)
        if _content(path) != before:
            return path, name


def _content(path: Path) -> tuple[int, bytes] | None:
    """Return the mode, and a file's first bytes or a folder's names; None if missing."""
    if not os.path.lexists(path):
        return None
    mode, data = path.lstat().st_mode, b""
    if stat.S_ISREG(mode):
        with path.open("rb") as file:
            data = file.read(1 << 26)
    elif stat.S_ISDIR(mode):
        data = repr(sorted(os.listdir(path))).encode()
    return mode, data


def digest(folder: Path) -> dict[str, str]:
    """Return a checksum of each file below a folder."""
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*")}


def signed(directory: Path) -> None:
    """Write checksums that match the damaged files, as an attacker would."""
    for sums in directory.rglob("SHA256SUMS"):
        if sums.is_symlink() or not sums.is_file():
            continue
        lines = []
        for line in sums.read_text("utf-8", "replace").splitlines():
            words = line.split()
            file = sums.parent / words[-1] if words else sums
            if len(words) == 2 and file.is_file() and file.stat().st_size < 1 << 24:
                line = f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {words[1]}"
            lines.append(line)
        sums.write_text("\n".join(lines) + "\n")


def _replaced(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _cut(path: Path, outside: Path, rng: random.Random) -> None:
    if path.is_file():
        data = path.read_bytes()
        path.write_bytes(data[: rng.randint(0, len(data))])


def _flip(path: Path, outside: Path, rng: random.Random) -> None:
    if path.is_file() and (data := bytearray(path.read_bytes())):
        for _ in range(rng.choice((1, 1, 10))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


def _swap(path: Path, outside: Path, rng: random.Random) -> None:
    files = sorted(p for p in path.parent.iterdir() if p.is_file())
    if path.is_file():
        shutil.copyfile(other, path) if (other := rng.choice(files)) != path else None


def _link(path: Path, outside: Path, rng: random.Random) -> None:
    _replaced(path)
    target = outside / rng.choice(("precious", "config.json", "metrics.jsonl", "absent"))
    path.symlink_to(rng.choice((target, outside, Path("/dev/zero"), Path("/dev/full"), path)))


def _pipe(path: Path, outside: Path, rng: random.Random) -> None:
    _replaced(path)
    os.mkfifo(path)


def _folder(path: Path, outside: Path, rng: random.Random) -> None:
    _replaced(path)
    path.mkdir()


def _huge(path: Path, outside: Path, rng: random.Random) -> None:
    if path.is_file():
        os.truncate(path, 3 << 30)


def _foreign(path: Path, outside: Path, rng: random.Random) -> None:
    if path.is_file():
        path.write_bytes(rng.choice((
            b"", b"\0" * 1000, b"\xff\xfe" * 99, b"[1, 2]\n", b"null\n", b"7\n", b'{"a": NaN}\n',
            b"[" * 100_000, b'{"env_steps": "x"}\n', b"\x80\x04K\x01.", rng.randbytes(5000),
        )))  # fmt: skip


def _values(path: Path, outside: Path, rng: random.Random) -> None:
    """Replace a value somewhere in JSON."""
    if path.suffix not in (".json", ".jsonl") or not path.is_file():
        _cut(path, outside, rng)
        return
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = rng.randrange(len(lines)) if lines else 0
    if lines:
        value = json.loads(lines[at])
        lines[at] = json.dumps(_changed(value, rng))
    path.write_text("\n".join(lines) + "\n")


def _changed(value: object, rng: random.Random) -> object:
    strange = (
        None,
        -1,
        10**30,
        1e308,
        "",
        "\x1b]0;x\x07",
        [],
        {},
        "a" * 10_000,
        True,
        float("nan"),
    )
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return value | {key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(strange)


DAMAGES: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "cut": _cut, "flip": _flip, "swap": _swap, "link": _link, "pipe": _pipe, "folder": _folder,
    "huge": _huge, "foreign": _foreign, "values": _values, "more values": _values,
    "remove": lambda path, outside, rng: _replaced(path),
}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
