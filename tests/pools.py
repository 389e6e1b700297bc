"""A pool before fake workers, for tests of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

from fake_worker import CONTEXT, WIDTH
from toys import CHAT_TEMPLATE, toy_vocabulary

from pitstop.config import Adapter, EngineConfig, PoolConfig
from pitstop.errors import WeightsError
from pitstop.models.embedding import Embedding
from pitstop.pool import Opened, Pool, Stream, Texts
from pitstop.text.template import ChatTemplate
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import Request, SamplingParams

FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))
TOKENIZER = Tokenizer(toy_vocabulary())
TEXTS = Texts(TOKENIZER, ChatTemplate(CHAT_TEMPLATE, TOKENIZER), "toy", width=WIDTH)
HUGE = 1 << 50


def toy_model(model: str, template: str = CHAT_TEMPLATE) -> Opened:
    """What the front reads of a fake worker's model, "NAME options".

    "alien" has other words, "huge" that many weights, "broken" none; "embedder" says how it embeds.
    """
    name = model.split()[0]
    if name == "broken":
        raise WeightsError(model, "the file is truncated; fetch it again")
    tokenizer = Tokenizer(toy_vocabulary())
    template = ChatTemplate("Alien: " + template if name == "alien" else template, tokenizer)
    embedding = Embedding("mean", dimensions=(WIDTH // 2,)) if name == "embedder" else None
    texts = Texts(tokenizer, template, name if name in ("alien", "embedder") else "toy", embedding, WIDTH)
    return Opened(model, texts, CONTEXT, *[HUGE if name == "huge" else 1] * 2)


@asynccontextmanager
async def running_pool(*options: str, adapters: tuple[Adapter, ...] = (), **config):
    config = {"restart_backoff": 0.05, "crash_dir": ""} | config
    pool = Pool(PoolConfig(**config), EngineConfig(model="toy", adapters=adapters), TEXTS, command=(*FAKE, *options))
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
        pool.journal.check()
        assert not pool.journal.entries


def run(test: Callable[[], Coroutine]) -> Callable[[], None]:
    def wrapped() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


_ids = iter(range(10**6))


def requests(prompt: str, choices: int = 1, timeout: float | None = None, adapter: str = "", **params) -> list[Request]:
    params.setdefault("max_tokens", 100)
    number = next(_ids)
    now = time.monotonic()
    return [
        Request(
            id=f"r{number}-{choice}",
            prompt=TOKENIZER.encode(prompt),
            params=SamplingParams(**params),
            choice=choice,
            group=f"r{number}",
            arrival=now,
            deadline=None if timeout is None else now + timeout,
            adapter=adapter,
        )
        for choice in range(choices)
    ]


def ask(pool: Pool, prompt: str, **options) -> Stream:
    wanted = requests(prompt, **options)
    with pool.enter(len(wanted)) as place:
        return place.fit(wanted).submit(wanted)


async def answer(stream: Stream) -> tuple[str, str | None]:
    text, finish = "", None
    async for _, delta in stream:
        text += delta.text
        finish = delta.finish
    return text, finish


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process brings about; the test's own time limit bounds it."""
    while not condition():
        await asyncio.sleep(0.005)
