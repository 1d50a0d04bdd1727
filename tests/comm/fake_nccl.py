"""A stand-in for nccl4py and the driver, with ranks as threads and host memory as device memory.

An operation is done once all ranks have enqueued it. If they have enqueued different ones they wait for ever. Methods
have the signatures of nccl4py 0.6.
"""

import ctypes
import threading
import time
import types
from collections import defaultdict, deque

import numpy as np

from comm.comm_cases import in_rank_order
from refopt.checks.dtypes import numpy_dtype

SUM = 0
DATATYPES = "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"
INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 = range(len(DATATYPES))
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


def group_start():
    _mine.group = []


def group_end():
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
    """Of a nonblocking communicator a call is in progress for a while; of a blocking one it may be ``stuck``."""

    def __init__(self, key, size, rank, blocking):
        self._board, self.size, self.rank, self._key = _boards[key], size, rank, key
        self._blocking, self.ptr, self.stuck = blocking, id(self), False
        _comms[self.ptr] = self
        self._start()
        self.aborted = self._finalized = False
        self.broken = 0
        _mine.comms = [*getattr(_mine, "comms", []), self]

    @classmethod
    def init(cls, nranks, rank, unique_id, config=None):
        assert isinstance(unique_id, UniqueId)
        return cls(unique_id, nranks, rank, config.blocking)

    def _start(self):
        self._fresh = 0 if self._blocking else 2  # how often to say that it is in progress

    def _submit(self, operation):
        assert not self.aborted and not self._fresh, "NCCL was asked for more while it was in progress"
        if getattr(_mine, "group", None) is not None:
            _mine.group.append((self, operation))
        else:
            self._enqueue(operation)

    def _enqueue(self, operation):
        while self.stuck and not self.aborted:
            time.sleep(0.001)
        if self.aborted:
            raise RuntimeError("aborted")
        with _lock:
            self._start()
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

    def split(self, color=None, key=0, config=None):
        assert not self.busy() and not self._fresh
        self._start()
        with _lock:
            made = self._board.made.setdefault("splits", defaultdict(dict))
            number = self._board.made[self.rank] = self._board.made.get(self.rank, 0) + 1
            made[number][self.rank] = (color, key)
            while len(made[number]) < self.size:
                _lock_wait()
            members = sorted((k, r) for r, (c, k) in made[number].items() if c is not None)
        if color is None:
            return None
        return Communicator((self._key, number), len(members), [r for _, r in members].index(self.rank), self._blocking)

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
        self._finalized = True
        self._start()

    def destroy(self):
        assert self._finalized and not self._fresh, "NCCL was to be finalized before"
        self.aborted = True

    def abort(self):
        self.aborted = self._board.dead = True


_comms = {}


def _submit(comm, kind, sendbuf, recvbuf, sent, received, datatype, peer=None):
    dtype = numpy_dtype(DATATYPES[datatype])
    _comms[comm]._submit(
        (kind, sendbuf and _array(sendbuf, sent, dtype), recvbuf and _array(recvbuf, received, dtype), peer))


def all_reduce(sendbuff, recvbuff, count, datatype, op, comm, stream):
    _submit(comm, "allreduce", sendbuff, recvbuff, count, count, datatype)


def reduce(sendbuff, recvbuff, count, datatype, op, root, comm, stream):
    _submit(comm, "reduce", sendbuff, recvbuff, count, count, datatype, root)


def broadcast(sendbuff, recvbuff, count, datatype, root, comm, stream):
    _submit(comm, "broadcast", sendbuff, recvbuff, count, count, datatype, root)


def reduce_scatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream):
    _submit(comm, "reduce_scatter", sendbuff, recvbuff, recvcount * _comms[comm].size, recvcount, datatype)


def all_gather(sendbuff, recvbuff, sendcount, datatype, comm, stream):
    _submit(comm, "allgather", sendbuff, recvbuff, sendcount, sendcount * _comms[comm].size, datatype)


def send(sendbuff, count, datatype, peer, comm, stream):
    _submit(comm, "send", sendbuff, None, count, 0, datatype, peer)


def recv(recvbuff, count, datatype, peer, comm, stream):
    _submit(comm, "recv", None, recvbuff, 0, count, datatype, peer)


calls = types.SimpleNamespace(Comm=lambda handle: handle,
                              comm_get_async_error=lambda comm: _comms[comm].get_async_error(), group_start=group_start,
                              group_end=group_end, all_reduce=all_reduce, reduce=reduce, broadcast=broadcast,
                              reduce_scatter=reduce_scatter, all_gather=all_gather, send=send, recv=recv)


def _lock_wait():
    _lock.release()
    threading.Event().wait(0.001)
    _lock.acquire()


def _array(address, size, dtype):
    """The host memory at an address."""
    assert type(address) is int, "an integer is required"
    assert size, "NCCL was asked to move nothing"
    return np.frombuffer((ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address), dtype)


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
    return 0, Pointer(ctypes.addressof(memory))


class Pointer:
    """The driver's pointers are no integers."""

    def __init__(self, address):
        self._address = address

    def __int__(self):
        return self._address


_memory = {}
driver = types.SimpleNamespace(CUresult=types.SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_NOT_READY=NOT_READY),
                               cuStreamQuery=_stream_query, cuMemAlloc=_allocate,
                               cuMemFree=lambda address: (0,) if _memory.pop(address) else (1,))


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
        self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "strides": array.strides,
                                         "data": (array.ctypes.data if array.size else 0, False), "version": 3}

    def __getitem__(self, index):
        return OnDevice(self.array[index])
