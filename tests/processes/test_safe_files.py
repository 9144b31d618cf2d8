"""Files below a root are opened without following links, if they are regular and small enough."""

from __future__ import annotations

import ast
import errno
import os
import socket

import pytest

from headrace.processes import safe_files
from tests.layers import ROOT, files

PRECIOUS = b"precious\n" * 20


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "victim"
    file.write_bytes(PRECIOUS)
    yield file
    assert file.read_bytes() == PRECIOUS


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "inner").mkdir(parents=True)
    return tmp_path / "run"


def append(path, root):
    with safe_files.appended(path, root) as file:
        file.write(b"more")


def create(path, root):
    with safe_files.created(path, root) as file:
        file.write(b"new")


READING = {
    "read": lambda path, root: safe_files.read_bytes(path, 1000, root),
    "read lines": lambda path, root: list(safe_files.read_lines(path, root)),
    "read JSON": safe_files.read_json,
}
WRITING = {
    "append": append,
    "truncate": lambda path, root: safe_files.truncate(path, 0, root),
    "lock": lambda path, root: os.close(safe_files.lock_descriptor(path, root)),
}
ALL = READING | WRITING
KINDS = {
    "a link": lambda path, victim: path.symlink_to(victim),
    "a link to a device": lambda path, victim: path.symlink_to("/dev/zero"),
    "a dangling link": lambda path, victim: path.symlink_to(victim.with_name("missing")),
    "a pipe": lambda path, victim: os.mkfifo(path),
    "a folder": lambda path, victim: path.mkdir(),
    "a socket": lambda path, victim: bound(path),
}


def bound(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ALL)
def test_only_regular_files_are_opened(run, victim, how, kind):
    path = run / "inner" / "file"
    KINDS[kind](path, victim)
    with pytest.raises(OSError, match=r"a symbolic link|a pipe|a folder|a socket") as error:
        ALL[how](path, run)
    assert "link" in str(error.value) or kind.endswith(str(error.value).split()[-1])
    assert not victim.with_name("missing").exists()
    assert safe_files.status(path, run) is None


@pytest.mark.parametrize("how", ALL)
def test_no_folder_below_the_root_is_a_link(run, tmp_path, victim, how):
    (run / "inner").rmdir()
    (run / "inner").symlink_to(tmp_path)
    with pytest.raises(OSError, match="its folder inner is a symbolic link") as error:
        ALL[how](run / "inner" / "victim", run)
    assert error.value.errno == errno.ELOOP


def test_folders_that_are_links_are_not_written_in(run, tmp_path, victim):
    (run / "inner").rmdir()
    (run / "inner").symlink_to(tmp_path)
    before = sorted(tmp_path.iterdir())
    for change in (
        lambda: create(run / "inner" / "victim", run),
        lambda: safe_files.make_folder(run / "inner" / "more", run),
        lambda: safe_files.make_folders(run / "inner" / "more", run),
        lambda: safe_files.make_folder(run / "inner", run),
        lambda: safe_files.remove(run / "inner" / "victim", run),
        lambda: safe_files.replace(run / "inner" / "victim", run / "taken", run),
        lambda: safe_files.publish(run / "inner" / "victim", run / "taken", run),
        lambda: safe_files.sync(run / "inner", run),
    ):
        with pytest.raises(OSError, match="a symbolic link"):
            change()
    assert sorted(tmp_path.iterdir()) == before
    assert not safe_files.is_folder(run / "inner", run)


def test_links_above_the_root_are_followed(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    append(tmp_path / "link" / "inner" / "file", tmp_path / "link")
    assert (run / "inner" / "file").read_bytes() == b"more"


@pytest.mark.parametrize("how", ALL)
def test_a_link_that_appears_after_the_check_is_not_followed(run, victim, how, monkeypatch):
    (run / "file").symlink_to(victim)
    monkeypatch.setattr(safe_files, "_check_regular", lambda *_: None)
    with pytest.raises(OSError) as error:
        ALL[how](run / "file", run)
    assert error.value.errno == errno.ELOOP


@pytest.mark.parametrize("how", WRITING)
def test_a_file_with_a_second_name_is_only_read(run, victim, how):
    os.link(victim, run / "file")
    assert safe_files.read_bytes(run / "file", 1000, run) == PRECIOUS
    with pytest.raises(OSError, match="hard link"):
        WRITING[how](run / "file", run)


@pytest.mark.parametrize("make", [KINDS["a link"], lambda path, victim: os.link(victim, path)])
def test_a_link_is_replaced_and_not_followed(run, victim, make):
    make(run / "file", victim)
    create(run / "file", run)
    assert (run / "file").read_bytes() == b"new"
    assert not (run / "file").is_symlink()


def test_only_files_inside_are_removed(run, tmp_path, victim):
    (run / "inner" / "link").symlink_to(victim)
    (run / "inner" / "folder").symlink_to(tmp_path)
    safe_files.remove(run / "inner", run)
    safe_files.remove(run / "inner", run)  # already removed
    assert list(run.iterdir()) == []


def test_a_path_does_not_lead_out(run, victim):
    with pytest.raises(OSError, match="leads out"):
        safe_files.read_bytes(run / ".." / "victim", 1000, run)


def test_a_file_that_another_process_removes_first_is_no_error(run, monkeypatch):
    folder = run / "many"
    folder.mkdir()
    for name in "abcde":
        (folder / name).touch()
    names = os.listdir(folder)
    monkeypatch.setattr(safe_files.os, "listdir", lambda _: ["gone", *names])
    safe_files.remove(folder, run)
    assert not folder.exists()


@pytest.mark.parametrize("how", ["created", "replaced"])
def test_a_device_is_not_replaced(run, how, monkeypatch):
    """Uses a file that looks like a device, because only root can create or lose one."""
    device, other = run / "null", run / "other"
    device.write_text("of others")
    other.touch()
    monkeypatch.setattr(safe_files.stat, "S_ISCHR", lambda mode: True)
    with pytest.raises(OSError, match="it is "):
        safe_files.created(device) if how == "created" else safe_files.replace(other, device)
    assert device.read_text() == "of others"


def test_a_path_elsewhere_is_an_os_error(run):
    with pytest.raises(OSError, match="outside of"), safe_files.folder(run.parent / "x", run):
        pass


def test_sizes_are_checked_before_reading(run, monkeypatch):
    with (run / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    for read in READING.values():
        with pytest.raises(OSError, match="the limit"):
            read(run / "sparse", run)
    monkeypatch.setattr(safe_files, "LINE_BYTES", 10)
    (run / "line").write_bytes(b"short\n" + b"x" * 11)
    with pytest.raises(OSError, match="more than 10 bytes"):
        list(safe_files.read_lines(run / "line", run))


def test_a_file_without_a_size_has_a_limit_too():
    with pytest.raises(OSError, match="more than 2 bytes"):
        safe_files.read_bytes(safe_files.Path("/proc/self/stat"), 2)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "\udcff", "7" * 5000, ""])
def test_invalid_json_raises_a_value_error(run, text):
    (run / "file").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"."):
        safe_files.read_json(run / "file", run)


# -- nothing else opens files ----------------------------------------------------------------------

# Modules in which files of runs are read or written, and the calls there that open other files.
PARTS = ["rundir", "reporting", "evaluating", "games", "studies", "trainer", "integrations", "zoo"]
FORBIDDEN = {"open", "fdopen", "read_text", "write_text", "read_bytes", "write_bytes", "truncate",
             "symlink", "link", "rename", "rmtree", "savefig", "load_file", "save_file",
             "copyfile", "mkstemp"}  # fmt: skip
OTHERS = {
    ("rundir/files.py", "truncate"): "a file that is open already",
    ("rundir/import_allowlist.py", "read_bytes"): "the user's key",
    ("rundir/import_allowlist.py", "link"): "the user's key",
    ("rundir/machine_info.py", "read_text"): "/proc/cpuinfo",
    ("rundir/plot.py", "savefig"): "into memory",
    ("reporting/drawing.py", "savefig"): "into memory",
    ("reporting/page.py", "read_text"): "the page's template",
    ("studies/stopwatch.py", "open"): "/proc",
    ("studies/children.py", "read_text"): "a private temporary folder",
    ("studies/children.py", "write_text"): "a private temporary folder",
    ("studies/scaling/allreduce.py", "read_text"): "a private temporary folder",
    ("studies/scaling/allreduce.py", "write_text"): "a private temporary folder",
    ("integrations/hub.py", "write_text"): "a private temporary folder",
    ("integrations/hub.py", "copyfile"): "from the Hub's cache to a private temporary folder",
    ("zoo/__init__.py", "read_text"): "a file of the package",
}


def opens(source: str) -> set[str]:
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    ours = {"safe_files", "self", "league_writer"}
    names = {
        f.attr if isinstance(f, ast.Attribute) else f.id
        for f in calls
        if isinstance(f, ast.Name)
        or (isinstance(f, ast.Attribute) and ast.unparse(f.value) not in ours)
    }
    return names & FORBIDDEN


def test_files_of_runs_are_opened_here_only():
    found = set()
    for file in files([f"headrace/{part}" for part in PARTS]):
        name = file.relative_to(ROOT / "headrace").as_posix()
        found |= {(name, call) for call in opens(file.read_text())}
    assert found == set(OTHERS)


@pytest.mark.parametrize(
    "source", ["open(x)", "path.open()", "io.open(x)", "Path(x).read_text()", "os.truncate(x, 1)"]
)
def test_the_check_sees_files_that_are_opened(source):
    assert opens(source)
