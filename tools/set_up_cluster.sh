#!/usr/bin/env bash
# What the slow tests of the launchers need beyond set_up.sh: a Slurm to start, Ray, the published schemas of Kubernetes,
# and tools for network namespaces. Does nothing, quickly, when all is there.
#   tools/set_up_cluster.sh [VENV]        (default .venv)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
log=$PWD/.make/set_up_cluster.log
mkdir -p .make
: >"$log"

say() { echo "set-up (cluster): $*" >&2; }
fail() { say "$*"; tail -n 15 "$log" >&2; exit 1; }

missing=()
for package in slurm-wlm munge iproute2; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "not root and no sudo; have an administrator run: apt-get install ${missing[*]}"
    sudo=sudo
  fi
  say "installing the packages ${missing[*]}"
  install=($sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
  "${install[@]}" >>"$log" 2>&1 || { $sudo apt-get update -q >>"$log" 2>&1; "${install[@]}" >>"$log" 2>&1; } ||
    fail "apt-get install failed"
fi

stamp=$venv/.set_up_cluster
want=$(sha256sum requirements/cluster.txt)
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  say "installing Ray and the schemas of Kubernetes and Kubeflow"
  "$venv/bin/python" -m pip install -r requirements/cluster.txt >>"$log" 2>&1 ||
    fail "pip install -r requirements/cluster.txt failed"
  echo "$want" >"$stamp"
fi
