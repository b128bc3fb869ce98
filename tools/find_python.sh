#!/bin/sh
# Prints the path of a Python that works here: `find_python.sh 11` one of at least 3.11, `find_python.sh 12` of
# at least 3.12. Prints nothing and returns 1 when there is none.
#
# Each candidate is really run, since a pyenv shim may exist and fail, and Debian's python3 comes without venv.
# Pythons newer than 3.14 are passed over: the locked wheels end there.
set -u
least=${1:-11}

works() {
    "$1" -c "import sys, venv, ensurepip; sys.exit(not (3, $least) <= sys.version_info[:2] <= (3, 14))" \
        >/dev/null 2>&1 </dev/null
}

try() {
    if works "$1"; then
        "$1" -c 'import sys; print(sys.executable)'
        exit 0
    fi
}

for name in python3 python3.13 python3.12 python3.11 python3.14; do
    try "$name"
done

# pyenv's own folder, and those of the shims on PATH: HOME may be another one here.
roots=${PYENV_ROOT:-${HOME:-}/.pyenv}
old_ifs=$IFS
IFS=:
for folder in $PATH; do
    case $folder in
        */shims) roots=$roots:${folder%/shims} ;;
    esac
done
for root in $roots; do
    IFS=$old_ifs
    for python in "$root"/versions/3.*/bin/python3; do
        try "$python"
    done
done
exit 1
