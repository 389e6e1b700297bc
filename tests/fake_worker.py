"""A worker process without a model: speaks the engine's protocol, needs no torch, answers with what the prompt says.

Run as `python tests/fake_worker.py [--die-at-start | --die-if FILE | --fail MESSAGE | --slow-start S | --stray] FD`; what stands behind
the name in the config's model (`toy --fail "no such weights"`) are more options.
Tokens are those of `toys.toy_vocabulary`.

The answer to a prompt is scripted by the last `#…#` in the prompt's text:

    #say TEXT#   those bytes, one token each, then the end token (\\n and \\# are unescaped)
    #echo#       the prompt's own tokens                 #grammar#    the grammar that the answer is to have
    #show#       the prompt's text, control tokens spelled
    #die N#      SIGKILL of itself after N tokens          #wedge N#    nothing more of this answer after N tokens
    #crash N#    abort() after N tokens                    #freeze N#   SIGSTOP of itself after N tokens
    #slow MS#    one token each MS milliseconds            #burst N#    N tokens a step
    #fail N#     ends with an error after N tokens         #hold#       stays queued for ever
    #refuse N#   likewise, by the request's own fault
    #long MS#    its first step takes so long, and that is said before
    #strike#     abort() in the step that admits it, which is recorded but never told
    #who#        the name of the request's adapter, or "base"
    #upto K#     die, crash, freeze and strike in incarnations 1 to K only

Several may be given, `#slow 5##say hello#`; without `say` or `echo` it counts "0 1 2 3 …" for ever. Log-probabilities are -0.5 for the
token and the top is the token followed by its neighbours; logit_bias is obeyed in that a token with bias 100 is said for ever. Logits at
a position are `fake_logits`, of the tokens up to it; what a request that embeds gets is its `fake_vector`.


An adapter is loaded at once; one whose folder is named "gone", or has a file of this name, cannot be, "late" is loaded after a tenth of a
second, "deadly" kills. A request whose adapter is not there ends with an error.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import select
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from toys import byte_tokens, toy_vocabulary

from pitstop.config import Adapter
from pitstop.engine.protocol import (
    PROTOCOL,
    AdapterState,
    Commands,
    Failed,
    Ready,
    Start,
    Stats,
    Step,
    ToWorker,
    disagreement,
    receive,
    send,
)
from pitstop.engine.recorder import RecordedSpan, Recorder
from pitstop.kv.capacity import Capacity
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import Logprob, Output, Request

if TYPE_CHECKING:
    import numpy as np  # half of what a start takes, and few workers need it

CONTEXT = 512
END = 2
VOCABULARY = Tokenizer(toy_vocabulary()).vocab_size
MAX_RUNNING = 8
CACHED = 3  # prompt tokens that it claims to have had
CACHED_LATER = 7  # the same for an answer that another worker has begun
KV_MEMORY = 1 << 20
WIDTH = 8  # of its hidden states
PACE = 0.001  # seconds a unit of work
HEARTBEAT = 0.1  # seconds between steps of a worker that has work and nothing to say

_SCRIPT = re.compile(r"#(say|echo|show|grammar|die|crash|freeze|who|upto|wedge|slow|burst|fail|refuse|hold|long|strike)\s?((?:\\#|[^#])*)#")


@dataclass
class Sequence:
    request: Request
    script: dict[str, str]
    answer: list[int] | None  # None: count for ever
    said: int = 0
    running: bool = False
    due: float = 0.0
    counted: bytes = b""


class Model:
    """The state of the fake engine."""

    def __init__(self, incarnation: int, options: argparse.Namespace, recorder: Recorder | None = None) -> None:
        self.options = options
        self.behind = bool(options.background)
        self.incarnation = incarnation
        self.recorder = recorder
        self.taken = 0
        self.tokenizer = Tokenizer(toy_vocabulary())
        self.sequences: dict[str, Sequence] = {}
        self.admitted: list[str] = []
        self.ahead = 0.0  # milliseconds that the next step will take
        self.steps = self.generated = self.prompt_tokens = 0
        self.adapters: set[str] = set()
        self.changes: list[AdapterState] = []  # not told yet
        self.lost: list[Output] = []
        self.lent = 0

    def submit(self, request: Request) -> None:
        assert not self.behind or request.id.startswith("probe-"), "a request for a worker that is in the background"
        if self.taken == self.options.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        self.taken += 1
        if request.adapter and request.adapter not in self.adapters:
            self.lost.append(Output(request.id, [], finish="error", message=f"no adapter {request.adapter}"))
            return
        if self.options.deaf:
            return
        text = self.tokenizer.decode(request.prompt)
        script = dict(_SCRIPT.findall(text))
        answer = None
        if "say" in script:
            answer = [*byte_tokens(script["say"].replace("\\n", "\n").replace("\\#", "#").encode()), END]
        elif "who" in script:
            answer = [*byte_tokens((request.adapter.rpartition("@")[0] or "base").encode()), END]
        elif "echo" in script:
            answer = [*request.prompt, END]
        elif "show" in script:
            answer = [*byte_tokens(text.encode()), END]
        elif "grammar" in script:
            answer = [*byte_tokens(request.params.grammar.encode()), END]
        forced = [token for token, bias in request.params.logit_bias.items() if bias == 100]
        if forced:
            answer = forced * request.params.max_tokens
        self.sequences[request.id] = Sequence(request, script, answer, said=len(request.emitted))

    def change(self, adapter: Adapter, load: bool) -> None:
        folder = Path(adapter.path).name
        if load and folder == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        if load and folder == "late":
            time.sleep(0.1)
        if load:
            self.changes.append(AdapterState(adapter.id, "it is gone" if folder == "gone" or Path(adapter.path, "gone").exists() else ""))
            if not self.changes[-1].error:
                self.adapters.add(adapter.id)
        else:
            self.adapters.discard(adapter.id)

    def take_changes(self) -> list[AdapterState]:
        changes, self.changes = self.changes, []
        return changes

    def lend(self, size: int) -> int:
        self.lent = min(size, self.options.spare)
        return self.lent

    def cancel(self, request_id: str) -> Output | None:
        return Output(request_id, [], finish="cancelled") if self.sequences.pop(request_id, None) else None

    def stats(self) -> Stats:
        running = sum(s.running for s in self.sequences.values())
        return Stats(
            running=running,
            waiting=len(self.sequences) - running,
            pages_total=100,
            pages_free=100 - running,
            tails_total=MAX_RUNNING,
            tails_free=MAX_RUNNING - running,
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated,
            kv_spare=self.options.spare - self.lent,
        )

    def wait(self) -> float | None:
        """Seconds until a step has something to do; None: nothing to do at all."""
        dues = [s.due for s in self.sequences.values() if s.running]
        dues += [s.request.deadline for s in self.sequences.values() if s.request.deadline is not None]
        if not self.sequences:
            return None
        return min(HEARTBEAT, max(0.0, min(dues, default=float("inf")) - time.monotonic()))

    def step(self) -> list[Output]:
        """One step, recorded as the engine's are."""
        number = self.record(sequence for sequence in self.sequences.values() if sequence.running)
        outputs, self.lost = [*self.lost, *self.advance_all()], []
        if self.recorder is not None:
            self.recorder.done(number)
        return outputs

    def record(self, sequences: Iterable[Sequence]) -> int:
        if self.recorder is None:
            return 0
        known = [(sequence.request.id, len(sequence.request.prompt) + sequence.said) for sequence in sequences]
        return self.recorder.begin(RecordedSpan(name, length - 1, 1, length) for name, length in known)

    def advance_all(self) -> list[Output]:
        time.sleep(self.ahead / 1000)
        self.ahead = 0.0
        now = time.monotonic()
        outputs = []
        for sequence in list(self.sequences.values()):
            request = sequence.request
            if request.deadline is not None and request.deadline <= now and "wedge" not in sequence.script:
                outputs.append(Output(request.id, [], finish="timeout"))
                del self.sequences[request.id]
            elif sequence.running and sequence.due <= now:
                output = self.advance(sequence, now)
                if output is not None:
                    outputs.append(output)
        self.admit()
        self.steps += 1
        return outputs

    def admit(self) -> None:
        running = sum(s.running for s in self.sequences.values())
        for sequence in self.sequences.values():
            if not sequence.running and "hold" not in sequence.script and running < MAX_RUNNING:
                sequence.running = True
                running += 1
                self.prompt_tokens += 0 if sequence.request.probe else len(sequence.request.prompt)
                if "strike" in sequence.script and self.naughty(sequence):
                    self.record([s for s in self.sequences.values() if s.running])
                    os.abort()
                self.ahead += float(sequence.script.get("long", 0))
                self.admitted.append(sequence.request.id)

    def advance(self, sequence: Sequence, now: float) -> Output | None:
        script, params, request = sequence.script, sequence.request.params, sequence.request
        sequence.due = now + float(script.get("slow", 0)) / 1000
        tokens: list[int] = []
        finish = None
        for _ in range(int(script.get("burst", 1))):
            self.misbehave(sequence)
            if sequence.said == int(script.get("wedge", -1)):
                sequence.due = float("inf")
                return None
            for end in ("fail", "refuse"):
                if sequence.said == int(script.get(end, -1)):
                    del self.sequences[request.id]
                    return Output(request.id, tokens, finish="error", message="scripted failure", refused=end == "refuse")
            if params.max_tokens:
                tokens.append(self.next_token(sequence))
            if tokens and tokens[-1] in {END, *params.stop_token_ids} and not (params.ignore_eos and tokens[-1] == END):
                finish = "stop"
            elif sequence.said >= params.max_tokens:
                finish = "length"
            if finish:
                del self.sequences[request.id]
                break
        logprobs = [self.logprob(token, params.logprobs) for token in tokens] if tokens and params.logprobs is not None else None
        if request.score_from is not None:
            return Output(
                request.id, [], finish=finish, logits=fake_logits(request.prompt, request.score_from, self.options.perturb).tobytes()
            )
        if request.embed is not None:
            return Output(request.id, [], finish="stop", cached_tokens=CACHED, vector=fake_vector(request.prompt, request.embed).tobytes())
        first = sequence.said == len(tokens) and not request.emitted
        scores = None
        if first and params.prompt_logprobs is not None:
            scores = [self.logprob(token, params.prompt_logprobs) for token in request.prompt[1:]]
        return Output(request.id, tokens, logprobs, finish, CACHED_LATER if request.emitted else CACHED, scores)

    def misbehave(self, sequence: Sequence) -> None:
        if not self.naughty(sequence):
            return
        for deed, number in (("die", signal.SIGKILL), ("crash", signal.SIGABRT), ("freeze", signal.SIGSTOP)):
            if sequence.said == int(sequence.script.get(deed, -1)):
                os.kill(os.getpid(), number)

    def naughty(self, sequence: Sequence) -> bool:
        return self.incarnation <= int(sequence.script.get("upto", 10**9))

    def next_token(self, sequence: Sequence) -> int:
        if sequence.answer is None:
            while len(sequence.counted) <= sequence.said:
                sequence.counted += f"{sequence.counted.count(b' ')} ".encode()
            token = byte_tokens(sequence.counted[sequence.said : sequence.said + 1])[0]
        else:
            token = sequence.answer[sequence.said] if sequence.said < len(sequence.answer) else END
        sequence.said += 1
        self.generated += not sequence.request.probe
        if self.options.random:
            return random.randrange(VOCABULARY)
        return token + 1 if self.options.wrong or self.poisoned(sequence) else token

    def poisoned(self, sequence: Sequence) -> bool:
        poison = self.options.poison
        return poison.exists() and (sequence.request.probe or poison.read_text() != "probes")

    def logprob(self, token: int, top: int) -> Logprob:
        others = [(token + i) % self.tokenizer.vocab_size for i in range(top)]
        return Logprob(token, -0.5, [(other, -0.5 - i) for i, other in enumerate(others)])


def fake_logits(prompt: list[int], start: int, perturb: float = 0.0) -> np.ndarray:
    """[len(prompt) - start, vocab] fp32, each row drawn from the tokens up to its position; perturb: how much noise is added."""
    import numpy as np

    rows = []
    for position in range(start, len(prompt)):
        draw = np.random.default_rng(prompt[: position + 1])
        row, noise = draw.normal(0, 3, (2, VOCABULARY)).astype(np.float32)
        rows.append(row + np.float32(perturb) * noise)
    return np.stack(rows)


def fake_vector(prompt: list[int], pooling: str) -> np.ndarray:
    """[WIDTH] fp32, drawn from the tokens and the way of pooling; not finite for a prompt of nothing but token 0."""
    import numpy as np

    draw = np.random.default_rng([*prompt, len(pooling)]).normal(0, 1, WIDTH).astype("<f4")
    return draw * np.float32("nan") if not any(prompt) else draw


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--die-at-start", action="store_true")
    parser.add_argument("--die-if", type=Path, default=Path("/nonexistent"), help="die at start while this file exists")
    parser.add_argument("--fail", default="")
    parser.add_argument("--stray", action="store_true", help="precede every step by a false one of another incarnation")
    parser.add_argument("--slow-start", type=float, default=0)
    parser.add_argument("--perturb", type=float, default=0.0, help="noise in the logits of scores")
    poison = "while this file exists, every token is a wrong one; those of probes only, if it says so"
    parser.add_argument("--poison", type=Path, default=Path("/nonexistent"), help=poison)
    parser.add_argument("fd", type=int)
    parser.add_argument("background", nargs="?", default="")
    parser.add_argument("--protocol", type=int, default=PROTOCOL)
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--wrong", action="store_true", help="every token is a wrong one")
    parser.add_argument("--encoder", action="store_true", help="say that it embeds only")
    parser.add_argument("--random", action="store_true", help="no two answers are alike")
    parser.add_argument("--die-after", type=int, default=-1, help="SIGKILL of itself when so many requests have come")
    parser.add_argument("--spare", type=int, default=0, help="bytes of its KV cache that nobody uses")
    parser.add_argument("--deaf", action="store_true", help="takes requests and says nothing")
    options = parser.parse_args()
    sock = socket.socket(fileno=options.fd)
    start = receive(sock, ToWorker)
    assert isinstance(start, Start)
    name, *more = shlex.split(start.config.model)
    options = parser.parse_args([*more, str(options.fd)], options)
    if reason := disagreement(start.protocol, options.protocol, "9.9"):
        send(sock, Failed(start.incarnation, reason))
        return
    if options.die_at_start or options.die_if.exists():
        os._exit(3)
    if options.fail:
        send(sock, Failed(start.incarnation, options.fail))
        return
    time.sleep(options.slow_start)  # deaf, as while loading weights
    recorder = Recorder(start.recorder) if start.recorder >= 0 else None
    model = Model(start.incarnation, options, recorder)
    facts = options.context, Capacity(12800, 512, 1.0), model.tokenizer.vocab_size, ["fake worker"], 0.0, PACE
    numerics = f"{name} {start.config.kv.codec} {start.config.activations}"
    memory = start.config.kv.memory or KV_MEMORY
    for adapter in start.config.adapters:
        model.change(adapter, True)
    about = {"generates": not options.encoder, "adapters": model.take_changes()}
    send(sock, Ready(start.incarnation, *facts, options.protocol, "9.9", numerics, name, memory, **about))
    serve(sock, model, start.incarnation, options.stray)


def serve(sock: socket.socket, model: Model, incarnation: int, stray: bool) -> None:
    taken = 0
    while True:
        outputs: list[Output] = []
        lent = -1
        if select.select([sock], [], [], model.wait())[0]:
            commands = receive(sock, ToWorker)
            if commands is None:
                return
            assert isinstance(commands, Commands)
            model.behind &= not commands.forward
            for request in commands.submit:
                model.submit(request)
            taken += len(commands.submit)
            outputs += filter(None, map(model.cancel, commands.cancel))
            lent = model.lend(commands.lend) if commands.lend >= 0 else -1
            for change in commands.adapters:
                model.change(change.adapter, change.load)
        outputs += model.step()
        if stray:
            false = [Output(request_id, byte_tokens(b"false")) for request_id in model.sequences]
            send(sock, Step(incarnation + 1, false, Stats(generated_tokens=10**6)))
        times = 1.0, PACE, model.ahead, taken
        send(sock, Step(incarnation, outputs, model.stats(), model.admitted, [], *times, model.take_changes(), lent))
        model.admitted = []


if __name__ == "__main__":
    main()
