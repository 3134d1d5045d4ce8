#!/usr/bin/env bash
# Makes the image without a container engine: the recipe of image/Containerfile (image/recipe/stage) run in two bare systems that
# mmdebstrap makes, then an OCI archive that docker, podman and skopeo load. Needs root. Leaves nothing but the output.
#   tools/image_rootfs.sh [--variant cpu|cuda] [--suite bookworm] [--output build/image] [--wheels FOLDER]
# --wheels: the wheels of ljtrain and DeepSpeed, made by the build stage on the same Debian, instead of compiling them again.
# Packages come from where apt and pip of this machine take them; none of those settings ends up in the image.
set -euo pipefail
cd "$(dirname "$0")/.."
variant=cpu suite=bookworm output=build/image wheels=

say() { echo "image-rootfs: $*" >&2; }
fail() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --variant) variant=${2:-}; shift ;;
    --suite) suite=${2:-}; shift ;;
    --output) output=${2:-}; shift ;;
    --wheels) wheels=${2:-}; shift ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) say "$1: not an option; see --help"; exit 2 ;;
  esac
  shift || { say "an option lacks its value; see --help"; exit 2; }
done
[ -z "$wheels" ] || ls "$wheels"/ljtrain-*.whl "$wheels"/deepspeed-*.whl >/dev/null 2>&1 ||
  { say "--wheels $wheels: holds no wheels of ljtrain and deepspeed"; exit 2; }
case $variant in cpu | cuda) ;; *) say "--variant $variant: must be cpu or cuda"; exit 2 ;; esac

prepare() {
  [ "$(id -u)" = 0 ] || fail "needs root: sudo make image-rootfs"
  git rev-parse --git-dir >/dev/null 2>&1 || fail "needs the git repository: it takes the files that git tracks"
  local missing=() program
  for program in mmdebstrap umoci; do command -v $program >/dev/null || missing+=($program); done
  [ ${#missing[@]} = 0 ] && return
  say "installing ${missing[*]}"
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 || fail "apt-get install ${missing[*]} failed; see $log"
}

# Folders that pip is told to look in, to their second level (an index links to its files): shown inside, read-only.
pip_folders() {
  { pip config list 2>/dev/null || true; env | grep ^PIP_ || true; } | grep -oE '(file://)?/[A-Za-z0-9_./-]+' |
    sed 's#^file://##' | sort -u | while read -r folder; do
    case $folder in /etc/* | /usr/* | "$HOME"/*) ;; *) [ ! -d "$folder" ] || echo "$folder" ;; esac
  done | cut -d/ -f1-3 | sort -u
}

# This machine's ways to the packages, for the time of a stage: enter ROOT, leave ROOT.
enter() {
  local root=$1 folder
  cp -a "$root/etc/apt" "$root.apt"
  rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"
  for folder in sources.list sources.list.d apt.conf.d trusted.gpg.d auth.conf.d; do
    [ ! -e "/etc/apt/$folder" ] || cp -a "/etc/apt/$folder" "$root/etc/apt/"
  done
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  mkdir -p "$root/run/host"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/run/host/"
  mkdir -p "$root/run/host/xdg/pip"
  [ ! -e /etc/pip.conf ] || sed '/^constraint/d' /etc/pip.conf >"$root/run/host/xdg/pip/pip.conf" # the recipe pins all
  [ ! -e "$HOME/.config/pip/pip.conf" ] || cp -L "$HOME/.config/pip/pip.conf" "$root/run/host/"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/tmp"
  pip_folders >"$root.folders"
  while read -r folder; do
    mkdir -p "$root$folder"
    mount --bind -o ro "$folder" "$root$folder"
  done <"$root.folders"
}

leave() {
  local root=$1 folder
  while read -r folder; do
    umount "$root$folder"
    (cd "$root" && rmdir -p --ignore-fail-on-non-empty "${folder#/}") # up to the root, which stays
  done <"$root.folders"
  umount -l "$root/tmp" "$root/dev" "$root/sys" "$root/proc"
  rm -rf "$root/etc/apt" "$root/run" "$root/etc/resolv.conf" "$root/etc/hosts"
  cp -a "$root.apt" "$root/etc/apt"
  mkdir "$root/run"
  : >"$root/etc/resolv.conf"
  printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
}

run_stage() {
  local root=$1 variables
  shift
  mapfile -t variables < <(env | grep -E '^(PIP_[A-Z_]+|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY)=' || true)
  enter "$root"
  env -i "${variables[@]}" XDG_CONFIG_DIRS=/run/host/xdg PIP_CONFIG_FILE=/run/host/pip.conf \
    PIP_CERT=/run/host/ca-certificates.crt SSL_CERT_FILE=/run/host/ca-certificates.crt \
    SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" "$@" >>"$log" 2>&1 ||
    fail "stage $2 failed: $(grep -v '^$' "$log" | tail -n 1) ($log holds the rest)"
  leave "$root"
}

build_wheels() {
  say "build stage: compiling (details in $log)"
  cp -a "$work/final" "$work/build"
  mkdir "$work/build/src"
  git ls-files -z | tar --null -T - -c | tar -x -C "$work/build/src"
  run_stage "$work/build" /src/image/recipe/stage build "$variant" /src /wheels
  mv "$work/build/wheels" "$work/wheels"
  rm -rf --one-file-system "$work/build"
}

# Inside a mount and a process namespace of its own, so that no mount and no process outlives it.
make_image() {
  mount --make-rprivate /
  say "a bare Debian $suite"
  mmdebstrap --quiet --variant=minbase --include=ca-certificates "$suite" "$work/final" >>"$log" 2>&1 ||
    fail "mmdebstrap failed: $(tail -n 1 "$log")"
  if [ -n "$wheels" ]; then cp -r "$wheels" "$work/wheels"; else build_wheels; fi
  say "final stage: installing"
  mkdir -p "$work/final/usr/share/ljtrain"
  cp -r image/recipe "$work/final/usr/share/ljtrain/recipe"
  install -m 755 image/entrypoint "$work/final/usr/local/bin/entrypoint"
  cp -r "$work/wheels" "$work/final/wheels"
  run_stage "$work/final" /usr/share/ljtrain/recipe/stage final "$variant" /wheels
  rm -rf "$work/final/wheels"
  say "packing"
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --clamp-mtime --numeric-owner --xattrs --format=pax \
    --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime --exclude='./dev/*' \
    -C "$work/final" -cf "$work/rootfs.tar" .
  cp "$work/final/usr/share/ljtrain/sbom.spdx.json" "$output/$name.spdx.json"
  python3 tools/image_archive.py --rootfs "$work/rootfs.tar" --tag "$version" --work "$work" --output "$output/$name.tar"
}

version=$(sed -n 's/^project(ljtrain VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=ljtrain-$version-$variant
mkdir -p "$output"
output=$(cd "$output" && pwd)
log=$output/$name.log
if [ -z "${IMAGE_ROOTFS_WORK:-}" ]; then
  : >"$log"
  prepare
  exec 9>"$output/.lock"
  flock -n 9 || fail "another build writes to $output"
  rm -rf --one-file-system "$output"/work.* # of a build that was killed
  IMAGE_ROOTFS_WORK=$(mktemp -d "$output/work.XXXXXX")
  export IMAGE_ROOTFS_WORK SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
  trap 'rm -rf --one-file-system "$IMAGE_ROOTFS_WORK" "$output/.lock"' EXIT
  started=$SECONDS
  unshare --mount --pid --fork --kill-child "$0" --variant "$variant" --suite "$suite" --output "$output" --wheels "$wheels" &
  inner=$!
  trap 'kill -KILL "$inner" 2>/dev/null; wait "$inner" 2>/dev/null || true; exit 130' INT TERM HUP
  wait "$inner" || exit $?
  say "$output/$name.tar: $(($(stat -c %s "$output/$name.tar") >> 20)) MiB, made in $((SECONDS - started)) s"
else
  work=$IMAGE_ROOTFS_WORK
  make_image
fi
