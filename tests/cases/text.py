"""Cases 1–7: text and streaming."""

from __future__ import annotations

import pytest
from servers import Server, refused


def contents(events: list[dict]) -> str:
    return "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])


@pytest.mark.parametrize("text", ["你好，世界！很高兴见到你。", "Emoji: 🙂🙃 👩‍👩‍👧 🇫🇷 é"])
def test_case_01_streamed_text_is_whole_characters_and_equals_the_unstreamed(server: Server, text: str):
    content = server.says(text)
    events = server.chat_stream(content, max_tokens=60)
    assert all("\ufffd" not in choice["delta"].get("content", "") for event in events for choice in event["choices"])
    assert contents(events) == server.chat(content, max_tokens=60).json()["choices"][0]["message"]["content"]


def test_case_01_completions_too(server: Server):
    body = {"model": server.model, "prompt": "你好，世界！🙂 你好，世界！🙂 你好，", "max_tokens": 40, "temperature": 0}
    texts = [choice["text"] for event in server.stream("/v1/completions", body) for choice in event["choices"]]
    assert all("\ufffd" not in text for text in texts)
    assert "".join(texts) == server.complete(body["prompt"], max_tokens=40).json()["choices"][0]["text"]


@pytest.mark.parametrize("streamed", [True, False])
def test_case_02_no_part_of_a_stop_string_leaks(server: Server, streamed: bool):
    content = server.says("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    whole = server.chat(content, max_tokens=40).json()["choices"][0]["message"]["content"]
    assert len(whole) > 12
    stop = whole[3:10]
    if streamed:
        events = server.chat_stream(content, max_tokens=40, stop=stop)
        text, finish = contents(events), events[-1]["choices"][0]["finish_reason"]
    else:
        choice = server.chat(content, max_tokens=40, stop=["\x00never", stop]).json()["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    assert (text, finish) == (whole[: whole.index(stop)], "stop")


@pytest.mark.parametrize("stop", ["", [""], ["x", ""], ["x"] * 17, "x" * 1025, [1], 1, {}, [["x"]]])
def test_case_03_a_stop_string_that_cannot_be(server: Server, stop: object):
    refused(server.chat(stop=stop), 400)
    assert refused(server.complete(stop=stop), 400).startswith(("stop", "each stop"))


@pytest.mark.parametrize("stop", [None, [], "zzz", ["zzz", "yyy"]])
def test_case_03_a_stop_string_that_can(server: Server, stop: object):
    assert server.chat(stop=stop).status_code == 200


LONE = "a\ud83db"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("messages[0].content", {"messages": [{"role": "user", "content": LONE}]}),
        ("messages[0].content[0].text", {"messages": [{"role": "user", "content": [{"type": "text", "text": LONE}]}]}),
        ("messages[0].name", {"messages": [{"role": "user", "content": "x", "name": LONE}]}),
        ("stop", {"stop": LONE}),
        ("stop[1]", {"stop": ["x", LONE]}),
        ("user", {"user": LONE}),
        ("model", {"model": LONE}),
        ("a?b", {LONE: 1}),
    ],
)
def test_case_04_a_lone_surrogate_is_refused_by_name(server: Server, path: str, fields: dict):
    assert "surrogate" in refused(server.chat(**fields), 400, path)
    if "messages" not in fields:
        refused(server.complete(**fields), 400, path)
    refused(server.complete(LONE), 400, "prompt")
    refused(server.post("/tokenize", {"prompt": LONE}), 400, "prompt")


@pytest.mark.parametrize("text", ["a\x00b", "\ufeffhello", "e" + "\u0301" * 10_000, "\uffff\ufdd0", "\u202e\u200b", " ", ""])
def test_case_04_odd_but_valid_text_is_taken(server: Server, text: str):
    short = text[: server.context // 8]
    response = server.chat(short, user=short, stop=[short] if short else None)
    assert response.status_code == 200, response.text
    assert "\ufffd" not in response.json()["choices"][0]["message"]["content"]
    assert server.post("/tokenize", {"prompt": text}).status_code == 200


def test_case_04_text_survives_the_tokenizer(server: Server):
    text = "digits 12345, tabs\t\t, 日本語, \ufeff, 🙂👩‍👩‍👧, <|im_end|>, é e\u0301\r\n"
    tokens = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": text}


def test_case_05_parts_are_joined_in_order(server: Server):
    parts = [{"type": "text", "text": "one, "}, {"type": "text", "text": "two"}]

    def tokens(content: object) -> list[int]:
        return server.post("/tokenize", {"messages": [{"role": "user", "content": content}]}).json()["tokens"]

    assert tokens(parts) == tokens("one, two") != tokens(parts[::-1])
    usage = server.chat(parts).json()["usage"]
    assert usage["prompt_tokens"] == len(tokens("one, two"))


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([], "messages[0].content"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}], "messages[0].content[0].type"),
        ([{"type": "text", "text": "x"}, {"type": "input_audio", "input_audio": {}}], "messages[0].content[1].type"),
        ([{"type": "text"}], "messages[0].content[0].text"),
        (["x"], "messages[0].content[0]"),
        (None, "messages[0].content"),
        (5, "messages[0].content"),
        ({"type": "text", "text": "x"}, "messages[0].content"),
    ],
)
def test_case_05_what_is_no_text_is_refused(server: Server, content: object, path: str):
    refused(server.chat(content), 400, path)


def test_case_06_stream_options(server: Server):
    plain = server.chat_stream()
    assert all("usage" not in event for event in plain)
    empty = server.chat_stream(stream_options={})
    assert len(empty) == len(plain)
    assert all("usage" not in event for event in empty)
    events = server.chat_stream(stream_options={"include_usage": True})
    assert [event["choices"] == [] for event in events] == [False] * (len(events) - 1) + [True]
    assert all(event["usage"] is None for event in events[:-1])
    usage = server.chat().json()["usage"]
    assert {key: events[-1]["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    refused(server.chat(stream_options={"include_usage": True}), 400, "stream_options")
    refused(server.chat(stream=False, stream_options={}), 400, "stream_options")
    refused(server.chat(stream=True, stream_options={"include_usage": 1}), 400, "stream_options.include_usage")
    refused(server.chat(stream=True, stream_options={"what": True}), 400, "stream_options.what")


def test_case_06_with_the_openai_client(server: Server):
    chunks = list(
        server.openai.completions.create(
            model=server.model,
            prompt="hello",
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens >= 0
