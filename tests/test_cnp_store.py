"""cnp's store, end to end: what it lists, keeps and survives.

The record files are the truth. Here writers are killed, disks are full, indexes and records are
damaged, names are hostile, and afterwards everything that was written must still be there.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
Record = dict[str, Any]


class Cnp:
    """Runs cnp on a folder of records of its own."""

    def __init__(self, folder: Path) -> None:
        named = os.environ.get("CNP")
        self.program = Path(named) if named else Path(sysconfig.get_path("scripts")) / "cnp"
        assert self.program.exists(), f"{self.program} is missing: run `make build` first"
        self.folder = folder
        self.records = folder / "records"

    def environment(self, **changes: str) -> dict[str, str]:
        return {**os.environ, "LJTRAIN_RECORDS": str(self.records), **changes}

    def __call__(
        self, *arguments: str | Path, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *map(str, arguments)],
            env=self.environment(**environment),
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, *map(str, arguments)],
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def json(self, *arguments: str | Path) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def ids(self, *arguments: str) -> list[str]:
        listed = self.json("list", "--limit", "0", *arguments)["records"]
        return [record["record_id"] for record in listed]


@pytest.fixture
def cnp(tmp_path: Path) -> Cnp:
    return Cnp(tmp_path)


@pytest.fixture(scope="session")
def template() -> Record:
    named = os.environ.get("CNP_RECORD_TOOL")
    built = [Path(named)] if named else list(REPOSITORY.glob("build/*/cnp/cnp_record_tool"))
    assert built, "cnp_record_tool is missing: build the release preset with CMake first"
    tool = max(built, key=lambda path: path.stat().st_mtime)
    lines = subprocess.run([tool, "samples"], check=True, capture_output=True, text=True).stdout
    record: Record = json.loads(lines.splitlines()[0])
    return record


Write = Callable[..., str]


@pytest.fixture
def write(cnp: Cnp, template: Record) -> Write:
    """Writes a record as ljperf does; returns its id."""

    def write_record(number: int = 0, **changes: Any) -> str:
        record = {**template, **changes}
        record["created"] = changes.get("created", f"2026-11-{number % 28 + 1:02}T12:00:00Z")
        stamp = record["created"].replace("-", "").replace(":", "")
        record["record_id"] = changes.get("record_id", f"{stamp}-llama3-8b-{number:08x}")
        cnp.records.mkdir(exist_ok=True)
        temporary = cnp.records / f"{record['record_id']}.json.1.tmp"
        temporary.write_text(json.dumps(record))
        temporary.rename(cnp.records / f"{record['record_id']}.json")
        return str(record["record_id"])

    return write_record


def refused(done: subprocess.CompletedProcess[str], *expected: str) -> None:
    """Bad input is one line on standard error and exit code 2, with nothing on standard output."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for words in expected:
        assert words in done.stderr


def test_lists_newest_first_and_filters(cnp: Cnp, write: Write) -> None:
    assert "no records" in cnp("list").stdout
    assert not cnp.records.exists()
    old, new = write(1), write(2, engine="fsdp")
    assert cnp.ids() == [new, old]
    assert cnp.ids("--engine", "fsdp") == [new]
    assert cnp.ids("--model", "fsdp/llama3-8b") == [new]
    assert cnp.ids("--since", "2026-11-03") == [new]
    assert cnp.ids("--before", "2026-11-03") == [old]
    assert cnp.ids("--status", "failed") == []
    listed = cnp.json("list", "--limit", "1")
    assert (listed["matching"], len(listed["records"])) == (2, 1)
    assert listed["records"][0]["tokens_per_s"] == 682.5
    refused(cnp("list", "--status", "done"), "--status done", "completed")
    refused(cnp("list", "--since", "yesterday"), "--since yesterday", "7d")
    refused(cnp("list", "--since", "2026-11-31"), "2026-11-31")
    refused(cnp("list", "--model", "ddp/x", "--engine", "fsdp"), "two engines")
    refused(cnp("lst"), "lst", "list")


def test_selectors(cnp: Cnp, write: Write, tmp_path: Path) -> None:
    old, new = write(1), write(2)
    for selector, found in (
        (new, new),
        ("00000001", old),
        ("20261102", old),
        ("latest", new),
        ("latest~1", old),
        (str(cnp.records / f"{old}.json"), old),
    ):
        assert cnp.json("show", selector)["record_id"] == found
    refused(cnp("show", "2026"), "more than one", new, old)
    refused(cnp("show", "nothing"), "nothing", "cnp list")
    refused(cnp("show", "latest~2"), "latest~2")
    refused(cnp("show", ""), "empty")
    refused(cnp("show", "gone/x.json"), "gone/x.json")


def test_tags_and_notes_outlive_the_index(cnp: Cnp, write: Write) -> None:
    old, new = write(1), write(2)
    assert cnp.json("tag", old, "baseline", "h100")["tags"] == ["baseline", "h100"]
    assert cnp("note", old, "before the\nmove; <b>'; --").returncode == 0
    assert cnp("note", new, "-", stdin="from a pipe").returncode == 0
    shutil.rmtree(cnp.records / ".cnp")
    assert cnp.ids("--tag", "baseline") == [old]
    assert cnp.json("show", "baseline")["annotation"] == {
        "tags": ["baseline", "h100"],
        "note": "before the\nmove; <b>'; --",
    }
    moved = cnp.json("tag", new, "baseline", "--move")
    assert moved["taken_from"] == [old]
    assert cnp.ids("--tag", "baseline") == [new]
    assert cnp.json("tag", old, "h100", "--remove")["tags"] == []
    assert cnp.json("note", old, "--remove")["note"] is None
    assert not (cnp.records / "annotations" / f"{old}.json").exists()
    assert cnp.json("note", new)["note"] == "from a pipe"
    for tag in ("latest", "", "two words", "a/b", "x" * 65, "x.json", "rm\n"):
        refused(cnp("tag", new, "--", tag), "tag")


def test_several_processes_tag_at_once_and_none_is_lost(cnp: Cnp, write: Write) -> None:
    record = write(1)
    writers = [cnp.start("tag", record, f"tag-{i}") for i in range(12)]
    for i in range(2, 8):
        write(i)
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 12
    shown = cnp.json("show", record)["annotation"]["tags"]
    assert shown == sorted(f"tag-{i}" for i in range(12))
    assert len(cnp.ids()) == 7


def test_killed_at_any_time_nothing_is_lost(cnp: Cnp, write: Write) -> None:
    records = [write(i) for i in range(20)]
    chance = random.Random(8)
    kept: set[str] = set()
    for i in range(25):
        if i % 3 == 0:
            shutil.rmtree(cnp.records / ".cnp", ignore_errors=True)
        writer = cnp.start("tag", records[i % 20], f"t{i}")
        time.sleep(chance.uniform(0, 0.02))
        writer.send_signal(signal.SIGKILL)
        if writer.wait(timeout=60) == 0:
            kept.add(f"t{i}")
    listed = cnp.json("list", "--limit", "0")
    assert sorted(record["record_id"] for record in listed["records"]) == sorted(records)
    assert listed["problems"] == []
    tags = {tag for record in listed["records"] for tag in record["tags"]}
    assert kept <= tags
    for record in listed["records"]:
        assert set(record["tags"]) <= {f"t{i}" for i in range(25)}
    assert cnp("tag", records[0], "after").returncode == 0


def test_a_full_disk_costs_nothing(cnp: Cnp, write: Write) -> None:
    """RLIMIT_FSIZE fails a write past its limit, as a full disk does."""
    record = write(1)
    assert cnp("tag", record, "first").returncode == 0
    before = (cnp.records / "annotations" / f"{record}.json").read_text()
    shutil.rmtree(cnp.records / ".cnp")

    def limited(*arguments: str) -> subprocess.CompletedProcess[str]:
        def full() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

        return subprocess.run(
            [cnp.program, *arguments],
            env=cnp.environment(),
            capture_output=True,
            text=True,
            preexec_fn=full,
            timeout=60,
            check=False,
        )

    listed = limited("list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert [r["record_id"] for r in json.loads(listed.stdout)["records"]] == [record]
    assert "cannot be written" in listed.stderr
    failed = limited("tag", record, "second")
    assert failed.returncode == 2
    assert "File too large" in failed.stderr or "free space" in failed.stderr
    assert (cnp.records / "annotations" / f"{record}.json").read_text() == before
    assert cnp.json("show", record)["annotation"]["tags"] == ["first"]


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "text", "header"])
def test_a_damaged_index_is_made_anew(cnp: Cnp, write: Write, damage: str) -> None:
    records = [write(i, model="m" * 150) for i in range(60)]
    assert cnp("tag", records[3], "kept").returncode == 0
    assert len(cnp.ids()) == 60
    index = cnp.records / ".cnp" / "index.sqlite"
    content = bytearray(index.read_bytes())
    assert len(content) > 8192
    chance = random.Random(1)
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "noise":
        content[4096:] = chance.randbytes(len(content) - 4096)
    elif damage == "empty":
        content = bytearray()
    elif damage == "text":
        content = bytearray(b"no database at all\n" * 1000)
    else:
        content[:100] = chance.randbytes(100)
    index.write_bytes(content)
    assert sorted(cnp.ids()) == sorted(records)
    write(99)
    assert len(cnp.ids()) == 61
    assert cnp.ids("--tag", "kept") == [records[3]]


def test_an_older_index_is_migrated_and_a_later_one_refused(cnp: Cnp, write: Write) -> None:
    record = write(1)
    assert cnp.ids() == [record]
    index = cnp.records / ".cnp" / "index.sqlite"
    with sqlite3.connect(index) as database:
        current = database.execute("PRAGMA user_version").fetchone()[0]
        database.executescript(
            "DROP INDEX records_by_digest; ALTER TABLE records DROP COLUMN source_digest;"
            "PRAGMA user_version = 1"
        )
    database.close()
    assert cnp.ids() == [record]
    with sqlite3.connect(index) as database:
        assert database.execute("PRAGMA user_version").fetchone()[0] == current
        database.execute(f"PRAGMA user_version = {current + 1}")
    database.close()
    refused(cnp("list"), "later version", "upgrade", "--rebuild")
    assert cnp.json("index", "--rebuild")["records"] == 1
    assert cnp.ids() == [record]


def test_bad_records_are_named_and_the_rest_works(cnp: Cnp, write: Write, template: Record) -> None:
    good = write(1)
    whole = json.dumps({**template, "record_id": "cut"})
    (cnp.records / "cut.json").write_text(whole[: len(whole) // 2])
    (cnp.records / "empty.json").write_text("")
    (cnp.records / "deep.json").write_text("[" * 100_000)
    (cnp.records / "binary.json").write_bytes(random.Random(2).randbytes(5000))
    future = {**template, "record_id": "future", "schema_version": 2}
    (cnp.records / "future.json").write_text(json.dumps(future))
    (cnp.records / "misnamed.json").write_text(json.dumps(template))
    (cnp.records / "wrong.json").write_text(
        json.dumps({**template, "record_id": "wrong", "ranks": None}, indent=1)
    )
    (cnp.records / "dangling.json").symlink_to("nowhere")
    done = cnp("list", "--json")
    assert done.returncode == 0
    listed = json.loads(done.stdout)
    assert [record["record_id"] for record in listed["records"]] == [good]
    problems = {problem["file"]: problem["problem"] for problem in listed["problems"]}
    assert set(problems) == {
        *("cut.json", "empty.json", "deep.json", "binary.json", "future.json", "misnamed.json"),
        *("wrong.json", "dangling.json"),
    }
    assert "upgrade" in problems["future.json"]
    assert "rename" in problems["misnamed.json"]
    assert "`ranks`" in problems["wrong.json"] and "wrong.json:" in problems["wrong.json"]
    assert "5 more files" in done.stderr and done.stderr.count("\n") == 4
    # Mended in place by rename: noticed.
    write(0, record_id="cut")
    assert set(cnp.ids()) == {"cut", good}
    (cnp.records / "annotations").mkdir()
    (cnp.records / "annotations" / f"{good}.json").write_text('{"tags": 3}')
    marked = {problem["file"] for problem in cnp.json("list")["problems"]}
    assert f"annotations/{good}.json" in marked
    done = cnp("tag", good, "x")
    assert done.returncode == 2 and "mend or delete it" in done.stderr
    assert (cnp.records / "annotations" / f"{good}.json").read_text() == '{"tags": 3}'
    assert cnp.json("show", good)["record_id"] == good


HOSTILE = (
    "<script>alert(1)</script>",
    "'; DROP TABLE records; --",
    "new\nline\r\tand \x1b[31mred\x1b]0;title\x07",
    "\u202eright to left\u2066\u200b",
    "=cmd|' /C calc'!A0",
    "m" * 10_000_000,
    "漢字" * 50,
)


def test_hostile_names(cnp: Cnp, write: Write) -> None:
    for number, name in enumerate(HOSTILE):
        failure: dict[str, Any] = {"sentence": name, "rank": None, "last_lines": []}
        write(number, model=name, engine=name, status="failed", failure=failure)
    for width in ("80", "120"):
        done = cnp("list", COLUMNS=width)
        assert done.returncode == 0
        lines = done.stdout.splitlines()
        assert len(lines) == len(HOSTILE) + 1
        for line in lines:
            wide = sum(2 if "\u2e80" <= c <= "\u9fff" else 1 for c in line)
            assert wide <= int(width), line
        for c in "\x1b\x07\r\t\u202e\u2066\u200b":
            assert c not in done.stdout
    for number in range(len(HOSTILE)):
        shown = cnp("show", f"{number:08x}", COLUMNS="80")
        assert shown.returncode == 0, shown.stderr
        assert len(shown.stdout) < 10_000
        for c in "\x1b\x07\r\t\u202e\u2066\u200b":
            assert c not in shown.stdout
    assert cnp.ids("--model", HOSTILE[1]) == [cnp.ids("--model", HOSTILE[1])[0]]
    assert len(cnp.ids()) == len(HOSTILE)
    refused(cnp("show", "'; --\x1b[31m"), "'; --\\x1b[31m")
    rows = list(csv.reader(io.StringIO(cnp("export", "--format", "csv").stdout)))
    assert len(rows) == len(HOSTILE) + 1
    assert not [cell for row in rows for cell in row if cell.startswith("=")]


def test_exports_and_imports_keep_everything(
    cnp: Cnp, write: Write, template: Record, tmp_path: Path
) -> None:
    ids = sorted(write(i) for i in range(3))
    assert cnp("tag", ids[0], "one", "two").returncode == 0
    assert cnp("note", ids[1], "a note").returncode == 0
    other = Cnp(tmp_path / "other")
    other.folder.mkdir()
    for form in ("json", "tar"):
        shutil.rmtree(other.records, ignore_errors=True)
        file = tmp_path / f"all.{form}"
        written = cnp("export", "--format", form, "--output", file)
        assert written.returncode == 0, written.stderr
        took = other.json("import", file)["files"][0]
        assert sorted(took["imported"]) == ids
        assert sorted(other.json("import", file)["files"][0]["known"]) == ids
        for record in ids:
            assert other.json("show", record) == cnp.json("show", record)
    # Another record under the same id is never overwritten.
    single = tmp_path / "single.json"
    single.write_text(json.dumps({**template, "record_id": ids[0]}))
    refused(other("import", single), ids[0], "other content")
    single.write_text(json.dumps({**template, "record_id": "../escape"}))
    refused(other("import", single), "../escape", "cannot name a file")
    assert not (tmp_path / "other" / "escape.json").exists()
    rows = list(csv.DictReader(io.StringIO(cnp("export", "--format", "csv").stdout)))
    assert [row["tags"] for row in rows if row["record_id"] == ids[0]] == ["one two"]
    assert float(rows[0]["step_median_s"]) == 1.5
    refused(cnp("export", "--format", "tar"), "--output")
    refused(cnp("export", "--format", "xml"), "xml")


def test_prune_spares_what_people_marked(cnp: Cnp, write: Write) -> None:
    ids = [write(i) for i in range(6)]
    assert cnp("tag", ids[0], "keep").returncode == 0
    assert cnp("note", ids[1], "keep, too").returncode == 0
    refused(cnp("prune"), "--before")
    dry = cnp.json("prune", "--before", "2026-11-05")
    assert dry["dry_run"] and sorted(dry["chosen"]) == ids[2:4] and dry["spared"] == 2
    assert len(cnp.ids()) == 6
    done = cnp.json("prune", "--before", "2026-11-05", "--yes")
    assert sorted(done["removed"]) == ids[2:4]
    assert sorted(cnp.ids()) == sorted(ids[:2] + ids[4:])
    assert cnp.json("prune", "--keep", "1", "--yes")["removed"] == [ids[4]]


def test_a_hundred_thousand_records_stay_quick(cnp: Cnp, write: Write, template: Record) -> None:
    """The index as it is after 100,000 records; their files are names only, to save minutes.

    Processor time, so that other work on the machine is not counted.
    """
    write(1)
    assert len(cnp.ids()) == 1
    count = 100_000
    names = [f"20250101T{i:06}Z-llama3-8b-{i:08x}" for i in range(count)]
    for name in names:
        os.mknod(cnp.records / f"{name}.json")
    inodes = {entry.name: entry.inode() for entry in os.scandir(cnp.records)}
    with sqlite3.connect(cnp.records / ".cnp" / "index.sqlite") as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(records)")]
        row = dict(zip(columns, database.execute("SELECT * FROM records").fetchone(), strict=True))
        database.executemany(
            f"INSERT INTO records VALUES ({', '.join('?' * len(columns))})",
            [
                tuple({**row, **changes}.values())
                for i, name in enumerate(names)
                for changes in [
                    {
                        "id": name,
                        "inode": inodes[f"{name}.json"],
                        "created": f"2025-01-01T{i // 3600 % 24:02}:{i // 60 % 60:02}:{i % 60:02}Z",
                        "engine": ("deepspeed", "fsdp")[i % 2],
                    }
                ]
            ],
        )
    database.close()
    time.sleep(0.1)

    def processor_seconds() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def quickest(*arguments: str) -> float:
        times = []
        for _ in range(5):
            begin = processor_seconds()
            done = cnp(*arguments)
            times.append(processor_seconds() - begin)
            assert done.returncode == 0, done.stderr
        return min(times)

    quickest("list")  # the folder's new time stamp is looked into once
    assert cnp.json("list")["matching"] == count + 1
    times = {
        "list": quickest("list"),
        "filter": quickest("list", "--engine", "fsdp"),
        "model": quickest("list", "--model", "deepspeed/llama3-8b", "--since", "2025-01-01"),
        "none": quickest("list", "--status", "failed"),
        "show": quickest("show", "latest"),
    }
    print({name: f"{seconds * 1e3:.0f} ms" for name, seconds in times.items()})
    assert max(times.values()) < 0.1, times
