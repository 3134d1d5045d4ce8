#!/usr/bin/env bash
# Installs what the build, the benchmark and the tests need and this machine lacks: Debian/Ubuntu packages, then a virtual
# environment with the stock training stack. Does nothing, quickly, when all is there. Details go to .make/set_up.log.
#   tools/set_up.sh [VENV]        (default .venv)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
log=$PWD/.make/set_up.log
mkdir -p .make

say() { echo "set-up: $*" >&2; }
fail() { say "$*"; [ -s "$log" ] && { say "the last lines of $log:"; tail -n 15 "$log" >&2; }; exit 1; }
logged() { "$@" >>"$log" 2>&1; }

apt_install() {
  command -v apt-get >/dev/null || fail "apt-get not found; install these by hand, then run again: $*"
  local sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "not root and no sudo; have an administrator run: apt-get install $*"
    sudo=sudo
  fi
  say "installing the packages $*"
  local install=($sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@")
  # The lists may be missing (a fresh machine) or old (the mirror has moved on): one update, and once more.
  if [ -e .make/apt_updated ] && logged "${install[@]}"; then return; fi
  logged $sudo apt-get update -q || fail "apt-get update failed"
  touch .make/apt_updated
  logged "${install[@]}" || fail "apt-get install failed"
}

has_package() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

install_system_packages() {
  local wanted=(g++ cmake ninja-build pkg-config git ca-certificates libfmt-dev nlohmann-json3-dev libcli11-dev
    libhwloc-dev libgtest-dev libboost-dev libhwy-dev libeigen3-dev libsqlite3-dev libjemalloc2 libtcmalloc-minimal4)
  local missing=() package
  for package in "${wanted[@]}"; do has_package "$package" || missing+=("$package"); done
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
}

usable_python() {
  "$1" -c 'import ensurepip, os, sys, sysconfig, venv
sys.exit(not (sys.version_info >= (3, 10) and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))' \
    2>/dev/null
}

# Python 3.11 where it can be had (torch's CPU builds are the smallest there), else the distribution's own.
find_python() {
  local candidate
  for candidate in python3.11 python3; do
    usable_python "$candidate" && { echo "$candidate"; return; }
  done
  if ! has_package python3.11 && ! apt-cache show python3.11 2>/dev/null | grep -q ^Package; then
    apt_install python3-venv python3-dev
  else
    apt_install python3.11-venv python3.11-dev
  fi
  for candidate in python3.11 python3; do
    usable_python "$candidate" && { echo "$candidate"; return; }
  done
  fail "no Python from 3.10 on with venv and headers; install python3-venv and python3-dev"
}

pip() { logged "$venv/bin/python" -m pip "$@" || fail "pip $* failed"; }

install_python_packages() {
  local stamp=$venv/.set_up want
  want=$(cat requirements/{torch,build,train,test}.txt | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return
  if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    local python
    python=$(find_python)
    say "making the virtual environment $venv with $($python --version)"
    logged "$python" -m venv "$venv" || fail "$python -m venv $venv failed"
  fi
  say "installing torch (this can take minutes)"
  pip install -r requirements/torch.txt
  say "got torch $("$venv/bin/python" -c 'import torch; print(torch.__version__, "CUDA", torch.version.cuda)' 2>>"$log")"
  say "installing transformers, DeepSpeed, accelerate and the test tools"
  pip install -r requirements/build.txt numpy
  logged env DS_BUILD_OPS=0 "$venv/bin/python" -m pip install --no-build-isolation -r requirements/torch.txt \
    -r requirements/train.txt || fail "installing requirements/train.txt failed"
  pip install -r requirements/test.txt
  echo "$want" >"$stamp"
}

: >"$log"
install_system_packages
install_python_packages
