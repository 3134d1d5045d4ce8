"""The driver that `ljperf --launcher ray` starts beside it: `python -m ljtrain.ray_launch`.

A placement group holds one bundle a host (STRICT_SPREAD; a single host: STRICT_PACK), and in each
bundle one actor a rank runs the rank's command. Ray places and keeps the resources; the ranks meet
by themselves over MASTER_ADDR. What to run comes as one line of JSON on standard input, so that no
argument is seen in a list of processes; when that input ends, the launcher is gone and the job
ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
NODE_PLACEHOLDER = "{ray_node}"
PLACEMENT_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 10.0
END_TIMEOUT_S = 5.0
PR_SET_PDEATHSIG = 1


class Problem(Exception):
    """What keeps the job from running, in one sentence."""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Rank:
    """One rank: an actor of Ray in its bundle, which runs the rank's command as a child."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def address(self) -> tuple[str, int]:
        """This host's address in the cluster and a port that is free on it."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def run(self, argv: list[str], environment: dict[str, str], folder: str) -> int:
        """Runs the command to its end and returns its exit code (negative: the signal)."""
        # A Ray worker sets variables of its own for what runs inside it, such as one thread.
        inherited = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        self._child = subprocess.Popen(
            argv,
            env={**inherited, **environment},
            cwd=folder if os.path.isdir(folder) else None,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - the actor has no other thread in fork
        )
        return self._child.wait()

    def end(self) -> None:
        """Asks the command to end; called beside `run`."""
        if self._child is not None:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(END_TIMEOUT_S)
            self._child.kill()


def _check_reachable(address: str) -> None:
    """ConnectionError when nothing listens at HOST:PORT, which Ray would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto", "local", or what Ray itself complains about
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"{address}: {error}") from error


def _connect() -> None:
    import ray

    try:
        _check_reachable(os.environ.get("RAY_ADDRESS", "auto"))
        ray.init(
            address=os.environ.get("RAY_ADDRESS", "auto"),
            log_to_driver=True,
            configure_logging=False,
            namespace="ljperf",
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise Problem(
            "no Ray cluster is reached from here; start one with `ray start --head`, or set "
            f"RAY_ADDRESS ({str(error).splitlines()[0]})"
        ) from error


def _reserve(task: dict[str, Any]) -> Any:
    """The placement group, once Ray has it; Problem when the cluster cannot hold it."""
    import ray

    group = ray.util.placement_group(task["bundles"], strategy=task["strategy"])
    ready, _ = ray.wait([group.ready()], timeout=PLACEMENT_TIMEOUT_S)
    if not ready:
        free = {key: value for key, value in ray.available_resources().items() if ":" not in key}
        ray.util.remove_placement_group(group)
        raise Problem(
            f"Ray has no room for {task['nodes']} host(s) with {task['bundles'][0]} each within "
            f"{PLACEMENT_TIMEOUT_S} s; free now: {free}"
        )
    return group


def _start_actors(task: dict[str, Any], group: Any) -> list[Any]:
    """One actor a rank, those of a bundle together; methods `run` and `end` may overlap."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    actors = []
    for bundle in range(task["nodes"]):
        for _ in range(task["ranks_per_node"]):
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            )
            options = {
                "num_cpus": task["cpus_per_rank"],
                "num_gpus": task["gpus_per_rank"],
                "max_concurrency": 2,
                "max_restarts": 0,
                "scheduling_strategy": strategy,
            }
            actors.append(ray.remote(Rank).options(**options).remote())
    return actors


def _environment(task: dict[str, Any], rank: int, master: tuple[str, int]) -> dict[str, str]:
    import ray

    per_node = task["ranks_per_node"]
    here = ray.util.get_node_ip_address()
    given = {k: v.replace(NODE_PLACEHOLDER, here) for k, v in task["environment"].items()}
    return {
        **given,
        "RANK": str(rank),
        "WORLD_SIZE": str(task["nodes"] * per_node),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
    }


def _watch(actors: list[Any], runs: list[Any]) -> int:
    """Waits for all ranks; the first that fails decides."""
    import ray

    pending = list(runs)
    while pending:
        done, pending = ray.wait(pending, num_returns=1)
        for one in done:
            rank = runs.index(one)
            try:
                code = ray.get(one)
            except ray.exceptions.RayError as error:
                first = str(error).strip().splitlines()[0]
                raise Problem(f"the actor of rank {rank} was lost: {first}") from error
            if code != 0:
                print(f"rank {rank} ended with {_words(code)}", file=sys.stderr, flush=True)
                return EXIT_BAD_INPUT if code == EXIT_BAD_INPUT else EXIT_FAILED
    return 0


def _words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def run(task: dict[str, Any]) -> int:
    """Places and runs the ranks; whatever happens, none of them stays."""
    import ray

    _connect()
    group = _reserve(task)
    actors: list[Any] = []
    try:
        actors = _start_actors(task, group)
        master = ray.get(actors[0].address.remote())
        runs = [
            actor.run.remote(
                task["argv"], _environment(task, rank, master), task["working_directory"]
            )
            for rank, actor in enumerate(actors)
        ]
        return _watch(actors, runs)
    finally:
        ray.wait([actor.end.remote() for actor in actors], num_returns=len(actors), timeout=10)
        for actor in actors:
            ray.kill(actor)
        ray.util.remove_placement_group(group)
        ray.shutdown()


def _end_with_input() -> None:
    """Ends this process in order when standard input does: its launcher is gone."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _terminated(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    try:
        import ray  # noqa: F401
    except ImportError:
        print("Ray is not installed in this environment: pip install ray", file=sys.stderr)
        return EXIT_BAD_INPUT
    task = json.loads(sys.stdin.readline())
    try:
        signal.signal(signal.SIGTERM, _terminated)
        threading.Thread(target=_end_with_input, daemon=True).start()
        return run(task)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # not in the middle of Ray's own clearing up


if __name__ == "__main__":
    sys.exit(main())
