"""A stand-in for nccl4py and the driver, with ranks as threads and host memory as device memory.

An operation is done once all ranks have enqueued it. If they have enqueued different ones they wait for ever. Methods
have the signatures of nccl4py 0.6.
"""

import contextlib
import ctypes
import threading
import types
from collections import defaultdict, deque

import numpy as np
from comm_cases import in_rank_order

from refopt.dtypes import numpy_dtype

SUM = 0
SUCCESS, IN_PROGRESS, NOT_READY = 0, 7, 600
_lock = threading.RLock()
_mine = threading.local()


def get_unique_id():
    return UniqueId(b"%016d" % np.random.default_rng().integers(10**15))


def get_error_string(state):
    return f"error {state}"


class UniqueId(bytes):
    from_bytes = classmethod(lambda cls, data: cls(data))


class NCCLConfig:
    def __init__(self, *, blocking):
        self.blocking = blocking


@contextlib.contextmanager
def group():
    _mine.group = []
    yield
    held, _mine.group = _mine.group, None
    for comm, operation in held:
        comm._enqueue(operation)


class _Board:
    """What the ranks of a communicator have enqueued and is not done."""

    def __init__(self):
        self.collectives = defaultdict(deque)
        self.ends = defaultdict(deque)
        self.made = {}
        self.dead = False


_boards = defaultdict(_Board)


class Communicator:
    device = "the only one"

    def __init__(self, key, size, rank):
        self._board, self.size, self.rank, self._key = _boards[key], size, rank, key
        self._fresh = 2  # how often to say that it is in progress
        self.aborted = False
        self.broken = 0
        _mine.comms = [*getattr(_mine, "comms", []), self]

    @classmethod
    def init(cls, nranks, rank, unique_id, config=None):
        assert isinstance(unique_id, UniqueId) and config.blocking is False
        return cls(unique_id, nranks, rank)

    def _submit(self, operation):
        assert not self.aborted and not self._fresh, "NCCL was asked for more while it was in progress"
        if getattr(_mine, "group", None) is not None:
            _mine.group.append((self, operation))
        else:
            self._enqueue(operation)

    def _enqueue(self, operation):
        with _lock:
            self._fresh = 2
            if self.broken:
                return
            kind, _, _, peer = operation
            if kind in ("send", "recv"):
                ends = (self.rank, peer) if kind == "send" else (peer, self.rank)
                self._board.ends[kind, *ends].append(operation)
            else:
                self._board.collectives[self.rank].append(operation)
            self._progress()

    def _progress(self):
        board = self._board
        if board.dead:
            return
        queues = [board.collectives[rank] for rank in range(self.size)]
        while all(queues) and len({(queue[0][0], queue[0][3]) for queue in queues}) == 1:
            _perform([queue.popleft() for queue in queues], self.size)
        for (kind, source, target), sent in board.ends.items():
            received = board.ends.get(("recv", source, target), ())
            while kind == "send" and sent and received:
                received.popleft()[2][...] = sent.popleft()[1]

    def busy(self):
        board = self._board
        mine = [queue for (kind, a, b), queue in board.ends.items() if self.rank == (a if kind == "send" else b)]
        return any([board.collectives[self.rank], *mine])

    def allreduce(self, sendbuf, recvbuf, op, *, stream=None, config=None):
        self._submit(("allreduce", _array(sendbuf), _array(recvbuf), None))

    def reduce(self, sendbuf, recvbuf, op, root=None, *, stream=None, config=None):
        self._submit(("reduce", _array(sendbuf), _array(recvbuf), root))

    def broadcast(self, sendbuf, recvbuf, root, *, stream=None, config=None):
        self._submit(("broadcast", _array(sendbuf), _array(recvbuf), root))

    def reduce_scatter(self, sendbuf, recvbuf, op, *, stream=None, config=None):
        self._submit(("reduce_scatter", _array(sendbuf), _array(recvbuf), None))

    def allgather(self, sendbuf, recvbuf, *, stream=None, config=None):
        self._submit(("allgather", _array(sendbuf), _array(recvbuf), None))

    def send(self, sendbuf, peer, *, stream=None):
        self._submit(("send", _array(sendbuf), None, peer))

    def recv(self, recvbuf, peer, *, stream=None):
        self._submit(("recv", None, _array(recvbuf), peer))

    def split(self, color=None, key=0, config=None):
        assert not self.busy() and not self._fresh
        self._fresh = 2
        with _lock:
            made = self._board.made.setdefault("splits", defaultdict(dict))
            number = self._board.made[self.rank] = self._board.made.get(self.rank, 0) + 1
            made[number][self.rank] = (color, key)
            while len(made[number]) < self.size:
                _lock_wait()
            members = sorted((k, r) for r, (c, k) in made[number].items() if c is not None)
        if color is None:
            return None
        return Communicator((self._key, number), len(members), [r for _, r in members].index(self.rank))

    def get_async_error(self):
        assert not self.aborted
        if self.broken:
            return self.broken
        if self._fresh:
            self._fresh -= 1
            return IN_PROGRESS
        return SUCCESS

    def get_last_error(self):
        return "a link went down"

    def finalize(self):
        assert not self.busy()
        self._fresh = 2

    def destroy(self):
        self.aborted = True

    def abort(self):
        self.aborted = self._board.dead = True


def _lock_wait():
    _lock.release()
    threading.Event().wait(0.001)
    _lock.acquire()


def _array(view):
    """The host memory that a view describes."""
    interface = view.__cuda_array_interface__
    assert interface["version"] == 3 and interface["strides"] is None
    dtype, (size,) = numpy_dtype(interface["typestr"]), interface["shape"]
    assert size, "NCCL was asked to move nothing"
    return np.frombuffer((ctypes.c_uint8 * (size * dtype.itemsize)).from_address(interface["data"][0]), dtype)


def _perform(met, size):
    kind, _, _, root = met[0]
    sources = [s if s is None else s.copy() for _, s, _, _ in met]
    if kind in ("allreduce", "reduce", "reduce_scatter"):
        result = in_rank_order(sources)
    elif kind == "broadcast":
        result = sources[root]
    else:
        result = np.concatenate(sources)
    for rank, (_, _, target, _) in enumerate(met):
        if kind == "reduce_scatter":
            target[...] = result.reshape(size, -1)[rank]
        elif kind != "reduce" or rank == root:
            target[...] = result


def _stream_query(stream):
    with _lock:
        return (NOT_READY if any(comm.busy() for comm in _mine.comms if not comm.aborted) else 0,)


def _allocate(nbytes):
    memory = ctypes.create_string_buffer(nbytes)
    _memory[ctypes.addressof(memory)] = memory
    return 0, ctypes.addressof(memory)


_memory = {}
driver = types.SimpleNamespace(
    CUresult=types.SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_NOT_READY=NOT_READY),
    cuStreamQuery=_stream_query,
    cuMemAlloc=_allocate,
    cuMemFree=lambda address: (0,) if _memory.pop(address) else (1,),
)


def checked(answer):
    error, *values = answer
    assert error == 0
    return values[0] if values else None


class Device:
    def set_current(self):
        _mine.comms = []


class OnDevice:
    """A NumPy array offered as a device array."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "strides": array.strides,
            "data": (array.ctypes.data if array.size else 0, False),
            "version": 3,
        }

    def __getitem__(self, index):
        return OnDevice(self.array[index])
