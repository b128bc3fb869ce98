#!/bin/sh
# Writes the lock: one list of versions for every supported Python, all extras and the build backend included.
# uv resolves it, in an environment that is thrown away.
set -eu
out=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

python=$(sh tools/find_python.sh 11)
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
"$scratch/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --all-extras \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links --upgrade \
    --output-file "$scratch/lock.txt" pyproject.toml

{
    echo "# Constraints for pip, made by \`make lock\` from pyproject.toml: every extra and the build backend, for"
    echo "# Python 3.11 (with the last JAX for it) and for 3.12 and newer."
    cat "$scratch/lock.txt"
} >"$scratch/with_header.txt"
cp "$scratch/with_header.txt" "$out"
