"""The package itself: what importing it loads, what it offers, and its errors' place among Python's own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import metadata

import pytest

import pycoll


def test_import_is_light():
    program = (
        "import sys; sys.path[:] = sys.argv[1].split(':'); import pycoll; "
        "pycoll.init; pycoll.spawn; pycoll.Schedule; "
        "print([m for m in ('torch', 'matplotlib', 'typer', 'rich', 'cloudpickle') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, ":".join(sys.path)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_names():
    for name in pycoll.__all__:
        assert getattr(pycoll, name) is not None
    assert set(pycoll.__all__) <= set(dir(pycoll))
    with pytest.raises(AttributeError, match="no attribute 'all_reduce'"):
        _ = pycoll.all_reduce


def test_version():
    try:
        assert metadata.version("pycoll") == pycoll.__version__
    except metadata.PackageNotFoundError:
        assert pycoll.__version__.count(".") == 2


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (pycoll.InvalidArgument, ValueError),
        (pycoll.Mismatch, Exception),
        (pycoll.PeerLost, Exception),
        (pycoll.Timeout, TimeoutError),
        (pycoll.Aborted, Exception),
        (pycoll.Unsupported, NotImplementedError),
        (pycoll.ScheduleError, ValueError),
        (pycoll.TopologyError, Exception),
    ],
)
def test_errors(error, also):
    assert issubclass(error, pycoll.Error)
    assert issubclass(error, also)
    assert error.__module__ == "pycoll"
    assert error.__doc__
    copy = pickle.loads(pickle.dumps(error("what, who")))
    assert type(copy) is error
    assert str(copy) == "what, who"


def test_a_communicator_stays_where_it_is(alone):
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(alone)
