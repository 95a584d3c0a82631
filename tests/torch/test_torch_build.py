"""Compiling the adapter: once for all processes, with errors that say what to do. The compiler is made up."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pycoll.torch import build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYCOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes each call and takes a while; what it makes is a file of text."""
    path = tmp_path / "slow-c++"
    path.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        "sleep 0.5\n"
        'while [ "$1" != -o ]; do shift; done\n'
        'echo adapter > "$2"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return tmp_path / "calls"


def test_one_process_compiles_and_the_others_wait(cache, compiler):
    line = [sys.executable, "-m", "pycoll.torch.build"]
    processes = [
        subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    results = [(*p.communicate(timeout=60), p.returncode) for p in processes]
    assert [code for *_, code in results] == [0, 0, 0]
    [path] = {Path(out.strip()) for out, _, _ in results}
    assert path.parent == cache
    assert path.read_text() == "adapter\n"
    assert len(compiler.read_text().splitlines()) == 1
    [notice] = [err for _, err, _ in results if err]  # one line, from the one that compiled
    assert notice.startswith("pycoll: compiling its adapter for torch")
    assert len(notice.splitlines()) == 1
    assert not [p for p in cache.iterdir() if p.name.startswith("building-")]


def test_the_command(cache, compiler):
    build.compiled()
    words = compiler.read_text().split()
    assert "-O2" in words
    assert "-march=native" not in words
    assert str(build.library()) in words


def test_a_change_of_the_sources_compiles_again(cache, compiler, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_require_core_of_these_headers", lambda: None)
    first = build.compiled()
    assert build.compiled() == first
    copy = tmp_path / "csrc"
    for name, text in build._with_headers(build._sources()).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(text)
    monkeypatch.setattr(build, "source_directory", lambda: copy)
    assert build.compiled() == first  # what counts is what the files say
    header = copy / "engine" / "communicator.h"  # part of what the adapter includes
    header.write_text(header.read_text() + "\n// changed\n")
    assert build.compiled() != first
    assert len(compiler.read_text().splitlines()) == 2


def test_no_compiler(cache, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RuntimeError, match=r"not on PATH(.|\n)*install g\+\+"):
        build.compiled()
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(RuntimeError, match="no-such-compiler"):
        build.compiled()


def test_a_compiler_that_fails(cache, tmp_path, monkeypatch, capsys):
    path = tmp_path / "bad-c++"
    path.write_text("#!/bin/sh\necho 'adapter.cpp:1: error: C++20 is unknown here' >&2\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(RuntimeError, match=r"bad-c\+\+(.|\n)*C\+\+20 is unknown here"):
        build.compiled()
    assert list(cache.glob("*.so")) == []
    assert list(cache.glob("building-*")) == []


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.delenv("PYCOLL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = build.cache_directory()
    assert path == tmp_path / f"pycoll-{os.getuid()}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o777)
    with pytest.raises(RuntimeError, match="PYCOLL_CACHE"):
        build.cache_directory()


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_compilation_ends_with_the_process_that_asked_for_it(cache, tmp_path, monkeypatch):
    path = tmp_path / "endless-c++"
    path.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nsleep 100 & echo $! >> {tmp_path}/pids; wait\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    process = subprocess.Popen([sys.executable, "-m", "pycoll.torch.build"], stderr=subprocess.DEVNULL)
    pids = tmp_path / "pids"
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60)
    process.kill()
    process.wait()

    def gone(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_for(lambda: all(gone(pid) for pid in pids.read_text().split()))
    assert list(cache.glob("building-*"))


def test_what_a_killed_compilation_left_is_removed(cache, compiler):
    cache.mkdir()
    target = build.compiled()
    target.unlink()
    left = cache / f"{build._building(target)}xyz"
    left.mkdir()
    (left / "adapter.cpp").write_text("half")
    others = cache / "building-other-1"  # may be under way
    others.mkdir()
    old = cache / "building-other-2"
    old.mkdir()
    os.utime(old, (0, 0))
    build.compiled()
    assert sorted(cache.glob("building-*")) == [others]


def test_a_timeout_ends_compiling_and_waiting_for_it(cache, compiler, monkeypatch):
    with pytest.raises(RuntimeError, match=r"timed out after (.|\n)*python -m pycoll.torch.build"):
        build.compiled(timeout=0.1)
    assert list(cache.glob("building-*")) == []
    target = cache / f"{build.MODULE_NAME}-{build._key()}.so"
    start = time.monotonic()
    lock = build._locked(target.with_suffix(".lock"), start + 10)
    with lock, pytest.raises(RuntimeError, match="another process is still compiling"):
        build.compiled(timeout=0.1)
    assert time.monotonic() - start < 2
    build.compiled(timeout=30)


def test_a_torch_that_is_too_old_is_refused(cache, compiler, monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.12.1+cpu")
    with pytest.raises(
        RuntimeError, match=r"supports torch 2\.13 to 2\.\d+; this is torch 2\.12\.1\+cpu: pip"
    ):
        build.load()
    assert not compiler.exists()


def test_a_torch_that_is_too_new_is_said_to_be(cache, compiler, tmp_path, monkeypatch, capsys):
    sentence = r"supports torch 2\.13 to 2\.\d+; this is torch 2\.99\.0\.dev1"
    monkeypatch.setattr("torch.__version__", "2.99.0.dev1")
    build.compiled()  # it may work
    assert re.search(sentence, capsys.readouterr().err)
    path = tmp_path / "bad-c++"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setenv("PYCOLL_CACHE", str(tmp_path / "other"))
    with pytest.raises(RuntimeError, match=f"{sentence}(.|\\n)*failed; the command was"):
        build.compiled()


def test_the_documentation_names_the_versions_of_torch():
    document = Path(__file__).parents[2] / "docs" / "torch.md"
    oldest, newest = (f"{major}.{minor}" for major, minor in build.TORCH)
    assert f"torch {oldest} to {newest}" in document.read_text()
    assert build.unsupported_torch() == ""


def test_a_core_of_other_headers_is_refused(cache, monkeypatch):
    monkeypatch.setattr("pycoll._core.headers", "0" * 64)
    with pytest.raises(RuntimeError, match=r"was made from other sources than those in .*: install again"):
        build.compiled()


def test_a_cache_that_cannot_be_is_named(monkeypatch):
    monkeypatch.setenv("PYCOLL_CACHE", "/proc/no such folder")
    with pytest.raises(RuntimeError, match=r"PYCOLL_CACHE=/proc/no such folder: the folder cannot be made"):
        build.cache_directory()
