"""A part of the Hugging Face Hub on this machine: creates repositories, takes commits, and serves their files.

It speaks the endpoints that huggingface_hub uses to upload a directory and to download a snapshot. Tensors are uploaded
as large files (Git LFS), the others inside the commit, as on the Hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class HubHandler(BaseHTTPRequestHandler):
    """Answers requests from the dictionaries of the server."""

    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body, path = self._body(), self._path()
        if path == "/api/validate-yaml":
            self._give({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            repo = f"{body['organization']}/{body['name']}"
            self.server.repos.setdefault(repo, {})
            self._give({"url": self.server.address(f"/{repo}")})
        elif path.endswith("/info/lfs/objects/batch"):
            self._give({"transfer": "basic", "objects": [self._upload_of(item) for item in body["objects"]]})
        elif path.endswith("/preupload/main"):
            modes = {item["path"]: item["path"].endswith(".safetensors") for item in body["files"]}
            files = [
                {"path": name, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}
                for name, is_large in modes.items()
            ]
            self._give({"files": files})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            repo = self.server.repos[found[1]]
            for line in body:
                value = line["value"]
                if line["key"] == "file":
                    repo[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    repo[value["path"]] = self.server.large_files[value["oid"]]
            self._give({"commitUrl": self.server.address(f"/{found[1]}/commit/{SHA}"), "commitOid": SHA})
        else:
            self._give({"error": path}, 404)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        digest = self._path().rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == digest
        self.server.large_files[digest] = content
        self._give({})

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve(with_body=False)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def _serve(self, with_body: bool = True) -> None:
        path = self._path()
        self.server.seen.append(f"{self.command} {path} {self.headers.get('Authorization', '')}".strip())
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/main)?", path):
            files = self.server.repos.get(found[1])
            if files is not None:
                names = [{"rfilename": name} for name in sorted(files)]
                return self._give({"id": found[1], "sha": SHA, "siblings": names, "private": False, "tags": []})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
            files = self.server.repos[found[1]]
            return self._give(
                [{"type": "file", "path": name, "size": len(files[name]), "oid": "0" * 40} for name in sorted(files)]
            )
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            content = self.server.repos.get(found[1], {}).get(found[2])
            if content is not None:
                digest = hashlib.sha256(content).hexdigest()
                return self._give(content, headers={"X-Repo-Commit": SHA, "ETag": f'"{digest}"'}, with_body=with_body)
            code = "EntryNotFound" if found[1] in self.server.repos else "RepoNotFound"
            return self._give(b"", 404, {"X-Error-Code": code})
        return self._give(b"", 404, {"X-Error-Code": "RepoNotFound"})

    def _upload_of(self, item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "actions": {"upload": {"href": self.server.address(f"/lfs/{item['oid']}")}}}

    def _path(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _body(self) -> Any:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Type", "").startswith("application/x-ndjson"):
            return [json.loads(line) for line in content.splitlines()]
        return json.loads(content)

    def _give(
        self, content: Any, status: int = 200, headers: dict[str, str] | None = None, with_body: bool = True
    ) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(data)


class HubServer(ThreadingHTTPServer):
    """The server. ``repos`` holds the content of each file of each repository."""

    daemon_threads = True

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.large_files: dict[str, bytes] = {}
        self.seen: list[str] = []
        super().__init__(("127.0.0.1", 0), HubHandler)

    def address(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


SHA = "0123456789abcdef0123456789abcdef01234567"
"""The id of every commit."""
