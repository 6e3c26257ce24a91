"""A small stand-in for the Hugging Face Hub's HTTP interface, as far as phasegrad uses it: no test by itself.

One repository type (models), commits of regular files and of LFS files, downloads by name of branch or commit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_stand_in"


class Hub:
    """What the service knows: repositories with the files of each commit, and every request that was made."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, bytes] = {}  # of LFS, by checksum
        self.requests: list[str] = []
        self.unknown: list[str] = []
        self.claimed_sizes: dict[str, int] = {}  # in place of the real ones
        self.endpoint = ""

    def create(self, repo: str, private: bool, files: dict[str, bytes] | None = None) -> None:
        self.repos[repo] = {"private": private, "commits": []}
        self.commit(repo, {".gitattributes": b"", **(files or {})})

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        commits = self.repos[repo]["commits"]
        tree = {**(commits[-1][1] if commits else {}), **files}
        sha = hashlib.sha1(f"{repo}{len(commits)}".encode()).hexdigest()
        commits.append((sha, tree))
        return sha

    def tree(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.repos[repo]["commits"]
        found = commits[-1:] if revision == "main" else [each for each in commits if each[0] == revision]
        return found[0] if found else None


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Quietly."""

        def answer(
            self, code: int, data: Any = None, headers: dict[str, str] | None = None, head: bool = False
        ) -> None:
            payload = data if isinstance(data, bytes) else json.dumps({} if data is None else data).encode()
            self.send_response(code)
            for name, value in {"Content-Length": str(len(payload)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if not head:
                self.wfile.write(payload)

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def may(self, repo: str, write: bool = False) -> bool:
            known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if write and not known:
                self.answer(401, {"error": "Invalid username or password."})
                return False
            if repo not in hub.repos or (hub.repos[repo]["private"] and not known):
                self.answer(404 if known else 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
                return False
            return True

        def do_HEAD(self) -> None:
            self.get(head=True)

        def do_GET(self) -> None:
            self.get(head=False)

        def get(self, head: bool) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append(f"{self.command} {path}")
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                if not self.may(found[1]):
                    return
                tree = hub.tree(found[1], found[2] or "main")
                if tree is None:
                    self.answer(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
                    return
                files = [
                    {"rfilename": name, "size": hub.claimed_sizes.get(name, len(payload))}
                    for name, payload in tree[1].items()
                ]
                about = {"id": found[1], "sha": tree[0], "private": hub.repos[found[1]]["private"], "tags": []}
                self.answer(200, {**about, "modelId": found[1], "siblings": files})
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                if not self.may(found[1]):
                    return
                tree = hub.tree(found[1], found[2])
                if tree is None or found[3] not in tree[1]:
                    self.answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"}, head)
                    return
                payload = tree[1][found[3]]
                etag = f'"{hashlib.sha256(payload).hexdigest()}"'
                self.answer(200, payload, {"ETag": etag, "X-Repo-Commit": tree[0]}, head)
            else:
                hub.unknown.append(f"{self.command} {path}")
                self.answer(404)

        def do_POST(self) -> None:
            path, body = self.path.partition("?")[0], self.body()
            hub.requests.append(f"POST {path}")
            if path == "/api/repos/create":
                asked = json.loads(body)
                repo = (
                    f"{asked['organization']}/{asked['name']}" if asked.get("organization") else f"me/{asked['name']}"
                )
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.answer(401, {"error": "Invalid username or password."})
                    return
                private = asked.get("private", asked.get("visibility") == "private")
                hub.create(repo, bool(private))
                self.answer(200, {"url": f"{hub.endpoint}/{repo}", "name": repo})
            elif path == "/api/validate-yaml":
                self.answer(200, {"errors": [], "warnings": []})
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
                if self.may(found[1], write=True):
                    files = [
                        {
                            "path": each["path"],
                            "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular",
                            "shouldIgnore": False,
                            "oid": None,
                        }
                        for each in json.loads(body)["files"]
                    ]
                    self.answer(200, {"files": files})
            elif re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
                objects = [
                    {**each, "actions": {"upload": {"href": f"{hub.endpoint}/upload/{each['oid']}"}}}
                    for each in json.loads(body)["objects"]
                ]
                self.answer(200, {"transfer": "basic", "objects": objects})
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
                if self.may(found[1], write=True):
                    files = {}
                    for line in map(json.loads, body.splitlines()):
                        value = line["value"]
                        if line["key"] == "file":
                            files[value["path"]] = base64.b64decode(value["content"])
                        elif line["key"] == "lfsFile":
                            files[value["path"]] = hub.objects[value["oid"]]
                    sha = hub.commit(found[1], files)
                    url = f"{hub.endpoint}/{found[1]}/commit/{sha}"
                    self.answer(200, {"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})
            else:
                hub.unknown.append(f"POST {path}")
                self.answer(404)

        def do_PUT(self) -> None:
            path, body = self.path.partition("?")[0], self.body()
            hub.requests.append(f"PUT {path}")
            oid = path.removeprefix("/upload/")
            assert hashlib.sha256(body).hexdigest() == oid
            hub.objects[oid] = body
            self.answer(200)

    return Handler


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
