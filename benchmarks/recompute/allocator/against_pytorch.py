"""Holds the allocator simulator against PyTorch's own allocator, call by call, without a GPU.

    pip download --no-deps torch==2.13.0 nvidia-cuda-runtime nvidia-cuda-crt   # a CUDA build
    python benchmarks/recompute/allocator/against_pytorch.py --torch DIR --cuda-include DIR

--torch is the unpacked wheel's folder `torch` (lib/libc10.so, lib/libc10_cuda.so, include),
--cuda-include that with cuda_runtime_api.h, --build a CMake build folder of this repository. Both
allocators play the same random programs; after each call address, allocated, active and reserved
bytes, segments, calls to the device, failures and flushes must be the same. The real one runs on
counterfeit_cuda.cc.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MIB = 1 << 20
SETTINGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:20",
    "garbage_collection_threshold:0.5",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[1:4,64:2,>:1]",
    "large_segment_size_mb:12",
    "large_segment_size_mb:64",
    "per_process_memory_fraction:0.5",
    "per_process_memory_fraction:0.7,garbage_collection_threshold:0.6",
    "max_split_size_mb:100,max_non_split_rounding_mb:40",
    "max_split_size_mb:32,garbage_collection_threshold:0.4",
    "max_split_size_mb:64,per_process_memory_fraction:0.5,garbage_collection_threshold:0.9",
    "expandable_segments:True,max_split_size_mb:64",
    "expandable_segments:True,garbage_collection_threshold:0.5",
    "expandable_segments:True,large_segment_size_mb:13",
    "expandable_segments:True,per_process_memory_fraction:0.6",
    "expandable_segments:True,roundup_power2_divisions:4",
    "throw_on_cudamalloc_oom:True",
    "throw_on_cudamalloc_oom:True,expandable_segments:True",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5,max_split_size_mb:50",
]


def program(seed: int, calls: int, streams: int, largest: int) -> str:
    draw = random.Random(seed)
    edges = [512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 20 * MIB]
    live: list[int] = []
    lines = []
    for number in range(calls):
        choice = draw.random()
        if choice < 0.52 or not live:
            bytes_ = [
                draw.randint(1, MIB),
                draw.randint(MIB, 10 * MIB),
                draw.choice(edges),
                draw.randint(10 * MIB, largest // 4),
                draw.randint(largest // 4, largest),
            ][draw.choices(range(5), [30, 30, 10, 25, 5])[0]]
            lines.append(f"a {number} {bytes_} {draw.randrange(streams) * 16}")
            live.append(number)
        elif choice < 0.94:
            lines.append(f"f {live.pop(draw.randrange(len(live)))}")
        elif choice < 0.97 and streams > 1:
            lines.append(f"r {draw.choice(live)} {draw.randrange(streams) * 16}")
        elif choice < 0.995 and streams > 1:
            lines.append(f"s {draw.randrange(streams) * 16}")
        elif choice > 0.998:
            lines.append("e")
    return "\n".join(lines) + "\n"


def build(folder: Path, torch: Path, cuda_include: Path, cmake_build: Path) -> None:
    exports = folder / "versions"
    exports.write_text("libcudart.so.13 { global: *; };\n")
    (folder / "libcudart.so").symlink_to("libcudart.so.13")
    shared = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", str(HERE / "counterfeit_cuda.cc")]
    for name in ("libcudart.so.13", "libnvidia-ml.so.1"):
        flags = [f"-Wl,-soname,{name}", f"-Wl,--version-script={exports}"]
        subprocess.run([*shared, *flags, "-o", str(folder / name)], check=True)
    libraries = [f"-L{torch}/lib", "-lc10_cuda", "-lc10", f"-L{folder}", "-lcudart"]
    includes = [f"-I{torch}/include", f"-I{cuda_include}"]
    native = ["g++", "-std=c++20", "-O1", "-w", str(HERE / "native.cc"), *includes, *libraries]
    subprocess.run([*native, "-o", str(folder / "native")], check=True)
    own = ["g++", "-std=c++20", "-O1", str(HERE / "simulate.cc")]
    own += [f"-I{ROOT}/recompute/allocator/include", f"-I{ROOT}/base/include"]
    own += [f"{cmake_build}/recompute/allocator/libljtrain_allocator.a"]
    own += [f"{cmake_build}/base/libljtrain_base.a", "-lfmt"]
    subprocess.run([*own, "-o", str(folder / "simulate")], check=True)


def compare(folder: Path, torch: Path, settings: str, programs: int, calls: int) -> tuple[int, int]:
    """Calls played, and programs in which the two differ."""
    played = differing = 0
    for seed in range(programs):
        total = [400 * MIB, 2048 * MIB, 1 << 40][seed % 3 if seed < 6 else seed // 3 % 3]
        largest = [100 * MIB, 300 * MIB, 2048 * MIB][seed % 3]
        script = program(seed, calls, [1, 1, 3][seed % 3], largest)
        environment = {
            **os.environ,
            "COUNTERFEIT_BYTES": str(total),
            "LD_LIBRARY_PATH": f"{folder}:{torch}/lib",
        }
        if settings:
            environment["PYTORCH_ALLOC_CONF"] = settings
        outputs = [
            subprocess.run(
                command, input=script, env=environment, capture_output=True, text=True, check=False
            ).stdout.splitlines()
            for command in (
                [f"{folder}/native"],
                [f"{folder}/simulate", str(total), settings],
            )
        ]
        played += script.count("\n")
        if "throw_on" in settings:  # flushes and failures are counted apart there
            outputs = [[line.rsplit(" ", 2)[0] for line in output] for output in outputs]
        if outputs[0] != outputs[1] or len(outputs[0]) != script.count("\n"):
            differing += 1
            pairs = zip(script.splitlines(), *outputs, strict=False)
            first = next((pair for pair in pairs if pair[1] != pair[2]), "one of them ended early")
            print(f"  seed {seed}: {first}")
    return played, differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", type=Path, required=True)
    parser.add_argument("--cuda-include", type=Path, required=True)
    parser.add_argument("--build", type=Path, default=ROOT / "build/cpp")
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--calls", type=int, default=1500)
    options = parser.parse_args()
    total = bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder, options.torch.resolve(), options.cuda_include, options.build)
        for settings in SETTINGS:
            played, differing = compare(
                folder, options.torch.resolve(), settings, options.programs, options.calls
            )
            total, bad = total + played, bad + differing
            print(
                f"{settings or 'defaults'}: {played} calls, {differing} programs differ", flush=True
            )
    print(f"{total} calls, {bad} programs differ")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
