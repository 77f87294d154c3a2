"""A stand-in for Hugging Face's hub: as much of its protocol as publishing needs, by its own client, and fetching."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.http_servers import running_server

TOKEN = "hf_" + "a" * 34
_LARGE = ".safetensors"


@dataclass
class Hub:
    """What it holds.

    Attributes:
        branches: Of a repository: branch to commit.
        commits: Files of a commit, by their path.
        blobs: Large files, by their digest.
        refuse: A status with which commits are answered in place of being made.
    """

    address: str = ""
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    refuse: int = 0
    requests: list[str] = field(default_factory=list)

    def commit_of(self, repository: str, revision: str) -> str | None:
        branches = self.branches.get(repository, {})
        return branches.get(revision) or (revision if revision in self.commits else None)


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()
    with running_server(type("Handler", (_Handler,), {"hub": hub})) as hub.address:
        yield hub


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *values: Any) -> None:
        self.hub.requests.append(format % values)

    def _answer(self, status: int, content: Any = None, **headers: str) -> None:
        data = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self) -> None:
        body = self._body()
        if "/objects/batch" in self.path:
            self._large(json.loads(body))
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if name in self.hub.branches:
                self._answer(409, {"error": "You already created this model repo", "url": f"{self.hub.address}/{name}"})
                return
            self.hub.commits["0" * 40] = {}
            self.hub.branches[name] = {"main": "0" * 40}
            self._answer(200, {"url": f"{self.hub.address}/{name}"})
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        else:
            self._of_repository(body)

    def _of_repository(self, body: bytes) -> None:
        _, _, _, user, name, what, *revision = self.path.partition("?")[0].split("/")
        repository = f"{user}/{name}"
        if what == "branch":
            self.hub.branches[repository][revision[0]] = self.hub.branches[repository]["main"]
            self._answer(200)
        elif what == "preupload":
            files = [one["path"] for one in json.loads(body)["files"]]
            modes = {path: "lfs" if path.endswith(_LARGE) else "regular" for path in files}
            self._answer(
                200, {"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]}
            )
        elif self.hub.refuse:
            self._answer(self.hub.refuse, {"error": "You have exceeded your quota."})
        else:
            self._commit(repository, revision[0], [json.loads(line) for line in body.splitlines()])

    def _commit(self, repository: str, branch: str, lines: list[dict[str, Any]]) -> None:
        files = dict(self.hub.commits[self.hub.branches[repository][branch]])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
        commit = hashlib.sha1(repr(sorted(files.items())).encode() + branch.encode()).hexdigest()
        self.hub.commits[commit] = files
        self.hub.branches[repository][branch] = commit
        address = f"{self.hub.address}/{repository}/commit/{commit}"
        self._answer(200, {"success": True, "commitOid": commit, "commitUrl": address, "hookOutput": ""})

    def _large(self, asked: dict[str, Any]) -> None:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.hub.address}/blobs/{one['oid']}"}}}
            for one in asked["objects"]
        ]
        self._answer(200, {"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")

    def do_PUT(self) -> None:
        data = self._body()
        assert hashlib.sha256(data).hexdigest() == self.path.rpartition("/")[2]
        self.hub.blobs[self.path.rpartition("/")[2]] = data
        self._answer(200)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        repository = "/".join(parts[2:4] if api else parts[:2])
        revision = ([*parts, "revision", "main"][5]) if api else parts[3]
        if repository not in self.hub.branches:
            self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return
        commit = self.hub.commit_of(repository, revision)
        if commit is None:
            self._answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
            return
        files = self.hub.commits[commit]
        if not api:
            data = files["/".join(parts[4:])]
            self._answer(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=commit)
        else:
            siblings = [
                {"rfilename": path, "size": len(data), **_large_file(path, data)} for path, data in files.items()
            ]
            self._answer(200, {"id": repository, "sha": commit, "siblings": siblings, "tags": []})


def _large_file(path: str, data: bytes) -> dict[str, Any]:
    """Return what the hub says, beyond its size, of a file that Git does not keep itself."""
    return {"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}} if path.endswith(_LARGE) else {}
