"""A real Slurm of one host for tests: munged, slurmctld and slurmd with a configuration of their
own in a temporary folder, on free ports, ended by their process ids.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "salloc", "scontrol", "scancel")
SBIN = "/usr/sbin:/sbin"


def why_not() -> str | None:
    """Why no Slurm can be started here; None when it can."""
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"{', '.join(missing)}: not installed (tools/set_up_cluster.sh does)"
    return None if os.geteuid() == 0 else "slurmd has to be started by root"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class SlurmCluster:
    """`nodes` slurmds on this host, each of which offers `cpus` processors."""

    def __init__(self, folder: Path, nodes: int = 2, cpus: int = 2) -> None:
        self.folder = folder
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.configuration = folder / "slurm.conf"
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        ports = _free_ports(nodes + 1)
        self._write_configuration(ports[0], ports[1:], cpus)

    def _write_configuration(self, controller_port: int, ports: list[int], cpus: int) -> None:
        host = socket.gethostname()
        folder = self.folder
        lines = [
            "ClusterName=ljtrain",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={controller_port}",
            "SlurmUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge.socket",
            "CredType=cred/munge",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/affinity",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SchedulerType=sched/backfill",
            "MpiDefault=none",
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",
            "KillWait=5",
            "SlurmdTimeout=30",
            "MailProg=/bin/true",
        ]
        for name, port in zip(self.names, ports, strict=True):
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}"
            )
        lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        self.configuration.write_text("\n".join(lines) + "\n")
        for name in ("state", *(f"spool-{name}" for name in self.names)):
            (folder / name).mkdir()

    def environment(self) -> dict[str, str]:
        return {
            "SLURM_CONF": str(self.configuration),
            "PATH": f"{os.environ.get('PATH', '')}:{SBIN}",
        }

    def _start(self, *argv: str) -> None:
        log = (self.folder / f"{Path(argv[0]).name}-{len(self._processes)}.out").open("wb")
        self._processes.append(
            subprocess.Popen(
                argv,
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )

    def start(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        path = f"{os.environ.get('PATH', '')}:{SBIN}"
        munged, slurmctld, slurmd = (
            str(shutil.which(name, path=path)) for name in ("munged", "slurmctld", "slurmd")
        )
        self._start(
            munged, "--foreground", "--force", f"--socket={self.folder}/munge.socket",
            f"--key-file={key}", f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        self._wait_for((self.folder / "munge.socket").exists, "munged")
        self._start(slurmctld, "-D", "-f", str(self.configuration))
        for name in self.names:
            self._start(slurmd, "-D", "-N", name, "-f", str(self.configuration))
        self._wait_for(self._all_idle, "all nodes to be idle")

    def _all_idle(self) -> bool:
        answer = self.run("sinfo", "--noheader", "--Node", "--format=%T")
        states = answer.stdout.split()
        return len(states) == len(self.names) and all(state == "idle" for state in states)

    def _wait_for(self, condition, what: str, seconds: float = 60) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}; see {self.folder}"
            time.sleep(0.2)

    def run(self, *argv: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def stop(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            self.run("scancel", "--state=RUNNING", timeout=10)
            self.run("scancel", "--state=PENDING", timeout=10)
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
