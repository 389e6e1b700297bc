"""A server that answers at once, in the shape of the real ones: what the client measures here is the client itself.

Its process prints a port and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


@contextmanager
def null_server() -> Iterator[str]:
    """Its URL, while it runs in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import main; main()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def events(tokens: int, chat: bool) -> list[bytes]:
    """A streamed answer of so many tokens, one a chunk."""
    head = {"id": "null", "object": "text_completion", "created": 0, "model": "null"}
    made = []
    for number in range(tokens):
        content = {"delta": {"content": " word"}} if chat else {"text": " word"}
        finish = "length" if number == tokens - 1 else None
        made.append({**head, "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": finish}], "usage": None})
    made.append({**head, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}})
    return [b"data: %b\n\n" % json.dumps(event).encode() for event in made] + [b"data: [DONE]\n\n"]


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
        tokens = int(re.search(rb'"max_tokens": (\d+)', body)[1])
        writer.write(_HEAD)
        for event in events(tokens, b"/chat/" in head):
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))  # a write each: a real server's tokens do not come in one piece
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    writer.close()


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, limit=1 << 20, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


def main() -> None:
    asyncio.run(_serve())
