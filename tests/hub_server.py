"""A local stand-in of the Hugging Face hub's HTTP interface: repositories, commits, uploads, downloads by revision.

What the hub's own client (``HF_ENDPOINT``) asks for is served: making a repository, checking a card's head,
``preupload``, the LFS batch with its uploads, ``commit``, trees, ``resolve`` with ``ETag`` and ``X-Repo-Commit``, and
the refusals with ``X-Error-Code``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

import yaml
from support.http_server import Asked, LocalServer

Answer = tuple[Any, ...]
TOKEN = "hf_standInTokenOfTheTests"


@dataclass
class Repository:
    """``commits``: files by path, by the commit's id, in their order; ``refs``: commits of branches and tags."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commit({".gitattributes": b"*.safetensors filter=lfs\n"})

    def commit(self, files: dict[str, bytes]) -> str:
        """Put ``files`` in place of all others, on main."""
        oid = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[oid] = files
        self.refs["main"] = oid
        return oid

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[self.refs["main"]]


class HubServer(LocalServer):
    """``status``: answer to everything, where it is set. ``asked``: (method, path) of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.status = 0

    def reply(self, asked: Asked) -> Answer:
        path = urllib.parse.unquote(urllib.parse.urlsplit(asked.path).path)
        self.asked.append((asked.method, path))
        may_write = asked.headers.get("authorization") == f"Bearer {TOKEN}"
        if self.status:
            return self.status, {"error": "out of order"}
        if path == "/api/validate-yaml":
            return validated(asked.body["content"])
        if path.startswith("/lfs/"):
            return self.stored(path.removeprefix("/lfs/"), asked)
        if asked.method == "POST" and not may_write:
            return 401, {"error": "Invalid credentials"}, {"X-Error-Message": "Invalid credentials"}
        if path == "/api/repos/create":
            return self.created(asked.body)
        if path.endswith(".git/info/lfs/objects/batch"):
            return self.batch(asked.body["objects"])
        words = path.strip("/").removeprefix("api/models/").split("/")
        name, rest = "/".join(words[:2]), words[2:]
        repository = self.repositories.get(name)
        if repository is None or (repository.private and not may_write):
            return 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
        return self.about(name, repository, rest, asked)

    def about(self, name: str, repository: Repository, rest: list[str], asked: Asked) -> Answer:
        what, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        oid = repository.refs.get(revision, revision)
        if oid not in repository.commits:
            return 404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"}
        files = repository.commits[oid]
        if what == "revision":
            siblings = [{"rfilename": file} for file in files]
            return 200, {"id": name, "sha": oid, "private": repository.private, "siblings": siblings}
        if what == "tree":
            return 200, [entry(file, data) for file, data in files.items()]
        if what == "preupload":
            return preupload(files, asked.body["files"])
        if what == "commit":
            return self.commit(name, repository, [json.loads(line) for line in asked.data.splitlines()])
        return self.resolved(files, "/".join(rest[2:]), oid)

    def created(self, wanted: dict[str, Any]) -> Answer:
        name = f"{wanted['organization']}/{wanted['name']}"
        known = name in self.repositories
        if not known:
            self.repositories[name] = Repository(wanted.get("visibility") == "private")
        return (409 if known else 200), {"url": f"{self.url}/{name}"}

    def batch(self, objects: list[dict[str, Any]]) -> Answer:
        made = [{**one, "actions": {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}}} for one in objects]
        return 200, {"transfer": "basic", "objects": made}

    def stored(self, oid: str, asked: Asked) -> Answer:
        if asked.method == "PUT":
            assert hashlib.sha256(asked.data).hexdigest() == oid
            self.large[oid] = asked.data
            return 200, {}
        assert "authorization" not in asked.headers  # the storage is another host: no token for it
        return 200, self.large[oid], {"ETag": f'"{oid}"'}

    def commit(self, name: str, repository: Repository, lines: list[dict[str, Any]]) -> Answer:
        files = dict(repository.files)
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        oid = repository.commit(files)
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{oid}", "commitOid": oid, "success": True}

    def resolved(self, files: dict[str, bytes], file: str, oid: str) -> Answer:
        if file not in files:
            return 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"}
        data, about = files[file], {"X-Repo-Commit": oid}
        if file.endswith(".safetensors"):
            sha = hashlib.sha256(data).hexdigest()
            self.large[sha] = data
            about |= {"X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(data))}
            elsewhere = self.url.replace("127.0.0.1", "localhost")  # another host, as the hub's storage is
            return 302, b"", {**about, "Location": f"{elsewhere}/lfs/{sha}"}
        return 200, data, {**about, "ETag": f'"{git_oid(data)}"'}


def entry(file: str, data: bytes) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "file", "path": file, "size": len(data), "oid": git_oid(data)}
    if file.endswith(".safetensors"):
        made["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return made


def validated(content: str) -> Answer:
    try:
        index = yaml.safe_load(content.split("---\n")[1]).get("model-index", [])
        bad = [r for one in index for r in one["results"] if not {"task", "dataset", "metrics"} <= set(r)]
    except (yaml.YAMLError, AttributeError, KeyError) as error:
        bad = [str(error)]
    return (400 if bad else 200), {"errors": [{"message": str(one)} for one in bad], "warnings": []}


def preupload(there: dict[str, bytes], files: list[dict[str, Any]]) -> Answer:
    made = [
        {
            "path": file["path"],
            "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
            "shouldIgnore": False,
            "oid": git_oid(there[file["path"]]) if file["path"] in there else None,
        }
        for file in files
    ]
    return 200, {"files": made}


def git_oid(data: bytes) -> str:
    """Git's hash of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
