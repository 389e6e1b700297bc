"""Messages between the front and an engine worker: length-prefixed msgpack over a socketpair. Imports no torch.

One socketpair per worker incarnation, and every message carries the incarnation's number: what an old worker left in flight can never
reach a new one. End of file is death.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from pitstop.config import Adapter, EngineConfig
from pitstop.kv.capacity import Capacity
from pitstop.types import Output, Request

PROTOCOL = 4
"""The version of these messages. A worker may come from another installation than its front; they must agree on this."""

MAX_MESSAGE = 256 << 20
MAX_LOGITS = 16 << 20
"""Bytes of logits that one request may bring (Request.score_from): what bounds a message, and the front's memory."""

_LENGTH = struct.Struct("<I")


def score_rows(vocab_size: int) -> int:
    """Prompt positions that one request may score."""
    return max(1, MAX_LOGITS // (4 * vocab_size))


class Start(msgspec.Struct, tag=True, frozen=True):
    """Front → worker, first message."""

    incarnation: int
    config: EngineConfig
    recorder: int = -1  # file descriptor of engine.recorder's memory, inherited; -1: none
    protocol: int = 0  # the front's PROTOCOL


class AdapterChange(msgspec.Struct, frozen=True, array_like=True):
    """load: have it, as AdapterState will tell. Else give it up: no request of it is left."""

    adapter: Adapter
    load: bool


class AdapterState(msgspec.Struct, frozen=True, array_like=True):
    """A worker has the adapter of this id, or why it cannot."""

    id: str
    error: str = ""


class Commands(msgspec.Struct, tag=True, frozen=True):
    """Front → worker: what came since the last one. A cancel of an unknown or ended id is not an error.

    `adapters` are in order, and come after the others. forward: requests come from now on; a worker that was begun in the background
    takes its full share of the processors. lend: give so many bytes of the KV cache to the machine, all in all, as far as nobody uses them;
    0: have them back. The next Step tells how many these are. -1: as it was.
    """

    incarnation: int
    submit: list[Request] = []
    cancel: list[str] = []
    adapters: list[AdapterChange] = []
    forward: bool = False
    lend: int = -1


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Worker → front: weights loaded, requests are taken."""

    incarnation: int
    context: int  # longest prompt + answer, tokens
    capacity: Capacity
    vocab_size: int
    notes: list[str] = []  # lines for the operator: backend, codec, sizes; a loud one when the native kernels are missing
    attended_cost: float = 0.0  # of a position that a row looks at, in units of engine.pace
    pace: float = 0.0  # seconds a unit of work, measured when the kernels were warmed
    protocol: int = 0  # the worker's PROTOCOL
    version: str = ""  # of its installation
    numerics: str = ""  # equal for workers whose answers are equal to the bit
    weights: str = ""  # the model's identity (models.weights.fetch)
    kv_memory: int = 0  # bytes: the KV pool's budget
    device: str = "cpu"
    generates: bool = True  # False: an encoder, which embeds only
    adapters: list[AdapterState] = []  # of its config
    shared: int = 0  # bytes of packed weights that another worker of the model need not have again


class Stats(msgspec.Struct, frozen=True, array_like=True):
    """The engine's counters after a step. Pages and tails satisfy free + cached + in use = total."""

    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    tails_total: int = 0
    tails_free: int = 0
    tails_cached: int = 0
    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0  # computed, all requests
    cached_tokens: int = 0  # taken from the prefix cache
    generated_tokens: int = 0
    kv_touched: int = 0  # bytes of the process's memory that the KV pool has been given so far
    guessed_tokens: int = 0  # computed ahead, as guessed
    accepted_tokens: int = 0  # of these, those that came
    kv_spare: int = 0  # bytes of pages that nobody uses, of more than one stream of the longest context needs


class Step(msgspec.Struct, tag=True, frozen=True):
    """Worker → front: what one step brought. `admitted` and `preempted` are request ids whose state changed in it.

    `work` (units of engine.pace) took `seconds`; the next step will be `ahead` at most, unless new requests come. `taken`: requests that
    had been read by then, since the worker's start.
    """

    incarnation: int
    outputs: list[Output]
    stats: Stats
    admitted: list[str] = []
    preempted: list[str] = []
    work: float = 0.0
    seconds: float = 0.0
    ahead: float = 0.0
    taken: int = 0
    adapters: list[AdapterState] = []  # what has become of those that were to be loaded
    lent: int = -1  # bytes of the KV cache that the machine has now; -1: nobody asked


def disagreement(front: int, worker: int, version: str = "") -> str:
    """Why a front and a worker of these protocols cannot work together; "" when they can. version: the worker's installation."""
    if front == worker:
        return ""
    what = f"the worker of version {version}" if version else "the worker"
    return f"{what} speaks protocol {worker} and the server {front}: they cannot work together; start a new server from that version"


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Worker → front: it could not start; `message` is one line for the operator. The worker then exits."""

    incarnation: int
    message: str


ToWorker = Start | Commands
ToFront = Ready | Step | Failed

_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in (ToWorker, ToFront)}


def send(sock: socket.socket, message: ToWorker | ToFront) -> None:
    """Write one message. Raises OSError (BrokenPipeError, …) when the other side is gone."""
    body = _encoder.encode(message)
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket, kind: type) -> ToWorker | ToFront | None:
    """Read one message of `kind` (ToWorker or ToFront); None at end of file, also in the middle of a message.

    Raises ValueError for a message over MAX_MESSAGE, msgspec.DecodeError for one that is not of the kind.
    """
    head = _exactly(sock, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_MESSAGE:
        raise ValueError(f"message of {length} bytes exceeds {MAX_MESSAGE}")
    body = _exactly(sock, length)
    return None if body is None else _decoders[kind].decode(body)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    """`size` bytes, or None at end of file."""
    data = bytearray()
    while len(data) < size:
        try:
            part = sock.recv(min(size - len(data), 1 << 20))
        except ConnectionResetError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)
