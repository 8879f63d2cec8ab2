#!/bin/sh
# Install the systems that we compare with: verl for tests/peers/peers.py, TRL for tests/peers/trl_recorded.py,
# and SkyRL. RLCORR_PEERS names another folder than .venv for them. No package may bring
# its dependencies (ray, wandb, another torch): requirements/peers/*.txt name only what the compared modules import and
# .venv lacks, so both sides run on one torch and one transformers. Ray is not among them; tests/peers/verl_peer.py
# replaces it.
set -eu
bin=$1
into=${RLCORR_PEERS:-.venv}
pins=$(dirname "$0")/../../requirements/peers

# install FOLDER NAME: nothing to do if the folder contains just what requirements/peers/NAME.txt pins.
install() {
    cmp -s "$pins/$2.txt" "$into/$1/pinned" && return
    rm -rf "${into:?}/$1"
    # antlr4 comes as source only; it builds with the setuptools that .venv has. SkyRL asks for Python 3.12 and runs on 3.11
    # with the one line in real_systems.py.
    "$bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-compile --require-hashes \
        --ignore-requires-python --target "$into/$1" -r "$pins/$2.txt"
    cp "$pins/$2.txt" "$into/$1/pinned"
}

# Each in a folder of its own, since none may see the packages of another. TRL brings accelerate: transformers behaves
# differently where it finds it, and the comparison with verl is not about that.
install peers verl
for name in trl skyrl; do
    install $name $name
done
