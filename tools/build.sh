#!/usr/bin/env bash
# Builds the C++ and installs the package (ljperf and the Python module ljtrain) into the virtual environment. The same build
# folder serves the C++ tests. Does nothing when no source changed since the last time.
#   tools/build.sh [VENV]         (default .venv)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$PWD/${1:-.venv}
log=$PWD/.make/build.log
mkdir -p .make

stamp=$venv/.built
sources=(CMakeLists.txt pyproject.toml cmake accl base cnp image recompute ljperf python README.md)
if [ -e "$stamp" ] && [ -x "$venv/bin/ljperf" ] && [ -d build/release ] &&
  [ -z "$(find "${sources[@]}" -newer "$stamp" -not -name '*.pyc' -not -name __pycache__ -print -quit)" ]; then
  exit 0
fi
echo "build: compiling, which takes five to fifteen minutes on two cores the first time (details in .make/build.log)" >&2
started=$(mktemp)
trap 'rm -f "$started"' EXIT
settings=(build-dir=build/release cmake.build-type=Release cmake.define.LJTRAIN_TESTS=ON cmake.define.LJTRAIN_PYTHON=ON
  cmake.define.LJTRAIN_PRECOMPILED_HEADERS=ON)
if ! "$venv/bin/python" -m pip install --no-build-isolation --no-deps --no-index . \
  "${settings[@]/#/--config-settings=}" >"$log" 2>&1; then
  echo "build: failed; the last lines of $log:" >&2
  grep -nE 'error|Error|FAILED|fatal' "$log" | tail -n 20 >&2 || true
  tail -n 15 "$log" >&2
  exit 1
fi
touch -r "$started" "$stamp"
