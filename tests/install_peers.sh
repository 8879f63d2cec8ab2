#!/bin/sh
# verl itself, for tests/peers.py. No package may bring its dependencies (ray, wandb, another torch): these few are what
# the two modules that we compare with import. Ray is not among them; tests/verl_peer.py stands in for it.
set -eu
bin=$1
into=.venv/peers
wanted='verl==0.9.1
tensordict==0.10.0
pyvers==0.2.2
omegaconf==2.3.0
antlr4-python3-runtime==4.9.3
codetiming==1.4.0
orjson==3.11.4'
[ "$(cat $into/pinned 2>/dev/null)" = "$wanted" ] && exit 0
rm -rf $into
# antlr4 comes as source only; it builds with the setuptools that .venv has.
"$bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-compile --target $into $wanted
echo "$wanted" >$into/pinned
