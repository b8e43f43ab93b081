"""All that several processes agree on; the only file that imports torch.distributed.

Without a launcher there is one process, rank 0 of 1, and every function here does nothing costly.
"""

import _thread
import os
import signal
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from transformer_mt.errors import Failure, OtherRankFailed, Stopped, Terminated, UserError

T = TypeVar("T")

# Rank 0 may prepare data for hours while the others wait; torchrun itself notices a process that died.
TIMEOUT = timedelta(days=7)
POLL_SECONDS = 0.02
WATCH_SECONDS = 0.2
"""How often a rank looks whether another one was asked to leave."""


JOIN_SECONDS = 30
"""How long the last such look may take, on a busy machine."""
LET_GO_SECONDS = 0.1
_EXCHANGED: deque[Tensor] = deque(maxlen=32)
"""The last tensors that were exchanged: kept here, no other thread has the last reference to one."""


class Notice:
    """Makes a signal to one rank a signal to all: a thread on each reads, and says, on which rank one has arrived.

    A launcher that was killed can signal nothing any more: that is taken for SIGTERM.
    """

    KEY = "signal"

    def __init__(self, store: Any) -> None:
        """`store` is a connection of its own: the thread that uses it must not wait behind the main one."""
        self.arrived = 0
        """The number of the signal that this process got, to be passed on."""
        self._store, self._ended = store, threading.Event()
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def post(self, number: int) -> None:
        """Lets all ranks know."""
        with suppress(RuntimeError):  # the store went with the launcher
            self._store.set(self.KEY, str(number))

    def close(self) -> None:
        """Ends the thread: it must not speak up when nobody listens any more."""
        self._ended.set()
        self._thread.join(JOIN_SECONDS)

    def _watch(self) -> None:
        there = True
        while not self._ended.wait(WATCH_SECONDS):
            if self.arrived:
                return self.post(self.arrived)
            number = 0
            if self._launcher is not None and os.getppid() != self._launcher:
                number = signal.SIGTERM
            elif there:
                try:
                    number = int(self._store.get(self.KEY)) if self._store.check([self.KEY]) else 0
                except RuntimeError:  # it went with the launcher, or with the rank that had it
                    there = False
            if number:
                return _thread.interrupt_main(signal.Signals(number))


@dataclass(frozen=True)
class Process:
    """This process among the others, and the device it computes on."""

    rank: int
    ranks: int
    device: torch.device
    notice: Notice | None = None
    """How one rank tells the others of a signal that reached it alone; None where there is but one."""

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0


def launched() -> bool:
    """Whether a launcher such as torchrun started us. Half a set of its variables is an error."""
    variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in variables if name not in os.environ]
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= set(missing):
        return False
    if missing:
        raise UserError(
            f"the launcher's environment is incomplete: {', '.join(missing)} not set "
            "(start several processes with torchrun, or unset RANK for one)"
        )
    return True


def pick_device(wanted: str) -> torch.device:
    """The device that `--device` means: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if wanted == "auto":
        return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UserError(f"--device {wanted}: wanted auto, cpu, cuda, cuda:N or mps") from None
    if device.index is not None and "LOCAL_RANK" in os.environ:
        raise UserError(f"--device {wanted}: several processes take a GPU each, wanted cuda without a number")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device {wanted}: this torch ({torch.__version__}) finds no GPU")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("--device mps: not available here")
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"--device {wanted}: wanted auto, cpu, cuda, cuda:N or mps")
    return torch.device("cuda", local_rank) if device.type == "cuda" and device.index is None else device


@contextmanager
def process_group(device: str = "auto") -> Iterator[Process]:
    """Joins the other processes, if there are any, for the time of the context.

    When another rank dies, whatever this one was doing with it fails: it leaves too, with OtherRankFailed.
    """
    chosen = pick_device(device)
    if not launched():
        yield Process(0, 1, chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    shared, rank, ranks = next(rendezvous("env://", timeout=TIMEOUT))
    shared.set_timeout(TIMEOUT)
    room = _own_room(shared, rank, ranks)
    store, apart = (_part_of(one, room) for one in (shared, next(rendezvous("env://", timeout=TIMEOUT))[0]))
    # Objects and waiting go through gloo, so that a GPU is never kept busy by a process that only waits.
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT, store=store, rank=rank, world_size=ranks)
    notice, together = Notice(apart), False
    try:
        yield Process(rank, ranks, chosen, notice if ranks > 1 else None)
        together = True
    except KeyboardInterrupt as interrupt:
        notice.post(signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)
        raise
    except RuntimeError as error:
        if _lost_another(error):
            raise OtherRankFailed(1, "left, since the connection to another rank is lost") from None
        raise
    except Stopped:
        together = True
        raise
    finally:
        with _deaf():
            notice.close()
            _let_go()
        if together:  # after a failure it may wait for a rank that is gone
            dist.destroy_process_group()


@contextmanager
def _deaf() -> Iterator[None]:
    """Lets no signal replace what a process that leaves anyhow is about to tell."""
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _let_go() -> None:
    """Gives gloo's threads the time to forget their last tensors.

    A thread that holds the last reference to one needs the interpreter for it; whoever ends the group meanwhile waits
    for that thread, and has the interpreter: for ever. The interpreter is free while this waits.
    """
    time.sleep(LET_GO_SECONDS)
    _EXCHANGED.clear()


def _own_room(store: Any, rank: int, ranks: int) -> str:
    """The name of a part of the launcher's store that no start before this one has written to.

    After an elastic restart the store is the one that the ranks before had, with their addresses in it, and who reads
    one of those waits for a process that is gone. So each rank says hello with a word of its own, and the first one
    names the new part together with the words it has heard, until all have answered.
    """

    def read(key: str) -> str:
        return str(store.get(key).decode()) if store.check([key]) else ""

    if rank == 0:
        room = str(uuid.uuid4())
        others = range(1, ranks)
        while True:
            words = [read(f"transformer-mt/hello/{other}") for other in others]
            store.set("transformer-mt/room", " ".join([room, *words]))
            if all(read(f"transformer-mt/answer/{other}") == room for other in others):
                break
            time.sleep(POLL_SECONDS)
    else:
        word = str(uuid.uuid4())
        store.set(f"transformer-mt/hello/{rank}", word)
        while word not in (named := read("transformer-mt/room").split()):
            time.sleep(POLL_SECONDS)
        room = named[0]
        store.set(f"transformer-mt/answer/{rank}", room)
    return room


def _part_of(store: Any, room: str) -> Any:
    return dist.PrefixStore(f"transformer-mt/{room}", store)  # type: ignore[attr-defined]


def _lost_another(error: RuntimeError) -> bool:
    """Whether an error is what the death of another rank looks like; gloo has no class of its own for it."""
    signs = ("/gloo/", "remote process exited", "ncclRemoteError")
    return isinstance(error, dist.DistNetworkError) or any(sign in str(error) for sign in signs)


def restarted() -> bool:
    """Whether an elastic launcher has started this run again after a failure, with the command of the first time."""
    return on_first_rank(lambda: os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that a tensor found no memory; torch has no class of its own for it on a CPU."""
    signs = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(sign in str(error) for sign in signs)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Adds a tensor over all ranks, in place."""
    if dist.is_initialized():
        _EXCHANGED.append(values)
        dist.all_reduce(values)
    return values


def largest(value: int) -> int:
    """The largest of the ranks' values, on all of them. It goes by the CPU, so a GPU's queue keeps running."""
    if not dist.is_initialized():
        return value
    box = torch.tensor([value])
    _EXCHANGED.append(box)
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return int(box)


def gather(value: T) -> list[T]:
    """The values of all ranks, in order of rank, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def on_first_rank(action: Callable[[], T]) -> T:
    """Runs `action` on rank 0 alone while the others wait; its result, or its exception, reaches all."""
    if not dist.is_initialized():
        return action()
    box: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            box[0] = action()
        except Exception as failure:
            dist.broadcast_object_list([None, getattr(failure, "exit_code", 1)])
            raise
    dist.broadcast_object_list(box)
    if box[1] is not None:
        raise OtherRankFailed(box[1])
    return box[0]  # type: ignore[no-any-return]


def fail_together(failure: Failure) -> None:
    """Raises what all ranks have found alike, on the first one, which says it; the others leave in silence."""
    if dist.is_initialized() and dist.get_rank() > 0:
        raise OtherRankFailed(failure.exit_code)
    raise failure


def replicate(module: nn.Module, process: Process) -> nn.Module:
    """The module, its gradients averaged over the ranks in every backward pass outside of `unsynchronised`."""
    if process.ranks == 1:
        return module
    from torch.nn.parallel import DistributedDataParallel

    ids = [process.device.index] if process.device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=ids, gradient_as_bucket_view=True)


def unsynchronised(module: nn.Module) -> AbstractContextManager[None]:
    """Around forward and backward of all passes of an update but the last."""
    no_sync = getattr(module, "no_sync", None)
    return nullcontext() if no_sync is None else no_sync()
