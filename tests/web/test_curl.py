"""The curl example of the guide, against a server that listens."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.web import Users
from holdfast.web.server import WebServer

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "web.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_example_of_the_guide_prints_what_it_says(served: Holdfast, users: Users) -> None:
    server = WebServer(served.web(auth=users), port=0).start()
    try:
        (block,) = re.findall(
            r"^```text\n(\$ curl.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
        commands = re.findall(r"^\$ (.*)\n(.*)$", block, re.MULTILINE)
        assert len(commands) == 5
        for command, expected in commands:
            found = subprocess.run(
                command.replace(":8520/", f":{server.port}/"),
                shell=True,
                env=os.environ | {"TOKEN": "operator"},
                capture_output=True,
                text=True,
                check=True,
            )
            pattern = ".*".join(re.escape(part) for part in expected.split("…"))
            assert re.fullmatch(pattern, found.stdout.strip()), (command, found.stdout)
    finally:
        server.close()
