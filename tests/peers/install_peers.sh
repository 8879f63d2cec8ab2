#!/bin/sh
# The systems that we compare with: verl for tests/peers/peers.py, TRL for tests/bench/bench_trainer.py as well, the
# others for tests/peers/real_systems.py. RLCORR_PEERS names another folder than .venv for them. No package may bring its
# dependencies (ray, wandb, another torch): these few are what the compared modules import and .venv lacks, so both sides
# run on one torch and one transformers. Ray is not among them; tests/peers/verl_peer.py stands in for it.
set -eu
bin=$1
into=${RLCORR_PEERS:-.venv}

# install FOLDER PACKAGES: nothing to do where the folder holds just these.
install() {
    [ "$(cat "$1/pinned" 2>/dev/null)" = "$2" ] && return
    rm -rf "$1"
    # antlr4 comes as source only; it builds with the setuptools that .venv has.
    "$bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-compile --target "$1" $2
    echo "$2" >"$1/pinned"
}

install "$into/peers" 'verl==0.9.1
tensordict==0.10.0
pyvers==0.2.2
omegaconf==2.3.0
antlr4-python3-runtime==4.9.3
codetiming==1.4.0
orjson==3.11.4'

# A folder of its own: transformers behaves differently where it finds accelerate, and the comparison with verl is not
# about that.
install "$into/trl" 'trl==1.16.0
accelerate==1.15.0
datasets==5.2.0
multiprocess==0.70.19
xxhash==4.1.0'

# Each of these in a folder of its own, since none may see another's neighbours.
install "$into/skyrl" 'skyrl==0.3.0
jaxtyping==0.3.11'
install "$into/openrlhf" 'openrlhf==0.11.2'
install "$into/torchtitan" 'torchtitan==0.3.0'
install "$into/areal" 'areal==1.0.4
aiofiles==25.1.0
blinker==1.9.0
colorlog==6.12.0
flask==3.1.3
hydra-core==1.3.8
tenacity==9.2.1
torchdata==0.11.0
uvloop==0.23.0'
install "$into/ms_swift" 'ms-swift==4.6.0
json-repair==0.64.6
modelscope==1.40.2
modelscope-hub==0.5.1'
