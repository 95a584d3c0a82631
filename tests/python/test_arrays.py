"""Arrays as people have them: strided, empty, read-only, of other libraries; and what cannot be one."""

from __future__ import annotations

import array
import ctypes

import ml_dtypes
import numpy as np
import pytest

import pycoll


def doubled(comm, x, **how):
    """In place on two ranks with equal input: twice the input."""
    before = np.asarray(x).copy()
    assert comm.allreduce(x, **how) is x
    np.testing.assert_array_equal(np.asarray(x), before * 2)


class TestStridedNumpy:
    def test_in_every_collective(self, on_threads):
        def run(comm):
            n, rank = comm.ranks, comm.rank

            x = np.arange(24.0).reshape(4, 6)[:, ::2] + rank  # (4, 3)
            x = np.repeat(x, 2, axis=1)[:, ::2]
            assert not x.flags.c_contiguous
            whole = [x.copy() - rank + r for r in range(n)]
            hole = np.full((8, 6), -1.0)
            out = hole[::2, 1::2]
            comm.allreduce(x, out=out)
            np.testing.assert_array_equal(out, sum(whole))
            assert (hole[1::2] == -1).all()  # between the strides nothing is written
            assert (hole[:, ::2] == -1).all()
            y = x.copy()[:, ::-1]
            comm.allreduce(y)
            np.testing.assert_array_equal(y, sum(whole)[:, ::-1])
            t = np.asfortranarray(x)
            comm.allreduce(t)
            np.testing.assert_array_equal(t, sum(whole))
            np.testing.assert_array_equal(comm.all_gather(x), np.concatenate(whole))
            rows = slice(rank * 4 // n, (rank + 1) * 4 // n)
            np.testing.assert_array_equal(comm.reduce_scatter(x), sum(whole)[rows])
            np.testing.assert_array_equal(
                comm.all_to_all(x), np.concatenate([whole[r][rows] for r in range(n)])
            )
            y = np.repeat(x, 2, axis=1)[:, ::2]
            comm.broadcast(y, root=1)
            np.testing.assert_array_equal(y, whole[1])
            y = np.repeat(x, 2, axis=1)[:, ::2]
            comm.reduce(y, root=1)
            np.testing.assert_array_equal(y, sum(whole) if rank == 1 else whole[rank])
            got = comm.gather(x, root=1)
            if rank == 1:
                np.testing.assert_array_equal(got, np.concatenate(whole))
            part = np.zeros((4 // n, 6))[:, ::2]
            comm.scatter(x if rank == 1 else None, root=1, out=part)
            np.testing.assert_array_equal(part, whole[1][rows])

        on_threads(2, run)

    def test_broadcast_input_is_read_but_never_written(self, on_threads):
        def run(comm):
            one = np.broadcast_to(np.array([1.0, 2.0]), (3, 2))
            out = np.empty((3, 2))
            comm.allreduce(one, out=out)
            np.testing.assert_array_equal(out, np.array(one) * 2)
            with pytest.raises(pycoll.InvalidArgument, match="read-only"):
                comm.allreduce(one)
            windows = np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3, writeable=True)
            with pytest.raises(pycoll.InvalidArgument, match="share memory"):
                comm.allreduce(windows)

        on_threads(2, run)

    def test_overlapping_input_and_output(self, on_threads):
        def run(comm):
            base = np.arange(10.0)
            comm.allreduce(base[:8], out=base[2:])
            np.testing.assert_array_equal(base[2:], np.arange(8.0) * 2)
            base = np.arange(6.0)
            comm.all_gather(base[1:4], out=base)
            np.testing.assert_array_equal(base, [1, 2, 3, 1, 2, 3])

        on_threads(2, run)


class TestTorch:
    @pytest.fixture(autouse=True)
    def _torch(self):
        pytest.importorskip("torch")

    def test_strided(self, on_threads):
        import torch

        def run(comm):
            doubled(comm, torch.arange(8.0).view(4, 2)[:, 0])
            doubled(comm, torch.arange(6.0).view(3, 2).t())
            doubled(comm, torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last))
            doubled(comm, torch.tensor(3.0))
            doubled(comm, torch.empty(0, 3))
            doubled(comm, torch.arange(3.0, dtype=torch.float64).flip(0))
            with pytest.raises(pycoll.InvalidArgument, match=r"share memory.*expanded"):
                comm.allreduce(torch.ones(1).expand(4))
            out = torch.empty(4)
            assert comm.allreduce(torch.ones(1).expand(4), out=out) is out
            assert out.tolist() == [2, 2, 2, 2]
            whole = comm.all_gather(torch.arange(6.0).view(3, 2).t())
            assert type(whole) is torch.Tensor
            assert whole.tolist() == [[0, 2, 4], [1, 3, 5]] * 2

        on_threads(2, run)

    def test_dtypes(self, on_threads):
        import torch

        names = [name for name in pycoll._core.dtypes() if not name.startswith("float8")]

        def run(comm):
            for name in names:
                dtype = getattr(torch, name)
                x = torch.tensor([comm.rank, 1], dtype=dtype)
                comm.allreduce(x)
                assert x.tolist() == torch.tensor([1, 2]).to(dtype).tolist(), name
                x = torch.tensor([comm.rank, 1, 0, 1], dtype=dtype)
                assert comm.all_gather(x).tolist() == [0, 1, 0, 1, 1, 1, 0, 1]
            for name in ("float8_e4m3fn", "float8_e5m2"):
                x = torch.tensor([1.0, 0.5]).to(getattr(torch, name))
                comm.allreduce(x)
                assert x.float().tolist() == [2, 1]

        on_threads(2, run)

    def test_lazy_conjugation_and_negation(self, on_threads):
        import torch

        def run(comm):
            x = torch.tensor([1 + 2j, 3 - 1j])
            out = torch.empty(2, dtype=torch.complex64)
            comm.allreduce(x.conj(), out=out)
            assert out.tolist() == [2 - 4j, 6 + 2j]
            view = x.clone().conj()
            comm.allreduce(view)
            assert view.tolist() == [2 - 4j, 6 + 2j]
            imaginary = torch.tensor([1 + 2j]).conj().imag
            assert imaginary.is_neg()
            assert comm.allreduce(imaginary, out=torch.empty(1)).tolist() == [-4]

        on_threads(2, run)

    def test_parameters_gradients_and_mixed_libraries(self, on_threads):
        import torch

        def run(comm):
            weight = torch.nn.Parameter(torch.ones(3))
            comm.allreduce(weight)
            assert weight.tolist() == [2, 2, 2]
            (weight.sum() * (comm.rank + 1)).backward()
            comm.allreduce(weight.grad, "avg")
            assert weight.grad.tolist() == [1.5, 1.5, 1.5]
            strided = torch.ones(4, requires_grad=True)
            comm.allreduce(strided.detach()[::2])
            assert strided.tolist() == [2, 1, 2, 1]
            out = np.empty(3, np.float32)
            comm.allreduce(torch.ones(3), out=out)
            assert out.tolist() == [2, 2, 2]
            assert comm.allreduce(torch.ones(3), torch.distributed.ReduceOp.PRODUCT).tolist() == [1, 1, 1]

        on_threads(2, run)

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_what_has_no_memory_in_the_host(self, alone):
        import torch

        class Wrapper(torch.Tensor):  # what DTensor and FakeTensor are
            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                raise NotImplementedError

        wrapper = torch.Tensor._make_wrapper_subclass(Wrapper, (3,))
        for x, reason in [
            (torch.ones(3, device="meta"), "meta"),
            (torch.eye(3).to_sparse(), "sparse"),
            (torch.eye(3).to_sparse_csr(), "sparse"),
            (wrapper, "Wrapper"),
            (torch.ones(3, dtype=torch.complex32), "complex32"),
            (torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8), "qint8"),
        ]:
            with pytest.raises(pycoll.Unsupported, match=reason):
                alone.allreduce(x)


class DlpackOnly:
    """An array of a library that has DLPack alone."""

    def __init__(self, values, device=1):
        self.values = values
        self.device = device

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device, 0


def test_buffer_protocol_and_dlpack(on_threads):
    def run(comm):
        x = array.array("d", [1, 2, 3])
        assert comm.allreduce(x) is x
        assert x.tolist() == [2, 4, 6]
        x = bytearray(b"\x01\x02")
        comm.allreduce(x)
        assert x == b"\x02\x04"
        x = (ctypes.c_int32 * 2)(5, 6)
        comm.allreduce(x)
        assert list(x) == [10, 12]
        assert comm.all_gather(b"ab").tobytes() == b"abab"
        with pytest.raises(pycoll.InvalidArgument, match="read-only"):
            comm.allreduce(b"ab")
        held = np.arange(3.0)
        comm.allreduce(DlpackOnly(held))
        assert held.tolist() == [0, 2, 4]

    on_threads(2, run)


def test_extension_dtypes(on_threads):
    def run(comm):
        for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            doubled(comm, np.array([1, 2, 0.5], dtype))
            doubled(comm, np.array([1, 9, 2, 9], dtype)[::2])

    on_threads(2, run)


class CudaArray:
    @property
    def __cuda_array_interface__(self):
        return {}


@pytest.mark.parametrize(
    ("x", "error", "says"),
    [
        (3.0, pycoll.InvalidArgument, "scalar.*numpy.array"),
        (True, pycoll.InvalidArgument, "scalar"),
        (np.float32(3), pycoll.InvalidArgument, "scalar"),
        ([1, 2], pycoll.InvalidArgument, "list.*numpy.array"),
        (None, pycoll.InvalidArgument, "NoneType"),
        ("text", pycoll.InvalidArgument, "str"),
        (np.ma.masked_array([1.0]), pycoll.InvalidArgument, "mask"),
        (np.zeros(2, ">f4"), pycoll.InvalidArgument, "byte order"),
        (np.zeros(2, object), pycoll.Unsupported, "object"),
        (np.zeros(2, "M8[s]"), pycoll.Unsupported, "datetime64"),
        (np.zeros(2, [("a", "f4")]), pycoll.Unsupported, "float32"),
        (np.zeros(2, "V4"), pycoll.Unsupported, "only"),
        (np.zeros(2, np.longdouble), pycoll.Unsupported, "float"),
        (np.zeros(2, "U3"), pycoll.Unsupported, "U3"),
        (np.zeros(2, ml_dtypes.int4), pycoll.Unsupported, "int4"),
        (DlpackOnly(np.zeros(2), device=2), pycoll.Unsupported, "host"),
        (CudaArray(), pycoll.Unsupported, "GPU"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_array(alone, x, error, says):
    with pytest.raises(error, match=says) as caught:
        alone.allreduce(x)
    assert "allreduce on rank 0 of 1" in str(caught.value)
    with pytest.raises(error):
        alone.broadcast(x)
    with pytest.raises(error):
        alone.all_gather(x)
    alone.allreduce(np.zeros(1))  # nothing was sent, the group is as it was


def test_out_that_does_not_fit(alone):
    with pytest.raises(pycoll.InvalidArgument, match=r"x holds float64 and out float32"):
        alone.allreduce(np.zeros(3), out=np.zeros(3, np.float32))
    with pytest.raises(pycoll.InvalidArgument, match=r"out has 4 elements, and from x's 3 come 3"):
        alone.allreduce(np.zeros(3), out=np.zeros(4))
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(pycoll.InvalidArgument, match="out is read-only"):
        alone.all_gather(np.zeros(3), out=frozen)


def test_unaligned_memory(on_threads):
    def run(comm):
        x = np.frombuffer(bytearray(41), np.uint8)[1:].view(np.float64)
        assert not x.flags.aligned
        x[:] = np.arange(5)
        doubled(comm, x)

    on_threads(2, run)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_numpy_subclasses(on_threads):
    def run(comm):
        x = np.matrix([[1.0, 2.0]])
        comm.allreduce(x)
        assert x.tolist() == [[2, 4]]
        x = np.zeros(2, [("a", "f4"), ("b", "f4")]).view(np.recarray)
        x.a[:] = 3
        comm.allreduce(x.a)
        assert x.a.tolist() == [6, 6]
        assert x.b.tolist() == [0, 0]

    on_threads(2, run)


class TestSharedMemory:
    def test_empty(self, on_threads):
        def run(comm):
            x = comm.empty((3, 4), "float64")
            x[:] = comm.rank + 1
            comm.allreduce(x)
            assert (x == 3).all()
            assert comm.memory().allocated >= x.nbytes
            y = pycoll.empty(5, np.int32)  # of this thread's group
            y[:] = 1
            assert comm.allreduce(y).tolist() == [2] * 5
            assert comm.empty((2, 0), np.float32).shape == (2, 0)
            assert comm.empty((), np.float32).shape == ()
            half = comm.empty(4, "bfloat16")
            assert half.dtype == ml_dtypes.bfloat16
            inner = x[1]
            comm.allreduce(inner, out=x[2])
            assert (x[2] == 6).all()
            del x, y, half, inner
            assert comm.memory().allocated == 0

        on_threads(2, run)

    def test_torch(self, on_threads):
        torch = pytest.importorskip("torch")

        def run(comm):
            for dtype in (torch.float32, torch.bfloat16, torch.bool):
                x = comm.empty((2, 3), dtype)
                assert (x.dtype, tuple(x.shape)) == (dtype, (2, 3))
                x.fill_(1)
                comm.allreduce(x)
                assert (x == (1 if dtype == torch.bool else 2)).all()
                assert comm.memory().allocated > 0
                del x
                assert comm.memory().allocated == 0
            assert comm.empty((0, 2), torch.float32).shape == (0, 2)

        on_threads(2, run)

    def test_arrays_outlive_the_group(self):
        def use(comm):
            x = comm.empty(1000, np.int64)
            x[:] = np.arange(1000)
            return x

        (x,) = pycoll.spawn(use, 1, threads=True)
        assert x.sum() == 499500
        del x

    def test_errors(self, alone):
        with pytest.raises(pycoll.InvalidArgument, match="negative"):
            alone.empty(-1)
        with pytest.raises(pycoll.Unsupported, match="float31"):
            alone.empty(1, "float31")
        with pytest.raises(pycoll.Unsupported, match="object"):
            alone.empty(1, object)

    def test_default_group(self, alone):
        assert pycoll.empty(3).dtype == np.float32
        alone.close()
        with pytest.raises(pycoll.InvalidArgument, match=r"pycoll.init"):
            pycoll.empty(3)
