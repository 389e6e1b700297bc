"""The peers, in an environment of their own under .peers/ (git-ignored): OpenVINO GenAI installed, llama.cpp built for this machine.

    python bench/peers_install.py [--jobs N]

llama.cpp comes as the source that llama-cpp-python carries; its server and bench tools are built with all that this machine has.
Each step is done once: remove .peers/ to do all again. Versions: bench/peers-constraints.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

from pitstop.config import usable_cores

HERE = Path(__file__).parent
ROOT = HERE.parent / ".peers"
PYTHON = ROOT / "env" / "bin" / "python"
TOOLS = ROOT / "build" / "bin"
TARGETS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-completion", "llama-perplexity", "llama-server")
CONSTRAINTS = HERE / "peers-constraints.txt"
OFF = (
    "BUILD_SHARED_LIBS",
    "LLAMA_CURL",
    "LLAMA_OPENSSL",
    "LLAMA_BUILD_UI",
    "LLAMA_USE_PREBUILT_UI",
    "LLAMA_BUILD_APP",
    "LLAMA_BUILD_TESTS",
    "LLAMA_BUILD_EXAMPLES",
)


def install(jobs: int) -> None:
    """Make what is missing. Raises SystemExit, saying what failed."""
    if not PYTHON.exists():
        _say("an environment for the peers")
        venv.create(ROOT / "env", with_pip=True)
    if not _succeeds(str(PYTHON), "-c", "import openvino_genai"):
        _say("OpenVINO GenAI (100 MB)")
        _pip("install", "openvino-genai")
    if not all((TOOLS / target).exists() for target in TARGETS):
        _build(_source(), jobs)


def quantized(model: Path, kind: str) -> Path:
    """The model re-quantised to `kind` by llama.cpp's own tool, made once; the model itself for kind "as shipped"."""
    if kind == "as shipped":
        return model
    version = hashlib.sha256(f"{model.resolve()} {model.stat().st_size} {model.stat().st_mtime_ns}".encode()).hexdigest()[:8]
    path = ROOT / "models" / f"{model.stem}.{version}.{kind}.gguf"
    if not path.exists():
        _say(f"{model.name} as {kind}")
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        _run([TOOLS / "llama-quantize", "--allow-requantize", model, part, kind], quiet=True)
        part.rename(path)
    return path


def _source() -> Path:
    """The folder of llama.cpp's source."""
    folder = ROOT / "source"
    if not list(folder.glob("*.tar.gz")):
        _say("the source of llama.cpp (77 MB)")
        _pip("download", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(folder), "llama-cpp-python")
    archive = next(folder.glob("*.tar.gz"))
    source = folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    if not source.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    return source


def _build(source: Path, jobs: int) -> None:
    if not (shutil.which("cmake") and shutil.which("ninja")):
        _pip("install", "cmake", "ninja")
    path = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    build = ROOT / "build"
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_SERVER=ON", *(f"-D{name}=OFF" for name in OFF)]
    _say("building llama.cpp (about ten minutes of one core)")
    _run(["cmake", "-G", "Ninja", "-S", source, "-B", build, *options], quiet=True, PATH=path)
    _run(["cmake", "--build", build, "--parallel", str(jobs), "--target", *TARGETS], PATH=path)


def _pip(command: str, *arguments: str) -> None:
    _run([PYTHON, "-m", "pip", command, "--disable-pip-version-check", "--quiet", "--constraint", CONSTRAINTS, *arguments])


def _run(command: list, quiet: bool = False, **environment: str) -> None:
    """Run with its output shown, or kept for the case that it fails."""
    output = subprocess.PIPE if quiet else sys.stderr
    done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | environment, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout or ''}failed with status {done.returncode}: {' '.join(map(str, command))}")


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _say(what: str) -> None:
    print(f"peers: {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=usable_cores())
    install(parser.parse_args().jobs)


if __name__ == "__main__":
    main()
