#!/usr/bin/env bash
# Runs a command in an OCI archive of the image without a container engine: as the image's user, through its entrypoint, with
# namespaces of its own (mounts, processes, IPC, and a network that has only loopback). Needs root. Leaves nothing behind.
#   tools/run_image.sh build/image/ljtrain-0.1.0-cpu.tar ljperf benchmark --model deepspeed/llama3-8b
# IMAGE_FOLDER=DIR keeps the unpacked image there for the next run. Variables named LJTRAIN_* and NCCL_* are passed in.
set -euo pipefail

fail() { echo "run-image: $*" >&2; exit 2; }

if [ -n "${RUN_IMAGE_ROOT:-}" ]; then # inside the namespaces
  root=$RUN_IMAGE_ROOT
  mount --make-rprivate /
  mount -t overlay overlay -o "lowerdir=$root,upperdir=$RUN_IMAGE_WORK/upper,workdir=$RUN_IMAGE_WORK/work" "$RUN_IMAGE_WORK/root"
  root=$RUN_IMAGE_WORK/root
  ip link set lo up
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  [ ! -d /sys/fs/cgroup ] || mount --rbind -o ro /sys/fs/cgroup "$root/sys/fs/cgroup"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  ln -s /proc/self/fd "$root/dev/fd"
  mkdir "$root/dev/shm"
  mount -t tmpfs -o mode=1777,size=4g tmpfs "$root/dev/shm"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  read -r uid gid < <(jq -r '.config.User | split(":") | join(" ")' "$RUN_IMAGE_CONFIG")
  mapfile -t settings < <(jq -r '.config.Env[]' "$RUN_IMAGE_CONFIG")
  mapfile -t passed < <(env | grep -E '^(LJTRAIN|NCCL)_[A-Z_]+=' || true)
  mapfile -t entrypoint < <(jq -r '.config.Entrypoint[]' "$RUN_IMAGE_CONFIG")
  folder=$(jq -r .config.WorkingDir "$RUN_IMAGE_CONFIG")
  home=$(awk -F: -v uid="$uid" '$3 == uid { print $6 }' "$root/etc/passwd")
  # shellcheck disable=SC2016 # expanded by the inner shell
  exec env -i "${settings[@]}" "${passed[@]}" HOME="$home" TERM="${TERM:-dumb}" container=run-image \
    chroot --userspec="$uid:$gid" --groups= "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$folder" "${entrypoint[@]}" "$@"
fi

[ $# -ge 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2; }
archive=$1
shift
[ -f "$archive" ] || fail "$archive: no such archive; make image-rootfs makes one"
[ "$(id -u)" = 0 ] || fail "needs root: it makes namespaces and changes to the image's user"
for program in skopeo umoci jq unshare ip; do
  command -v $program >/dev/null || fail "$program not found: apt-get install skopeo umoci jq util-linux iproute2"
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/run-image.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
folder=${IMAGE_FOLDER:-$work/bundle}
mkdir -p "$work"/{upper,work,root}
skopeo inspect --config "oci-archive:$archive" >"$work/config.json" || fail "$archive: not an OCI archive"
if [ ! -d "$folder/rootfs" ]; then
  mkdir "$work/layout"
  tar -C "$work/layout" -xf "$archive"
  tag=$(jq -r '.manifests[0].annotations["org.opencontainers.image.ref.name"]' "$work/layout/index.json")
  umoci unpack --image "$work/layout:$tag" "$folder" >/dev/null 2>&1 || fail "$archive: umoci cannot unpack it"
  rm -rf "$work/layout"
fi
export RUN_IMAGE_ROOT=$folder/rootfs RUN_IMAGE_WORK=$work RUN_IMAGE_CONFIG=$work/config.json
unshare --mount --pid --ipc --net --fork --kill-child "$0" "$@" <&0 &
inner=$!
# unshare itself blocks these signals; the command is its child.
pass_on() { kill "-$1" $(cat "/proc/$inner/task/$inner/children") 2>/dev/null || true; }
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM HUP
while true; do
  code=0
  wait "$inner" || code=$?
  kill -0 "$inner" 2>/dev/null || exit "$code" # else a signal ended the wait, not the command
done
