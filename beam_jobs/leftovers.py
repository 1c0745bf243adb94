"""What dead attempts left in an output: half-written files, runs that no receipt names, heartbeats, results of audits.

A live build needs some of what looks like a leftover, so nothing is removed while one lives. What a dataset, or the
next command on an unfinished build, needs is never a leftover: receipts and what they name stay.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from beam_jobs.job import FAILURES, JOB, JOB_TOKENIZER, PROGRESS, RECEIPTS, JobRecord, read_receipt, runs_dir
from beam_jobs.lease import drivers, lives_here, silent_seconds
from beam_jobs.local_runner import dead_drivers
from beam_jobs.progress import read_beats
from pileshard.errors import BuildError, PileshardError
from pileshard.format.paths import BUILD, MANIFEST
from pileshard.format.storage import TEMP_DIR, Storage

#: A worker that was heard of so lately may still be at its item, though its driver is gone.
_WORKER_SECONDS = 300.0

#: Results of an audit by Beam are removed by it; those of so old a one are left behind.
_AUDIT_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Leftover:
    """A kind of leftover.

    Attributes:
      what: its name, for a person.
      place: where it lies; None for directories of this machine.
      paths: below the place, or whole.
      bytes: of all of them.
    """

    what: str
    place: Storage | None
    paths: list[str]
    bytes: int

    def __str__(self) -> str:
        where = self.place.url if self.place is not None else "this machine"
        return f"{len(self.paths):,} {self.what} ({self.bytes / 1e6:,.1f} MB) in {where}"

    def remove(self) -> None:
        """Removes them."""
        for path in self.paths:
            if self.place is not None:
                self.place.remove(path)
            else:
                Storage(os.path.dirname(path)).remove_tree(os.path.basename(path))
        if self.place is not None:
            _remove_empty_folders(self.place, {path.rsplit("/", 1)[0] for path in self.paths})


def live_command(storage: Storage) -> str | None:
    """What works on an output as far as can be told, in words; None where nothing does."""
    now = time.time()
    for driver in drivers(storage):
        lives = lives_here(driver)
        if lives or (lives is None and now - driver.time < silent_seconds(storage)):
            return f"{driver} works on it, last heard of {max(0, now - driver.time):,.0f} s ago"
    for beat in read_beats(storage):
        if now - beat.time < _WORKER_SECONDS and lives_here_by_number(beat.host, beat.pid) is not False:
            return f"{beat.item} is in work on {beat.host}, last heard of {max(0, now - beat.time):,.0f} s ago"
    return None


def lives_here_by_number(host: str, pid: int) -> bool | None:
    """Whether a process lives, told by its number alone; None where it is of another host."""
    if host != socket.gethostname():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def find_leftovers(storage: Storage, temp: Storage | None = None, *, kept_runs: bool = False) -> list[Leftover]:
    """What may be removed from an output on which nothing works.

    Args:
      storage: the output.
      temp: where the runs lie, if elsewhere.
      kept_runs: whether the runs and receipts that a complete dataset's build kept are to go too.

    Raises:
      BuildError: there is no build, or a receipt that cannot be read.
    """
    files = storage.files(BUILD)
    if JOB not in files and not storage.exists(MANIFEST):
        raise BuildError(f"{storage.url}: holds neither a build nor a dataset")
    complete = storage.exists(MANIFEST)
    done = complete and (kept_runs or JOB_TOKENIZER not in files)
    needed = set() if done else _named_in_receipts(storage, files)
    places = [storage] if temp is None or temp.url == storage.url else [storage, temp]
    own = _fingerprint(storage)
    found = []
    for place in places:
        listed = files if place is storage else place.files(runs_dir(own)) if own else []
        runs = [path for path in listed if path.startswith(f"{BUILD}/runs-")]
        found += [
            _sized("half-written files", place, (path for path in listed if _is_temporary(path))),
            _sized("runs that no receipt names", place, (p for p in runs if p not in needed and not _is_temporary(p))),
        ]
    small = (f"{PROGRESS}/", f"{FAILURES}/", f"{BUILD}/drivers/")
    found.append(_sized("heartbeats and notes of dead attempts", storage, (p for p in files if p.startswith(small))))
    audits = [path for path in files if path.startswith(f"{BUILD}/verify-")]
    found.append(_sized("results of audits that ended early", storage, (p for p in audits if _is_old(storage, p))))
    if done:
        stays = (JOB, f"{BUILD}/repair/", f"{BUILD}/rebuild/", f"{BUILD}/runs-", f"{BUILD}/verify-", f"{TEMP_DIR}/")
        rest = (path for path in files if not path.startswith((*stays, *small)))
        found.append(_sized("receipts and plans of the finished build", storage, rest))
    folders = dead_drivers()
    found.append(Leftover("directories of dead drivers", None, folders, sum(map(_folder_bytes, folders))))
    return [leftover for leftover in found if leftover.paths]


def end_uploads(storage: Storage, dry_run: bool) -> int:
    """Ends the uploads of dead attempts below an output on S3, which are stored, and paid for, unseen.

    Returns:
      How many there were; 0 where the store ends them by itself.
    """
    fs = storage.fs
    if not hasattr(fs, "list_multipart_uploads"):
        return 0
    bucket, key, _ = fs.split_path(storage.root)
    mine = [upload for upload in fs.list_multipart_uploads(bucket) if upload["Key"].startswith(f"{key}/")]
    for upload in () if dry_run else mine:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    return len(mine)


def _fingerprint(storage: Storage) -> str | None:
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode(storage.read_bytes(JOB), type=JobRecord).fingerprint()
    return None


def _named_in_receipts(storage: Storage, files: Sequence[str]) -> set[str]:
    """Every path below `_build` that a receipt or a plan speaks of."""
    needed: set[str] = set()
    for path in files:
        if path.startswith(f"{RECEIPTS}/"):
            needed.update(_paths(read_receipt(storage, path, Any)))
    return needed


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value.startswith(f"{BUILD}/"):
            yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from _paths(part)


def _is_temporary(path: str) -> bool:
    folder = path.rsplit("/", 1)[0]
    return folder == TEMP_DIR or (folder.startswith(f"{BUILD}/runs-") and folder.endswith("/tmp"))


def _is_old(storage: Storage, path: str) -> bool:
    written = storage.modified(path)
    return written is not None and time.time() - written > _AUDIT_SECONDS


def _sized(what: str, place: Storage, paths: Iterable[str]) -> Leftover:
    kept, total = [], 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += place.size(path)
            kept.append(path)
    return Leftover(what, place, kept, total)


def _folder_bytes(folder: str) -> int:
    place = Storage(folder)
    return _sized("", place, place.files()).bytes


def _remove_empty_folders(place: Storage, folders: set[str]) -> None:
    """Directories of a file system that nothing is in any more, and those above them, up to `_build`."""
    for folder in sorted(folders, key=len, reverse=True):
        while folder.startswith(f"{BUILD}/") and (path := place.local_path(folder)) is not None:
            try:
                os.rmdir(path)
            except OSError:
                break
            folder = folder.rsplit("/", 1)[0]


def remove_quietly(leftovers: Iterable[Leftover]) -> list[str]:
    """Removes leftovers, and tells in sentences what could not be removed."""
    failed = []
    for leftover in leftovers:
        try:
            leftover.remove()
        except (OSError, PileshardError) as error:
            failed.append(f"{leftover}: {error}")
    return failed
