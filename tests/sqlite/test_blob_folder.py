"""The folder of large payloads, created by another program: the doctor reports who can read it."""

import os
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast import Holdfast
from holdfast.upkeep.doctor.check import Finding
from holdfast.upkeep.doctor.doctor import diagnose
from support.blob_stores import blob_files, collect, large
from support.doctor import diagnosis_of


@pytest.fixture
def folder(app: Holdfast, url: str) -> Path:
    """Where it will be, before there is one."""
    return Path(f"{url}-blobs")


def made(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)  # whatever the umask is


def findings(app: Holdfast) -> dict[str, Finding]:
    return {one.code: one for one in app.check().findings}


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o711])
def test_a_folder_that_is_open_to_others_is_found(app: Holdfast, url: str, folder: Path, mode: int) -> None:
    made(folder, mode)
    app.queue("inbox").send(large())
    assert stat.S_IMODE(folder.stat().st_mode) == mode, "they may share it on purpose"
    one = findings(app)["FILE_PERMISSIONS"]
    assert one.severity == "warning" and f"Other users can open {folder.name} (mode {mode:o})." in one.meaning
    assert one.fix == f"chmod 700 {shlex.quote(str(folder))}"
    subprocess.run(one.fix, shell=True, check=True)
    assert findings(app)["FILE_PERMISSIONS"].severity == "ok"
    assert len(blob_files(url)) == 1


def test_files_and_folder_are_fixed_by_one_command(app: Holdfast, url: str, folder: Path) -> None:
    made(folder, 0o755)
    Path(url).chmod(0o644)
    one = findings(app)["FILE_PERMISSIONS"]
    assert one.detail["modes"] == {Path(url).name: "0o644", folder.name: "0o755"}
    assert one.fix is not None
    subprocess.run(one.fix, shell=True, check=True)
    assert findings(app)["FILE_PERMISSIONS"].severity == "ok"


def test_a_folder_that_is_a_link_is_noted(app: Holdfast, url: str, folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir(0o700)
    folder.symlink_to(elsewhere)
    app.queue("inbox").send(large())
    one = findings(app)["BLOBS_ELSEWHERE"]
    assert one.severity == "note" and f"is a link to {elsewhere}." in one.meaning
    assert one.fix == f"ls -ld {folder} '{elsewhere}'"
    elsewhere.chmod(0o755)
    assert f"chmod 700 {folder}" in str(findings(app)["FILE_PERMISSIONS"].fix), "of where it leads to"


def test_a_folder_of_another_owner_is_found(app: Holdfast, url: str, folder: Path) -> None:
    folder.mkdir(0o700)
    found = diagnosis_of(Path(url))
    blobs = found.file.blob_folder
    assert blobs is not None and blobs.owner == blobs.database_owner == os.getuid()
    found.file = msgspec.structs.replace(found.file, blob_folder=msgspec.structs.replace(blobs, owner=4711))
    (one,) = (one for one in diagnose(found) if one.code == "BLOBS_OWNER")
    assert one.severity == "warning" and "belongs to user 4711" in one.meaning
    assert one.fix == f"chown -R {os.getuid()} {folder}"


def test_what_holdfast_made_itself_is_fine(app: Holdfast, url: str) -> None:
    assert findings(app)["FILE_PERMISSIONS"].severity == "ok"
    app.queue("inbox").send(large())
    found = findings(app)
    assert found["FILE_PERMISSIONS"].severity == "ok" and not {"BLOBS_ELSEWHERE", "BLOBS_OWNER"} & found.keys()


def test_each_prefix_has_a_folder_of_its_own(url: str) -> None:
    with Holdfast(url, prefix="other_") as app:
        made(Path(f"{url}-blobs"), 0o755)
        assert findings(app)["FILE_PERMISSIONS"].severity == "ok"
        made(Path(f"{url}-other_blobs"), 0o755)
        assert findings(app)["FILE_PERMISSIONS"].severity == "warning"


def test_two_prefixes_in_one_file_have_folders_of_their_own(open_app: Callable[..., Holdfast], url: str) -> None:
    one, other = open_app(), open_app(prefix="jobs_")
    ids = [app.queue("inbox").send(large()) for app in (one, other)]
    one.jobs.delete(ids[0])
    collect(one)
    assert blob_files(url) == [] and len(blob_files(url, "-jobs_blobs")) == 1
    assert other.jobs.get(ids[1]).args == large()
