#!/usr/bin/env bash
# clang-format, clang-tidy, ruff, mypy and hadolint over everything git tracks; the tools come from PyPI at pinned versions, so that every
# machine judges alike. `tools/lint.sh VENV --fix` formats instead of complaining.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv} fix=${2:-}
mkdir -p .make
stamp=$venv/.lint
if [ "$(cat "$stamp" 2>/dev/null)" != "$(sha256sum <requirements/lint.txt)" ]; then
  echo "lint: installing the tools" >&2
  "$venv/bin/python" -m pip install -q -r requirements/lint.txt >.make/lint.log 2>&1 || { cat .make/lint.log >&2; exit 1; }
  sha256sum <requirements/lint.txt >"$stamp"
fi
bin=$venv/bin
mapfile -t cxx < <(git ls-files '*.cc' '*.h' '*.cpp')
mapfile -t python < <(git ls-files '*.py')
if [ "$fix" = --fix ]; then
  "$bin/clang-format" -i "${cxx[@]}"
  "$bin/ruff" format -q "${python[@]}"
  "$bin/ruff" check --fix -q "${python[@]}"
fi
"$bin/clang-format" --dry-run --Werror "${cxx[@]}"
"$bin/ruff" format --check "${python[@]}"
"$bin/ruff" check "${python[@]}"
"$bin/mypy"
"$bin/hadolint" image/Containerfile
# The compile commands are those of `make build`, so the bindings to PyTorch are read as they are compiled.
mapfile -t tidy < <(git ls-files 'accl/*.cc' 'base/*.cc' 'cnp/*.cc' 'ljperf/*.cc' 'recompute/*.cc' 'python/*.cc' | grep -vE '/fuzz/|/comm/drivers/|^python/tests/')
printf '%s\n' "${tidy[@]}" | xargs -P "$(nproc)" -n 4 "$bin/clang-tidy" -p build/release --quiet
echo "lint: clean"
