"""The highest open-loop rate within p95 ≤ 700 ms and 99.95 % under 1 s: Pitstop and llama.cpp's server, in alternating runs.

    python bench/verify_load.py [--mix small] [--seconds 60] [--rate 4] [--only pitstop] [--slots 16] [--weights q4_0] [--slo FILE]
    python bench/verify_load.py --mix account --fixed --rate 0.1 --seconds 300 --context 8192 --slots 4

Run it on an idle machine. Both servers get the same requests by `pitstop verify load`'s own client, both without a prefix cache, and take
turns: one run each, until each search ends. --fixed: one run each at --rate instead. The ceiling comes first: what Pitstop's engine does
with the same mix all at once, without a server; no rate above it can be kept. A rate counts once it has met the limits twice. The last
line is JSON; "others" in it is the share of the cores that neither servers nor client had.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import peers_install
import streams
import texts
from others import Others
from tqdm import tqdm

from pitstop.config import usable_cores
from pitstop.models.weights.fetch import pull
from pitstop.models.weights.gguf import open_gguf
from pitstop.text.tokenizer import Tokenizer
from pitstop.verify.load import Plan, Schedule, read_mix
from pitstop.verify.load.find_max import Search, step
from pitstop.verify.load.mix import Mix
from pitstop.verify.load.session import Session
from pitstop.verify.load.tier import judge, with_search
from pitstop.verify.outcome import Outcome
from pitstop.verify.slo import LoadLimits, read_slo
from pitstop.verify.target import connect

SERVERS = ("pitstop", "llama.cpp")
ALL_AT_ONCE = 32
"""Requests of the ceiling's measurement: a full batch."""
TIMEOUT = 120.0


def ceiling(model: Path, mix: Mix, threads: int) -> float:
    """Requests/s of Pitstop's engine alone with the whole mix waiting: the answer tokens/s of a full batch over the mean answer."""
    tokenizer = Tokenizer(open_gguf(model).vocabulary())
    shapes = mix.draw(ALL_AT_ONCE, 0)
    answer = max(shape.answer for shape in shapes)
    ids = tokenizer.encode(texts.read()[: 8 * sum(shape.prompt for shape in shapes)])
    prompts, place = [], 0
    for shape in shapes:
        prompts.append(ids[place : place + shape.prompt])
        place += shape.prompt
    request = {"model": str(model), "threads": threads, "options": {}, "prompts": prompts, "tokens": answer}
    command = [sys.executable, Path(__file__).parent / "pitstop_speed.py"]
    done = subprocess.run(command, input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])["speed"] / answer


def shown(name: str) -> tuple[tqdm, object]:
    """A progress line, and what feeds it."""
    bar = tqdm(disable=None, leave=False, bar_format="{desc}")

    def show(phase: str, done: int, total: int) -> None:
        bar.set_description_str(f"{name}: {phase} {done or ''}{f' of {total}' if total else ''}")

    return bar, show


def measure(sessions: dict[str, Session], fixed: bool) -> dict[str, Outcome]:
    """One run each at the plan's rate, or searches that take turns."""
    started = time.time()
    if fixed:
        return {name: judge(session, session.measure(session.plan.schedule), started) for name, session in sessions.items()}
    searches = {name: Search(session.plan.schedule.rate, session.limits) for name, session in sessions.items()}
    last = {}
    while running := [name for name, search in searches.items() if not search.ended]:
        for name in running:
            measured = step(sessions[name], searches[name])
            last[name] = measured if measured.records or name not in last else last[name]
            probe = searches[name].probes[-1]
            why = "" if probe.passed else f": {probe.reasons[0] if probe.reasons else 'stopped'}"
            print(f"{name:10} {probe.rate:6.2f}/s {'met' if probe.passed else 'missed'} ({probe.requests} requests){why}", flush=True)
    return {name: with_search(judge(sessions[name], last[name], started), searches[name]) for name in sessions}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--mix", default="small")
    parser.add_argument("--rate", type=float, default=4.0, help="where the searches begin, or the one rate")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--fixed", action="store_true", help="one run each at --rate")
    parser.add_argument("--only", choices=SERVERS)
    parser.add_argument("--slo", type=Path, help="limits other than the default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slots", type=int, default=16, help="of llama.cpp's server")
    parser.add_argument("--context", type=int, default=640, help="tokens of each of its slots")
    parser.add_argument("--weights", default="as shipped", help="llama.cpp's: as shipped, or a type to re-quantise to, like q4_0")
    parser.add_argument("--serve", default="", help="options of pitstop serve, in one string")
    parser.add_argument("--threads", type=int, default=usable_cores())
    return parser.parse_args()


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end, too
    limits: LoadLimits = read_slo(options.slo).load
    model, mix = Path(pull(options.model)), read_mix(options.mix)
    most = ceiling(model, mix, options.threads)
    print(f"ceiling: Pitstop's engine answers {most:.2f} requests/s of mix {options.mix} when all wait at once", flush=True)
    plan = Plan(mix, Schedule("poisson", options.rate, options.seconds), options.seed, TIMEOUT)
    names = [options.only] if options.only else list(SERVERS)
    with Others() as others, ExitStack() as stack:
        urls = {}
        if "pitstop" in names:
            port = stack.enter_context(streams.server(options.model, ["--threads", str(options.threads), *options.serve.split()]))
            urls["pitstop"] = f"http://127.0.0.1:{port}"
        if "llama.cpp" in names:
            peers_install.install(options.threads)
            peer = peers_install.quantized(model, options.weights)
            server = streams.llama_server(peer, options.threads, options.slots, options.context, "--no-cache-prompt", "-cram", "0")
            urls["llama.cpp"], _ = stack.enter_context(server)
        sessions = {}
        for name, url in urls.items():
            bar, show = shown(name)
            stack.enter_context(bar)
            sessions[name] = stack.enter_context(Session(connect(url), limits, plan, show))
        outcomes = measure(sessions, options.fixed)
    for name, outcome in outcomes.items():
        print(f"\n{name}: {'all limits met' if outcome.passed else 'limits missed'}")
        for check in outcome.checks:
            print(f"  {'PASS' if check.passed else 'FAIL'} {check.name}: {check.reason}")
    print(others)
    wanted = ("max_rate", "requests", "goodput_per_s", "requests_per_s", "answer_tokens_per_s", "e2e_ms", "ttft_ms", "ms_per_token")
    rows = {name: {key: outcome.figures.get(key) for key in wanted if key in outcome.figures} for name, outcome in outcomes.items()}
    setting = {"mix": options.mix, "seconds": options.seconds, "rate": options.rate, "slots": options.slots, "weights": options.weights}
    print(json.dumps({**setting, "ceiling_per_s": round(most, 2), "servers": rows, "others": round(others.share, 3)}))


if __name__ == "__main__":
    main()
