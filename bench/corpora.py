"""Three kinds of text to measure on, from packages that anyone can install: English prose, code, and Chinese prose.

english: the Jargon File (public domain), Debian's `jargon-text`. chinese: The Debian Administrator's Handbook in Chinese (CC-BY-SA-3.0),
Debian's `debian-handbook`. code: modules of Python's own library. Debian's packages are fetched by apt into .peers/texts and unpacked
there, not installed. Any other text may stand in as a file. WikiText-2 is in no package: give its file as --english.
"""

from __future__ import annotations

import argparse
import gzip
import html
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from peers_install import ROOT

NAMES = ("english", "code", "chinese")
_PACKAGES = {"english": "jargon-text", "chinese": "debian-handbook"}
_MODULES = ("argparse", "tarfile", "subprocess", "zipfile", "datetime")
_JARGON_BEGINS = 60_000
"""Characters before the first entries: contents and credits."""
_SHORT = 200
"""Characters of an English paragraph that is likely a heading or a table."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """--english, --code and --chinese."""
    for name in NAMES:
        parser.add_argument(f"--{name}", metavar="FILE", help=f"a text file instead of the {name} text from packages")


def read(name: str, file: str | None = None) -> str:
    """The text of that name, or of the file. Raises SystemExit, saying what to do, when the package is not to be had."""
    if file:
        return Path(file).read_text()
    if name == "code":
        library = Path(sysconfig.get_path("stdlib"))
        return "\n\n".join((library / f"{module}.py").read_text() for module in _MODULES)
    share = _unpacked(_PACKAGES[name], name) / "usr/share/doc" / _PACKAGES[name]
    return _jargon(share) if name == "english" else _handbook(share)


def _unpacked(package: str, name: str) -> Path:
    folder = ROOT / "texts" / package
    if not folder.exists():
        parent = folder.parent
        parent.mkdir(parents=True, exist_ok=True)
        print(f"texts: Debian's {package}", file=sys.stderr, flush=True)
        try:
            subprocess.run(["apt-get", "download", "-qq", package], cwd=parent, check=True, stderr=subprocess.DEVNULL)
            subprocess.run(["dpkg-deb", "-x", next(parent.glob(f"{package}_*.deb")), parent / "part"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"cannot fetch Debian's {package} ({error}); run apt-get update first, or give a text as --{name} FILE")
        (parent / "part").rename(folder)
    return folder


def _jargon(share: Path) -> str:
    """Its whole paragraphs, each on a line of its own."""
    with gzip.open(share / "jargon.txt.gz", "rt", encoding="utf-8", errors="replace") as file:
        text = file.read()[_JARGON_BEGINS:]
    paragraphs = re.split(r"\n\s*\n", text)[1:]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if len(paragraph) > _SHORT)


def _handbook(share: Path) -> str:
    """The paragraphs that are mostly Chinese."""
    found = []
    for page in sorted((share / "html/zh-CN").glob("*.html")):
        for paragraph in re.findall(r'<div class="para">(.*?)</div>', page.read_text(), re.DOTALL):
            text = " ".join(html.unescape(re.sub(r"<[^>]+>", "", paragraph)).split())
            if 2 * sum("一" <= character <= "鿿" for character in text) > len(text) > 40:
                found.append(text)
    return "\n\n".join(found)
