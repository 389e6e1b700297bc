"""What do 8 and 4 bits cost a model, and how much of that do calibration and training win back?

    python bench/quantize.py [--model NAME_OR_PATH] [--work FOLDER] [--only "NAME;NAME"] [--steps 200] …

Each way of rounding is one `pitstop quantize` into a folder under --work, measured against the model as it was on text that none of them
saw: the last tenth of English prose and of code (bench/corpora.py); calibration and training take the rest. A folder that is there is not
made again, and training goes on where it was stopped: the bench may be run in pieces. Printed for each: KL divergence (mean and 99.9 %,
nats), changed top tokens, perplexity, and the share of the plain rounding's KL divergence that is won back. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import corpora
from peers_install import ROOT

from pitstop.models.weights.fetch import pull
from pitstop.precision import grid
from pitstop.precision.quantize import REPORT, Wish, quantize
from pitstop.precision.scheme import WHOLE_OUTPUT
from pitstop.precision.training import Interrupted, Training

PLAIN = "int4"
LENGTH = 256
TEXTS = ("english", "code")


def ways(options: argparse.Namespace) -> dict[str, Wish]:
    """By name. Those that train come last: they take the longest."""
    used, heldout = texts(options.work, options)
    training = Training(steps=options.steps, lr=options.lr, batch=options.batch, length=LENGTH, seed=options.seed)
    base = Wish(heldout=str(heldout), training=training, threads=options.threads)
    by_output = replace(base, bits=8, group=WHOLE_OUTPUT)
    return {
        "int8": replace(base, bits=8),
        "int8, widest": replace(base, bits=8),
        "int8, calibrated": replace(base, bits=8, calibrate=str(used)),
        "int8 by output": by_output,
        "int8 by output, calibrated": replace(by_output, calibrate=str(used)),
        "int4, widest": base,
        PLAIN: base,
        "int4, asymmetric": replace(base, symmetric=False),
        "int4, calibrated": replace(base, calibrate=str(used)),
        "int4, trained": replace(base, qat=str(used)),
        "int4, trained on tokens": replace(base, qat=str(used), training=replace(training, objective="tokens")),
    }


def texts(work: Path, options: argparse.Namespace) -> tuple[Path, Path]:
    """Files to use and to measure on, written once."""
    files = work / "used.txt", work / "heldout.txt"
    if not all(file.exists() for file in files):
        work.mkdir(parents=True, exist_ok=True)
        whole = [corpora.read(name, getattr(options, name)) for name in TEXTS]
        files[0].write_text("\n\n".join(text[: len(text) * 9 // 10] for text in whole))
        files[1].write_text("\n\n".join(text[len(text) * 9 // 10 :] for text in whole))
    return files


def made(model: Path, folder: Path, name: str, wish: Wish) -> dict:
    """The folder's report."""
    if not folder.exists():
        print(f"{name}: {wish}", file=sys.stderr, flush=True)
        ratios = dict.fromkeys(grid.RATIOS, (1.0,)) if name.endswith("widest") else grid.RATIOS
        with mock.patch.object(grid, "RATIOS", ratios):
            quantize(model, folder, wish)
    return json.loads((folder / REPORT).read_text())


def show(reports: dict[str, dict]) -> None:
    """Won back: of what plain rounding to 4 bits costs, where that is among the reports; those of training have it, too."""
    plain = [report["rounded"]["kl_mean"] for name, report in reports.items() if name == PLAIN or report["trained"]]
    print(f"{'':26}{'KL mean':>10}{'KL 99.9 %':>11}{'top changed':>13}{'perplexity':>12}{'won back':>10}")
    print(f"{'as it was':26}{'':34}{next(iter(reports.values()))['rounded']['reference_perplexity']:12.4f}")
    for name, report in reports.items():
        line = report["trained"] or report["rounded"]
        back = f"{1 - line['kl_mean'] / plain[0]:10.1%}" if plain and name.startswith(PLAIN + ",") else ""
        changed = 100 * (1 - line["same_top"])
        print(f"{name:26}{line['kl_mean']:10.5f}{line['kl_p999']:11.4f}{changed:11.2f} %{line['perplexity']:12.4f}{back}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--work", type=Path, default=ROOT / "quantize", help="where the folders lie")
    parser.add_argument("--only", default="", help="names of ways, separated by semicolons")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=Training.lr)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    corpora.add_options(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    model, reports = Path(pull(options.model)), {}
    for name, wish in ways(options).items():
        if options.only and name not in options.only.split(";"):
            continue
        folder = options.work / name.replace(", ", "-").replace(" ", "-")
        try:
            reports[name] = made(model, folder, name, wish)
        except Interrupted as stopped:
            sys.exit(f"{name}: {stopped}")
    tokens = next(iter(reports.values()))["rounded"]["tokens"]
    print(f"{model.name}, measured on {tokens} tokens; training: {options.steps} steps of {options.batch} sequences of {LENGTH} tokens")
    show(reports)
    print(json.dumps({"model": model.name, "tokens": tokens, "ways": reports}, ensure_ascii=False))


if __name__ == "__main__":
    main()
