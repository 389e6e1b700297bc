"""The server under test: where it is, which model it serves, what it says it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx

from pitstop.errors import TargetError

TIMEOUT = 30.0
"""Seconds for a question that is no generation."""


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server that answered. `url` has no /v1 and no slash at its end; `facts` are for the report."""

    url: str
    model: str
    key: str = field(default="", repr=False)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def client(self, timeout: float = TIMEOUT) -> httpx.Client:
        """A client whose paths begin at the server's root: "/v1/completions". The environment's proxies are not used."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=timeout, trust_env=False)


def connect(url: str, model: str = "", key: str = "") -> Target:
    """Ask the server at `url` (with or without /v1) what it serves; its only or first model when `model` is empty.

    Raises TargetError when it does not answer as an OpenAI-compatible server, or does not serve `model`.
    """
    root = url.rstrip("/").removesuffix("/v1")
    probe = Target(root, model, key)
    try:
        with probe.client() as client:
            answer = client.get("/v1/models")
            answer.raise_for_status()
            names = [str(entry["id"]) for entry in answer.json()["data"]]
            facts = {"url": root, "server": _kind(client, answer)}
    except httpx.HTTPStatusError as error:
        hint = "; give its key with --key or in PITSTOP_VERIFY_KEY" if error.response.status_code in (401, 403) else ""
        raise TargetError(f"{root}/v1/models answered {error.response.status_code}{hint}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise TargetError(f"{root} does not answer: {error or type(error).__name__}; is the server up?") from None
    except (ValueError, KeyError, TypeError):
        raise TargetError(f"{root}/v1/models is no list of models as OpenAI defines it") from None
    if not names:
        raise TargetError(f"{root} serves no model")
    if model and model not in names:
        raise TargetError(f"{root} does not serve {model!r}; it serves {', '.join(names)}")
    chosen = model or names[0]
    return Target(root, chosen, key, facts | {"model": chosen})


def _kind(client: httpx.Client, answer: httpx.Response) -> str:
    """What the server is, as far as it says: Pitstop by its build metric, others by their header."""
    text = client.get("/metrics").text
    for line in text.splitlines():
        if line.startswith("pitstop_build_info{"):
            return f"Pitstop {line.partition('version=')[2].split(chr(34))[1]}"
    owner = str(answer.json()["data"][0].get("owned_by", "")) if answer.json()["data"] else ""
    return answer.headers.get("server") or {"llamacpp": "llama.cpp"}.get(owner, owner) or "unknown"
