#!/bin/sh
# The systems that we compare with: verl for tests/peers/peers.py, TRL for tests/bench/bench_trainer.py. No package may bring its
# dependencies (ray, wandb, another torch): these few are what the compared modules import and .venv lacks, so both sides
# run on one torch and one transformers. Ray is not among them; tests/peers/verl_peer.py stands in for it.
set -eu
bin=$1

# install FOLDER PACKAGES: nothing to do where the folder holds just these.
install() {
    [ "$(cat "$1/pinned" 2>/dev/null)" = "$2" ] && return
    rm -rf "$1"
    # antlr4 comes as source only; it builds with the setuptools that .venv has.
    "$bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-compile --target "$1" $2
    echo "$2" >"$1/pinned"
}

install .venv/peers 'verl==0.9.1
tensordict==0.10.0
pyvers==0.2.2
omegaconf==2.3.0
antlr4-python3-runtime==4.9.3
codetiming==1.4.0
orjson==3.11.4'

# A folder of its own: transformers behaves differently where it finds accelerate, and the comparison with verl is not
# about that.
install .venv/trl 'trl==1.16.0
accelerate==1.15.0
datasets==5.2.0
multiprocess==0.70.19
xxhash==4.1.0'
