"""What launchers are given: commands, scripts, manifests. The engines themselves are not needed."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Ljperf, descendants_of

BENCHMARK = ("benchmark", "--model", "ddp/bert-large", "--dry-run")
IMAGE = ("--image", "registry.example/ljtrain:0.1")
HOSTILE = "a'b\"c $(touch pwned) `id` \\ \n- x: {y} # é ☃ \t*&!%@ $HOME ${A} $(A)"


def needs(module: str) -> Any:
    return pytest.importorskip(
        module, reason=f"{module} is not installed (tools/set_up_cluster.sh does)"
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text("import os, sys\nprint(os.environ['RANK'], *sys.argv[1:])\n")
    return file


def manifest(ljperf: Ljperf, *arguments: str | Path) -> list[dict[str, Any]]:
    yaml = needs("yaml")
    result = ljperf(*arguments, "--launcher", "kubernetes", *IMAGE, "--dry-run")
    assert result.returncode == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def pod_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod's specification, wherever the kind keeps it."""
    spec = documents[0 if documents[0]["kind"] == "TrainingRuntime" else -1]["spec"]
    if "pytorchReplicaSpecs" in spec:
        return spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    if "mlPolicy" in spec:
        job = spec["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
        return job["template"]["spec"]
    return spec["template"]["spec"]


def environment_of(pod: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in pod["containers"][0]["env"]}


@pytest.mark.parametrize("kind", ["trainjob", "pytorchjob", "job"])
def test_manifests_hold_what_a_training_needs(ljperf: Ljperf, kind: str) -> None:
    documents = manifest(
        ljperf, *BENCHMARK[:3], "--kind", kind, "--nodes", "2", "--gpus-per-node", "8",
        "--memory-per-node", "64GiB", "--hosts", "gpu-1,gpu-2",
    )  # fmt: skip
    pod = pod_of(documents)
    container = pod["containers"][0]
    assert pod["hostIPC"] is True
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    shm = pod["volumes"][0]["emptyDir"]
    assert shm == {"medium": "Memory", "sizeLimit": str(32 << 30)}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container["livenessProbe"]["exec"]["command"][:3] == ["ljperf", "doctor", "--quick"]
    assert environment_of(pod)["NCCL_SOCKET_IFNAME"]["value"] == "eth0"
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["gpu-1", "gpu-2"]


@pytest.mark.parametrize(
    ("gpus", "interface"), [(1, "eth0"), (2, "eth0"), (4, "eth0"), (8, "eth0"), (16, "hpn0")]
)
def test_the_interface_follows_the_gpus_of_a_pod(ljperf: Ljperf, gpus: int, interface: str) -> None:
    pod = pod_of(manifest(ljperf, *BENCHMARK[:3], "--gpus-per-node", str(gpus)))
    assert environment_of(pod)["NCCL_SOCKET_IFNAME"]["value"] == interface


def test_a_user_s_own_interface_wins(ljperf: Ljperf) -> None:
    pod = pod_of(
        manifest(
            ljperf, *BENCHMARK[:3], "--gpus-per-node", "8", "--env", "NCCL_SOCKET_IFNAME=bond0"
        )
    )
    assert environment_of(pod)["NCCL_SOCKET_IFNAME"]["value"] == "bond0"


def test_hostile_values_stay_values_in_a_manifest(ljperf: Ljperf) -> None:
    documents = manifest(
        ljperf, *BENCHMARK[:3], "--kind", "job", "--set", f"run_name={HOSTILE}", "--env",
        f"NOTE={HOSTILE}",
    )  # fmt: skip
    pod = pod_of(documents)
    # Kubernetes reads $$ as $, so that $(NAME) is not replaced.
    escaped = HOSTILE.replace("$", "$$")
    assert f"run_name={escaped}" in pod["containers"][0]["command"]
    assert environment_of(pod)["NOTE"]["value"] == escaped


def test_bytes_that_are_no_text_are_refused_by_a_manifest(ljperf: Ljperf) -> None:
    result = subprocess.run(
        [ljperf.program, *BENCHMARK, "--launcher", "kubernetes", *IMAGE, "--set", b"run_name=\xff"],
        env=ljperf.environment(),
        capture_output=True,
        check=False,
    )
    assert result.returncode == 2
    assert b"not UTF-8" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("kind", ["trainjob", "pytorchjob", "job"])
def test_secrets_come_from_a_secret(ljperf: Ljperf, kind: str) -> None:
    result = ljperf(
        *BENCHMARK, "--launcher", "kubernetes", *IMAGE, "--kind", kind, "--env", "HF_TOKEN",
        HF_TOKEN="hf_do_not_show_this",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "hf_do_not_show_this" not in result.stdout + result.stderr
    assert "secretKeyRef" in result.stdout


@pytest.mark.parametrize("launcher", ["docker", "slurm", "torchrun", "ray", "local"])
def test_no_launcher_prints_a_secret(ljperf: Ljperf, script: Path, launcher: str) -> None:
    image = IMAGE if launcher == "docker" else ()
    for json_too in ((), ("--json",)):
        result = ljperf(
            "train", "--launcher", launcher, *image, "--env", "HF_TOKEN=hf_do_not_show_this",
            "--dry-run", *json_too, script,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert "hf_do_not_show_this" not in result.stdout + result.stderr
        if json_too:
            assert json.loads(result.stdout)["launcher"] == launcher


def test_published_schemas_take_the_manifests(ljperf: Ljperf) -> None:
    kubernetes_validate = needs("kubernetes_validate")
    for nodes in ("1", "3"):
        arguments = (
            *BENCHMARK[:3],
            "--nodes",
            nodes,
            "--gpus-per-node",
            "8",
            "--max-restarts",
            "2",
        )
        for document in manifest(ljperf, *arguments, "--kind", "job"):
            kubernetes_validate.validate(document, "1.31", strict=True)


def test_kubeflow_s_models_take_the_train_job(ljperf: Ljperf) -> None:
    models = needs("kubeflow_trainer_api.models")
    runtime, job = manifest(ljperf, *BENCHMARK[:3], "--nodes", "2", "--gpus-per-node", "8")
    for document, model in (
        (runtime, models.TrainerV1alpha1TrainingRuntime),
        (job, models.TrainerV1alpha1TrainJob),
    ):
        # What the model does not know would be lost on the way through it.
        assert same(model.from_dict(document).to_dict(), document)
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


def same(read: Any, written: Any) -> bool:
    """Whether all that was written is there; defaults may be added."""
    if isinstance(written, dict):
        return isinstance(read, dict) and all(same(read.get(k), v) for k, v in written.items())
    if isinstance(written, list):
        return len(read) == len(written) and all(map(same, read, written))
    return str(read) == str(written)


def test_kubeflow_s_models_take_the_pytorch_job(ljperf: Ljperf) -> None:
    models = needs("kubeflow.training.models")
    (document,) = manifest(ljperf, *BENCHMARK[:3], "--nodes", "3", "--kind", "pytorchjob")
    known = {"apiVersion", "kind", "metadata", "spec"}
    assert set(document) == known
    spec_keys = set(models.KubeflowOrgV1PyTorchJobSpec.attribute_map.values())
    assert set(document["spec"]) <= spec_keys
    assert set(document["spec"]["runPolicy"]) <= set(
        models.KubeflowOrgV1RunPolicy.attribute_map.values()
    )
    replica_keys = set(models.KubeflowOrgV1ReplicaSpec.attribute_map.values())
    replicas = document["spec"]["pytorchReplicaSpecs"]
    assert {name: replica["replicas"] for name, replica in replicas.items()} == {
        "Master": 1,
        "Worker": 2,
    }
    assert all(set(replica) <= replica_keys for replica in replicas.values())


def test_a_batch_script_runs_what_was_typed(ljperf: Ljperf, tmp_path: Path) -> None:
    result = ljperf(
        *BENCHMARK, "--launcher", "slurm", "--nodes=2", "--ranks", "1", "--output", "my job",
        "--set", f"run_name={HOSTILE}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    # The script, with our program replaced by one that shows its arguments.
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    show.chmod(0o755)
    (tmp_path / "my job").mkdir()
    text = result.stdout.replace(str(ljperf.program.resolve()), str(show))
    script = tmp_path / "job.sh"
    script.write_text(text)
    done = subprocess.run(
        ["bash", script], env={**os.environ, "SLURM_JOB_ID": "1"}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    arguments = (tmp_path / "my job" / "result.json").read_bytes().decode().split("\0")
    assert f"run_name={HOSTILE}" in arguments
    assert "--launcher=slurm" in arguments and "--nodes=2" not in arguments
    assert not (tmp_path / "pwned").exists()


def test_a_command_can_be_pasted(ljperf: Ljperf, script: Path) -> None:
    result = ljperf("train", "--launcher", "docker", *IMAGE, "--dry-run", script, "--note", HOSTILE)
    (start,) = [i for i, line in enumerate(result.stdout.splitlines()) if "run --rm" in line]
    argv = shlex.split("\n".join(result.stdout.splitlines()[start:]))
    assert argv[-2:] == ["--note", HOSTILE]
    assert {"--ipc=host", "--net=host", "--cap-drop=ALL"} <= set(argv)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--launcher", "torchrun", "--hosts", "a,$(touch pwned)"), "no host name"),
        (("--launcher", "torchrun", "--hosts", "a,-oProxyCommand=x"), "no host name"),
        (("--launcher", "torchrun", "--nodes", "2"), "--hosts"),
        (("--launcher", "local", "--nodes", "2"), "--launcher local"),
        (("--launcher", "ray", "--hosts", "a"), "no effect"),
        (("--launcher", "docker"), "--image"),
        (("--launcher", "kubernetes", "--image", "a b"), "image reference"),
        (("--launcher", "slurm", "--time-limit", "soon"), "--time-limit"),
        (("--launcher", "slurm", "--job-name", "a\n#SBATCH --uid=0"), "--job-name"),
        (("--launcher", "mpirun"), "--launcher"),
        (("--launcher", "kubernetes", *IMAGE, "--namespace", "a; reboot"), "--namespace"),
        (("--launcher", "kubernetes", *IMAGE, "--gpus-per-node", "0"), "--gpus-per-node 0"),
        (("--launcher", "kubernetes", *IMAGE, "--memory-per-node", "3x"), "--memory-per-node"),
        (("--launcher", "slurm", "--cpus-per-node", "-1"), "--cpus-per-node -1"),
        (("--launcher", "torchrun", "--gpus-per-node", "8"), "no effect"),
        (("--launcher", "slurm", "--remote-shell", "rsh"), "no effect"),
        (("--launcher", "slurm", "--ranks", "0"), "--ranks 0"),
        (("--launcher", "docker", *IMAGE, "--ranks", "-2"), "--ranks -2"),
        (("--env", "SURELY_NOT_SET_HERE"), "not set here"),
    ],
)
def test_bad_input_is_one_line(
    ljperf: Ljperf, script: Path, arguments: tuple[str, ...], words: str
) -> None:
    for command in (("train",), BENCHMARK[:3]):
        result = ljperf(*command, *arguments, *((script,) if command == ("train",) else ()))
        assert result.returncode == 2, result.stderr
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert not (ljperf.folder / "pwned").exists()


@pytest.mark.parametrize(
    ("launcher", "words"),
    [("slurm", "sbatch is not in PATH"), ("docker", "neither docker nor podman"),
     ("kubernetes", "kubectl is not in PATH")],
)  # fmt: skip
def test_a_missing_engine_is_one_line(
    ljperf: Ljperf, script: Path, tmp_path: Path, launcher: str, words: str
) -> None:
    image = IMAGE if launcher != "slurm" else ()
    result = ljperf("train", "--launcher", launcher, *image, script, PATH=str(tmp_path))
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.fixture
def fake_slurm(tmp_path: Path) -> Path:
    """sbatch, scontrol and scancel whose answers a test writes."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name in ("sbatch", "scontrol", "scancel"):
        write_program(folder / name, "exit 0")
    return folder


def write_program(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def path_with(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def interrupted(
    ljperf: Ljperf, script: Path, folder: Path, started: Path
) -> subprocess.CompletedProcess[str]:
    """The result of Ctrl-C once `started` is there."""
    process = ljperf.start(
        "train", "--launcher", "slurm", "--output", "job", script, **path_with(folder)
    )
    while not started.exists():
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    return subprocess.CompletedProcess((), process.returncode, output, errors)


def test_an_interrupt_cancels_the_slurm_job(
    ljperf: Ljperf, script: Path, fake_slurm: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    write_program(fake_slurm / "sbatch", "echo 42")
    write_program(fake_slurm / "scontrol", f"echo JobId=42 JobState=RUNNING; touch {started}")
    write_program(fake_slurm / "scancel", f"echo $* > {tmp_path}/cancelled")
    result = interrupted(ljperf, script, fake_slurm, started)
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == "ljperf: interrupted; Slurm job 42 is cancelled"
    assert (tmp_path / "cancelled").read_text() == "42\n"
    # And when that is refused, it is not claimed.
    started.unlink()
    write_program(fake_slurm / "scancel", "echo 'scancel: error: Access denied' >&2; exit 1")
    result = interrupted(ljperf, script, fake_slurm, started)
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == (
        "ljperf: interrupted, but Slurm job 42 may go on: scancel 42 fails: Access denied"
    )


@pytest.mark.parametrize("stuck", ["sbatch", "scontrol"])
def test_an_interrupt_does_not_wait_for_slurm(
    ljperf: Ljperf, script: Path, fake_slurm: Path, tmp_path: Path, stuck: str
) -> None:
    """Slurm's commands retry for minutes when the controller does not answer."""
    started = tmp_path / "started"
    write_program(fake_slurm / "sbatch", "echo 42")
    write_program(fake_slurm / stuck, f"echo $$ > {started}.new; mv {started}.new {started}; "
                  "exec sleep 100")  # fmt: skip
    begin = time.monotonic()
    result = interrupted(ljperf, script, fake_slurm, started)
    assert time.monotonic() - begin < 15
    assert result.returncode == 130
    words = "Slurm was asked to take the job" if stuck == "sbatch" else "job 42 is cancelled"
    assert words in result.stderr.splitlines()[-1]
    assert not Path(f"/proc/{started.read_text().strip()}").exists()


def test_a_disk_that_is_full_is_one_line(ljperf: Ljperf, script: Path, fake_slurm: Path) -> None:
    """RLIMIT_FSIZE fails a write past its limit, as a full disk does."""

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    result = subprocess.run(
        [ljperf.program, "train", "--launcher", "slurm", "--output", "job", script],
        env=ljperf.environment(**path_with(fake_slurm)),
        cwd=ljperf.folder,
        capture_output=True,
        text=True,
        preexec_fn=full,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    assert "job.sh" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert not list((ljperf.folder / "job").glob("*.tmp"))


def test_slurm_s_last_word_is_its_reason(ljperf: Ljperf, script: Path, fake_slurm: Path) -> None:
    write_program(
        fake_slurm / "sbatch",
        "echo 'sbatch: error: fetch_config: DNS SRV lookup failed' >&2\n"
        "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1",
    )
    result = ljperf("train", "--launcher", "slurm", script, timeout=60, **path_with(fake_slurm))
    assert result.returncode == 1
    assert result.stderr == (
        "ljperf: Slurm does not take the job: Could not establish a configuration source\n"
    )
    write_program(fake_slurm / "srun", "exit 0")
    write_program(fake_slurm / "scontrol", "echo 'scontrol: error: no controller' >&2; exit 1")
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    inside = {**path_with(fake_slurm), **allocation}
    result = ljperf("train", "--launcher", "slurm", script, timeout=60, **inside)
    assert result.returncode == 1
    assert result.stderr.strip().endswith("show hostnames 'n[1-2]'`: no controller")
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_container_engine_that_fails_is_told_from_the_container(
    ljperf: Ljperf, script: Path, tmp_path: Path
) -> None:
    for code, words in ((125, "docker itself failed and started nothing"), (3, "exit code 3")):
        write_program(tmp_path / "docker", f"echo why >&2; exit {code}")
        result = ljperf(
            "train", "--launcher", "docker", *IMAGE, script, timeout=60, **path_with(tmp_path)
        )
        assert result.returncode == 1
        first, last = result.stderr.strip().splitlines()
        assert first == "why" and words in last


def test_a_host_that_does_not_resolve_is_one_line(ljperf: Ljperf, script: Path) -> None:
    result = ljperf("train", "--launcher", "torchrun", "--hosts", "a.invalid,b.invalid", script)
    assert result.returncode == 1
    assert "a.invalid does not resolve" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_train_runs_a_script_on_every_rank(ljperf: Ljperf, script: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    result = ljperf(
        "train", "--ranks", "2", "--oversubscribe", "--output", logs, script, "--lr", "1e-4"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "0 --lr 1e-4\n"  # rank 0 is shown, the others are in their logs
    assert (logs / "rank-1.log").read_text() == "1 --lr 1e-4\n"


def test_train_says_which_rank_failed(ljperf: Ljperf, script: Path) -> None:
    script.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n    sys.exit('the disk is full')\n"
        "time.sleep(60)\n"
    )
    result = ljperf("train", "--ranks", "2", "--oversubscribe", script, timeout=60)
    assert result.returncode == 1
    assert "rank 1 ended with exit code 1" in result.stderr
    assert "the disk is full" in result.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("SIGSEGV", "crashed with Segmentation fault"), ("SIGTERM", "was ended from outside, by"),
     ("SIGKILL", "was killed by SIGKILL")],
)  # fmt: skip
def test_a_rank_that_dies_is_one_line_and_ends_all(
    ljperf: Ljperf, script: Path, name: str, words: str
) -> None:
    script.write_text(
        "import os, signal, time\n"
        f"if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.{name})\n"
        "time.sleep(60)\n"
    )
    before = descendants_of(os.getpid())
    result = ljperf("train", "--ranks", "2", "--oversubscribe", script, timeout=60)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("ljperf: rank 1 ") and words in line
    assert descendants_of(os.getpid()) <= before


def test_an_interrupt_ends_what_the_ranks_started(ljperf: Ljperf, script: Path) -> None:
    """Even what has left their session and what is deaf to SIGTERM."""
    script.write_text(
        "import pathlib, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "pathlib.Path('started').write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    process = ljperf.start("train", "--ranks", "1", script)
    while not (started := ljperf.folder / "started").exists() or not started.read_text():
        time.sleep(0.02)
        assert process.poll() is None
    child = int(started.read_text())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "ljperf: interrupted\n")
    assert not Path(f"/proc/{child}").exists()


def test_train_refuses_what_is_no_script(ljperf: Ljperf) -> None:
    for arguments, words in (
        (("train",), "SCRIPT is missing"),
        (("train", "absent.py"), "no such file"),
        (("train", "--python", "no-such-python", "-m", "a"), "--python no-such-python"),
        (("train", "--ranksx", "2", "a.py"), "--ranks"),
    ):
        result = ljperf(*arguments)
        assert result.returncode == 2
        assert words in result.stderr
