"""A server in this process whose every distribution is known: tokens are bytes, logits a function of the text before. It can be Pitstop,
one that echoes, or one like llama.cpp's; and it can be wrong in many ways."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from pitstop.stats import log_softmax
from pitstop.verify.target import Target, connect

VOCABULARY = 256


@cache
def _drawn(tokens: tuple[int, ...], vocabulary: int) -> np.ndarray:
    """[2, vocabulary]: logits, and noise."""
    drawn = np.random.default_rng([7, *tokens]).normal(0, 2, (2, vocabulary))
    drawn[0, list(b" etaoinshrdlu")] += 4
    return drawn


class Peer:
    """kind: rows (has /admin/score), echo, next (llama.cpp's forms), none. noise: how far the logits are from the reference's.

    wrong: nan, short, header, tokens (another tokenizer), locked (/admin/score without a key), vocabulary (a token more).
    """

    def __init__(self, kind: str = "rows", noise: float = 0.0, wrong: str = "", says: str = "The answer is {}.") -> None:
        self.kind, self.noise, self.wrong, self.says = kind, noise, wrong, says
        self.unnamed: set[int] = set()

    def logits(self, tokens: list[int]) -> np.ndarray:
        """[vocabulary] fp32 of what follows the tokens: depends on the last few and on all; words of the text itself are likely."""
        row, noise = _drawn((*tokens[-3:], sum(tokens) % 5), VOCABULARY + (self.wrong == "vocabulary"))
        return (row + self.noise * noise).astype("<f4")

    def logprobs(self, tokens: list[int]) -> np.ndarray:
        return log_softmax(self.logits(tokens)[:VOCABULARY])

    def answer(self, path: str, body: dict) -> tuple[int, bytes | dict]:
        if path == "/tokenize":
            return self.tokenize(body)
        if path == "/detokenize":
            name = "content" if self.kind == "next" else "prompt"
            return 200, {name: bytes(body["tokens"]).decode("utf-8", "replace")}
        if path == "/admin/score" and self.kind == "rows":
            return (401, {}) if self.wrong == "locked" else (200, self.score(body["prompt"], body["start"]))
        if path == "/v1/completions":
            return self.complete(body)
        if path == "/v1/chat/completions":
            text = self.says.format(body["messages"][0]["content"])
            return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
        return 404, {"error": {"message": "not found"}}

    def tokenize(self, body: dict) -> tuple[int, dict]:
        text = body.get("content" if self.kind == "next" else "prompt")
        if text is None:  # as llama.cpp answers to the other form
            return 200, {"tokens": []}
        tokens = list(text.encode())
        return 200, {"tokens": tokens[::-1] if self.wrong == "tokens" else tokens}

    def score(self, tokens: list[int], start: int) -> bytes:
        rows = np.stack([self.logits(tokens[: position + 1]) for position in range(start, len(tokens))])
        if self.wrong == "nan":
            rows[-1, 3] = np.nan
        magic = b"PITSCOPE" if self.wrong == "header" else b"PITSCORE"
        data = struct.pack("<8s6I", magic, 1, rows.shape[1], len(rows), start, 1, 1) + rows.tobytes()
        return data[: -4 * VOCABULARY] if self.wrong == "short" else data

    def complete(self, body: dict) -> tuple[int, dict]:
        tokens, top = body["prompt"], body["logprobs"]
        if self.kind == "none":
            return 200, {"choices": [{"text": "x", "logprobs": None}]}
        if self.kind == "next":  # it does not know of echo
            row = self.logprobs(tokens)
            best = [
                {"id": int(i), "token": bytes([i]).decode("utf-8", "replace"), "bytes": [int(i)], "logprob": row[i]}
                for i in np.argsort(-row)[:top]
            ]
            if best[0]["id"] in self.unnamed:  # as llama.cpp's server, when the token is a part of a character
                return 200, {"choices": [{"text": "x", "logprobs": None}]}
            return 200, {"choices": [{"text": "x", "logprobs": {"content": [best[0] | {"top_logprobs": best}]}}]}
        if not body.get("echo"):
            return 200, {"choices": [{"logprobs": {"token_logprobs": [-1.0], "top_logprobs": [self.best(tokens, top)]}}]}
        before = [tokens[:i] for i in range(1, len(tokens))]
        came = [None, *(float(self.logprobs(b)[tokens[len(b)]]) for b in before)]
        return 200, {"choices": [{"logprobs": {"token_logprobs": came, "top_logprobs": [None, *(self.best(b, top) for b in before)]}}]}

    def best(self, tokens: list[int], top: int) -> dict[str, float]:
        row = self.logprobs(tokens)
        spelled = [chr(i) if i < 128 else f"bytes:\\x{i:02x}" for i in range(VOCABULARY)]
        return {spelled[i]: float(row[i]) for i in np.argsort(-row)[:top]}


@contextmanager
def serve(peer: Peer) -> Iterator[Target]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 1 << 16

        def do_GET(self) -> None:
            self.reply(200, {"data": [{"id": "m"}]} if self.path == "/v1/models" else {})

        def do_POST(self) -> None:
            self.reply(*peer.answer(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def reply(self, status: int, body: bytes | dict) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield connect(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
