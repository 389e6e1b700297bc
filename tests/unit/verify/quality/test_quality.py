"""The quality tier against servers whose distributions are known: figures, bounds and their names, verdicts, and what goes wrong."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from peer import Peer, serve

from pitstop.errors import ConfigError, TargetError
from pitstop.stats import Comparison
from pitstop.verify.outcome import Outcome
from pitstop.verify.quality import Plan, run
from pitstop.verify.quality.choices import Chooser
from pitstop.verify.quality.plan import Item, built_in_texts, read_text
from pitstop.verify.quality.side import Position
from pitstop.verify.slo import QualityLimits

TEXT = "the rain in the north had not ended when the letter and the lantern arrived. " * 3
PLAN = Plan(window=64, windows=2, contexts=20, texts={"plain": TEXT}, prompts=["one", "two"])
ITEMS = [Item("", "which?", ["on", "in", "an", "the rest"], 0), Item("", "what?", ["x", "no", "one", "rain"], 3)]
LOOSE = QualityLimits(mean_kl=100, kl_p999=100, same_top_share=0, perplexity_rise=100, flipped_share=1, length_drift=100)


def judged(a: Peer, b: Peer, limits: QualityLimits = LOOSE, **plan) -> Outcome:
    fields = {"window": 64, "contexts": 20, "texts": {"plain": TEXT}, "prompts": ["one", "two"], "items": ITEMS} | plan
    with serve(a) as first, serve(b) as second:
        return run(first, second, limits, Plan(**fields))


def truth(a: Peer, b: Peer, positions: list[tuple[list[int], int]] | None = None) -> Comparison:
    """Over the second half of each window of TEXT, or at given positions."""
    found = Comparison()
    windows = PLAN.cut(list(TEXT.encode()))
    for window, position in positions or [(w, p) for w in windows for p in range(PLAN.lead, len(w) - 1)]:
        rows = [peer.logits(window[: position + 1])[None] for peer in (a, b)]
        found.add(*rows, np.array([window[position + 1]]))
    return found


def names(outcome: Outcome) -> dict[str, bool]:
    return {check.name.removeprefix("quality."): check.passed for check in outcome.checks}


@pytest.mark.parametrize("kind", ["rows", "echo", "next"])
def test_equal_servers_do_not_differ(kind: str):
    outcome = judged(Peer(kind), Peer(kind), _none_allowed())
    assert outcome.passed, outcome.failures
    label = "" if kind == "rows" else "_at_least"
    assert outcome.figures[f"mean_kl{label}"] == 0
    assert outcome.figures[f"kl_p999{label}"] == 0
    assert outcome.figures["same_top_share"] == 1
    assert outcome.figures["answers"]["equal"] == 2
    assert outcome.tier == "quality"
    assert outcome.target["reference_url"] != outcome.target["url"]


def _none_allowed() -> QualityLimits:
    return QualityLimits(mean_kl=0, kl_p999=0, same_top_share=1, perplexity_rise=0, flipped_share=1, length_drift=0)


def test_over_the_whole_vocabulary_the_figures_are_exact():
    a, b = Peer(), Peer(noise=0.3)
    figures, expected = judged(a, b).figures, truth(a, b).agreement()
    assert figures["mean_kl"] == pytest.approx(expected.kl_mean, rel=1e-12)
    assert figures["kl_p999"] == pytest.approx(expected.kl_p999, rel=1e-12)
    assert figures["same_top_share"] == expected.same_top
    assert figures["perplexity_rise"] == pytest.approx(expected.perplexity_rise, rel=1e-12)
    assert figures["texts"]["all"]["perplexity_a"] == pytest.approx(expected.reference_perplexity, rel=1e-12)
    assert figures["texts"]["all"]["positions"] == expected.tokens


@pytest.mark.parametrize(("first", "second"), [("echo", "echo"), ("rows", "echo"), ("echo", "rows")])
def test_likeliest_tokens_bound_the_divergence_and_say_so(first: str, second: str):
    a, b = Peer(first), Peer(second, noise=0.3)
    outcome, expected = judged(a, b), truth(Peer(), Peer(noise=0.3)).agreement()
    assert 0.2 * expected.kl_mean < outcome.figures["mean_kl_at_least"] < expected.kl_mean
    assert outcome.figures["kl_p999_at_least"] < expected.kl_p999
    assert outcome.figures["same_top_share"] == pytest.approx(expected.same_top)
    assert outcome.figures["perplexity_rise"] == pytest.approx(expected.perplexity_rise, rel=1e-9)
    assert "mean_kl" not in outcome.figures
    assert {"mean_kl_at_least", "kl_p999_at_least", "perplexity_rise"} <= set(names(outcome))
    assert "lower bound" in outcome.notes[0]
    assert "at least" in outcome.checks[0].reason


@pytest.mark.parametrize(("first", "second"), [("next", "next"), ("rows", "next"), ("next", "echo")])
def test_next_tokens_alone_bound_and_estimate_and_say_so(first: str, second: str):
    a, b = Peer(first), Peer(second, noise=0.3)
    outcome = judged(a, b)
    every = [(w, p) for w in PLAN.cut(list(TEXT.encode())) for p in range(PLAN.lead, len(w) - 1)]
    chosen = every[:: len(every) // 20]
    expected = truth(Peer(), Peer(noise=0.3), chosen).agreement()
    assert outcome.figures["texts"]["all"]["positions"] == len(chosen)
    assert 0.2 * expected.kl_mean < outcome.figures["mean_kl_at_least"] < expected.kl_mean
    assert outcome.figures["same_top_share"] == pytest.approx(expected.same_top)
    assert "perplexity_rise" not in outcome.figures
    known = [(w, p) for w, p in chosen if all(w[p + 1] in np.argsort(-peer.logits(w[: p + 1]))[:20] for peer in (a, b))]
    assert outcome.figures["texts"]["all"]["positions_known"] == len(known) > 3
    assert outcome.figures["perplexity_rise_estimate"] == pytest.approx(truth(a, b, known).agreement().perplexity_rise)
    assert {"mean_kl_at_least", "kl_p999_at_least", "perplexity_rise_estimate"} <= set(names(outcome))
    assert "estimates" in outcome.notes[0]


def test_positions_at_which_a_server_names_no_tokens_are_left_out():
    a, b = Peer("next"), Peer("next", noise=0.3)
    whole = judged(a, b).figures["texts"]["all"]["positions"]
    b.unnamed = set(b" aeio")
    figures = judged(a, b).figures
    assert 0 < figures["texts"]["all"]["positions"] < whole
    assert figures["mean_kl_at_least"] > 0
    b.unnamed = set(range(256))
    assert "B give no log-probabilities" in judged(a, b).failures[0].reason


def test_each_limit_is_judged_in_its_direction():
    a, b = Peer(), Peer(noise=0.5, says="Longer: {} and so on.")
    figures = judged(a, b).figures
    for limit, higher_is_better in {"mean_kl": 0, "kl_p999": 0, "same_top_share": 1, "perplexity_rise": 0, "length_drift": 0}.items():
        value = figures[limit]
        for factor, passes in ((0.99, bool(higher_is_better)), (1.01, not higher_is_better)):
            alone = QualityLimits(mean_kl=None, perplexity_rise=None)
            limits = type(alone)(**dict.fromkeys(alone.__struct_fields__) | {limit: value * factor})
            outcome = judged(a, b, limits)
            assert [(check.name, check.passed) for check in outcome.checks] == [(f"quality.{limit}", passes)]
            assert outcome.checks[0].limit == value * factor
            assert outcome.checks[0].value == value


def test_without_a_limit_there_is_no_pass():
    nothing = QualityLimits(mean_kl=None, perplexity_rise=None)
    assert not judged(Peer(), Peer(), nothing).passed


@pytest.mark.parametrize("kind", ["rows", "echo", "next"])
def test_flips_are_of_the_choice_whose_text_is_likeliest(kind: str):
    """Against the choices scored by hand; the short ones are known from the likeliest tokens, too, or left open."""
    a, b = Peer(kind), Peer(kind, noise=1.5)
    items = [Item("", f"which {n}?", ["on", "in", "so", "th"], n % 4) for n in range(12)]
    figures = judged(a, b, items=items).figures["choices"]

    def best(peer: Peer, item: Item) -> int:
        scores = []
        for choice in item.choices:
            start, whole = len(item.prompt) + 1, list(f"{item.prompt} {choice}".encode())
            scores.append(sum(peer.logprobs(whole[:i])[whole[i]] for i in range(start, len(whole))))
        return int(np.argmax(scores))

    chosen = [(best(a, item), best(b, item)) for item in items]
    flipped = sum(x != y for x, y in chosen)
    assert 0 < flipped < len(items)
    if figures["open"] == 0:
        assert figures["flipped"] == flipped
        assert figures["accuracy_a"] == sum(x == item.answer for (x, _), item in zip(chosen, items, strict=True)) / 12
    assert flipped <= figures["flipped"] <= flipped + figures["open"]
    assert kind == "next" or figures["open"] == 0


def test_what_the_likeliest_tokens_leave_open_counts_as_flipped():
    outcome = judged(Peer("next"), Peer("next"), items=[Item("", "which?", ["\x01\x02", "\x03\x04", "\x05\x06", "\x07\x08"], 0)])
    assert outcome.figures["choices"]["open"] == 1
    assert outcome.figures["flipped_share_at_most"] == 1
    assert outcome.figures["choices"]["accuracy_b_at_least"] == 0
    assert "accuracy_b" not in outcome.figures["choices"]
    assert "left open" in outcome.tables[0].rows[-2][3] or "leave open" in outcome.tables[0].rows[-2][3]


def test_a_bound_above_the_best_known_choice_leaves_it_open():
    """Four tokens, two of which are named: the second is known, the third may be as likely as the least of the named ones."""

    named = {b"a": -0.7, b"b": -1.2}

    class Four:
        ability = "next"

        def tokens(self, text: str) -> list[int]:
            return [1, *text.partition("Answer:")[2].replace(" ", "").encode()]

        def piece(self, token: int) -> bytes:
            return bytes([token])

        def following(self, tokens: list[int]) -> Position:
            return Position(named if len(tokens) == 1 else {b"z": -0.9})

    def chosen(*choices: str) -> int | None:
        return Chooser(Four()).choose(Item("", "", list(choices), 0))

    assert chosen("a", "b", "c", "d") == 0
    assert chosen("c", "b", "d", "e") is None
    assert chosen("d", "bz", "az", "c") is None
    assert chosen("bz", "az", "bx", "by") == 1
    assert chosen("c", "d", "e", "f") is None


def test_an_echo_that_lacks_tokens_is_none(monkeypatch: pytest.MonkeyPatch):
    whole = Peer.complete

    def without_the_first(self: Peer, body: dict) -> tuple[int, dict]:
        status, answer = whole(self, body)
        if body.get("echo") and self.kind == "echo":
            answer["choices"][0]["logprobs"] = {name: values[1:] for name, values in answer["choices"][0]["logprobs"].items()}
        return status, answer

    monkeypatch.setattr(Peer, "complete", without_the_first)
    assert judged(Peer("echo"), Peer()).figures["ability_a"] == "next"


def test_lengths_and_equal_answers():
    outcome = judged(Peer(says="abcd"), Peer(says="abcde"))
    assert outcome.figures["length_drift"] == pytest.approx(0.25)
    assert outcome.figures["answers"]["equal"] == 0
    assert judged(Peer(says="abcde"), Peer(says="abcd")).figures["length_drift"] == pytest.approx(0.2)
    silent = judged(Peer(says=""), Peer())
    assert not names(silent)["length_drift"]
    assert silent.failures[-1].reason == "not measured: A answers nothing"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nan", "the logits of A and B on plain cannot be compared: logits must be finite"),
        ("short", r"/admin/score answered \d+ rows from 0 in \d+ bytes: not what was asked for"),
        ("header", "/admin/score speaks a format that is not known here"),
        ("locked", "/admin/score needs a key: set PITSTOP_VERIFY_ADMIN_KEY"),
        ("vocabulary", "the logits of A and B on plain cannot be compared: shapes differ"),
    ],
)
def test_a_server_that_answers_nonsense_is_no_measurement(wrong: str, message: str):
    with pytest.raises(TargetError, match=message):
        judged(Peer(), Peer(wrong=wrong))


def test_other_tokens_cannot_be_compared_and_that_fails():
    outcome = judged(Peer(), Peer(wrong="tokens"))
    failed = {check.name: check.reason for check in outcome.failures}
    assert set(failed) == {f"quality.{name}" for name in ("mean_kl", "kl_p999", "same_top_share", "perplexity_rise")}
    assert all(reason.startswith("not measured: the tokenizers differ on plain") for reason in failed.values())
    assert {"flipped_share", "length_drift"} <= set(names(outcome))
    nothing = QualityLimits(mean_kl=None, perplexity_rise=None, length_drift=10)
    assert judged(Peer(), Peer(wrong="tokens"), nothing).passed  # what is not judged need not be comparable


def test_a_server_without_log_probabilities_cannot_be_compared_and_that_fails():
    outcome = judged(Peer(), Peer("none"))
    assert {check.name for check in outcome.failures} == {
        f"quality.{name}" for name in ("mean_kl", "kl_p999", "same_top_share", "perplexity_rise", "flipped_share")
    }
    assert "B give no log-probabilities" in outcome.failures[0].reason


def test_the_two_are_asked_in_turns(monkeypatch: pytest.MonkeyPatch):
    """Never both at once: one thread asks."""
    running: Counter[str] = Counter()
    original = Peer.answer

    def watched(self: Peer, path: str, body: dict):
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        try:
            return original(self, path, body)
        finally:
            running["now"] -= 1

    monkeypatch.setattr(Peer, "answer", watched)
    judged(Peer(), Peer())
    assert running["most"] == 1


def test_progress_ends_where_it_should():
    seen: dict[str, tuple[int, int]] = {}
    with serve(Peer()) as a, serve(Peer("next")) as b:
        run(
            a,
            b,
            LOOSE,
            Plan(window=64, contexts=20, texts={"plain": TEXT}, prompts=["x"], items=ITEMS),
            lambda *step: seen.update({step[0]: step[1:]}),
        )
    assert set(seen) == {"texts", "questions", "answers"}
    assert all(done == total > 0 for done, total in seen.values())


def test_short_texts():
    outcome = judged(Peer(), Peer(), texts={"long": TEXT, "short": "too short"})
    assert "Too short for a window, and left out: short." in outcome.notes
    with pytest.raises(TargetError, match="no text is long enough for a window"):
        judged(Peer(), Peer(), texts={"short": "too short"})


def test_the_outcome_is_json():
    import msgspec

    outcome = judged(Peer(), Peer("next", noise=0.3))
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome) == outcome


def test_what_comes_with_it():
    texts = built_in_texts()
    assert list(texts) == ["english", "code", "chinese"]
    assert all(len(text.encode()) > 2000 for text in texts.values())
    items = Plan().items
    assert 40 <= len(items) <= 60
    assert len({item.question for item in items if item.question != "Which sentence is correct?"}) + 3 == len(items)
    for item in items:
        assert len(set(item.choices)) == 4
        assert 0 <= item.answer < 4
    assert set(Counter(item.answer for item in items).values()) == {len(items) // 4}
    assert {item.kind for item in items} == {"fact", "sense", "sum", "grammar"}
    assert len(set(Plan().prompts)) == len(Plan().prompts) == 8
    assert all(len(prompt) > 1200 for prompt in Plan().prompts)
    assert all(len(item.prompt) > 800 for item in items)  # 128 tokens and more: a sealed segment is read
    assert not any(item.question in item.before for item in items if item.question != "Which sentence is correct?")


def test_windows():
    plan = Plan(window=10, windows=2, texts={})
    tokens = list(range(100))
    assert plan.cut(tokens) == [tokens[:10], tokens[10:20]]
    assert plan.cut(tokens[:17]) == [tokens[:10], tokens[10:17]]
    assert plan.cut(tokens[:16]) == [tokens[:10]]
    with pytest.raises(ConfigError, match="--window 7: at least 8"):
        Plan(window=7)
    with pytest.raises(ConfigError, match="--windows 0"):
        Plan(windows=0)


def test_a_text_of_ones_own(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("some text")
    assert read_text(tmp_path / "mine.txt") == {"mine.txt": "some text"}
    with pytest.raises(ConfigError, match="--text"):
        read_text(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="--text"):
        read_text(tmp_path / "binary")


def test_the_data_files_are_json():
    import pitstop.verify.quality.plan as plan

    folder = Path(plan.__file__).parent / "data"
    assert all(json.loads(path.read_text()) for path in folder.glob("*.json"))
