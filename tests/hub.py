"""A stand-in for the Hugging Face hub on the loopback interface, so that the real client runs without a network.

It serves one data set of Parquet files in the layout of wmt/wmt14: a folder a subset, a file a split, and a card that
lists them. It answers only what the `datasets` client asks for.
"""

import hashlib
import http.server
import io
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow
import pyarrow.parquet

COMMIT = "b199e406369ec1b7634206d3ded5ba45de2fe696"
Row = Mapping[str, str | None]
Subsets = Mapping[str, Mapping[str, Sequence[Row]]]


class Hub:
    """Serves a data set while it is entered: `with Hub({"de-en": {"train": [{"de": "Hund", "en": "dog"}]}}) as hub`.

    The languages of a subset are the parts of its name. `failures` requests for data files get a 503 before the
    first one is answered; `script` serves the data set as a Python script, `gated` refuses it until access is granted.
    `requests` holds "METHOD path" of everything asked so far.
    """

    def __init__(
        self,
        subsets: Subsets,
        *,
        name: str = "wmt/wmt14",
        failures: int = 0,
        script: bool = False,
        gated: bool = False,
    ) -> None:
        self.name = name
        self.failures = failures
        self.gated = gated
        self.requests: list[str] = []
        self.files = {"README.md": _card(subsets)}
        for subset, splits in subsets.items():
            for split, rows in splits.items():
                self.files[f"{subset}/{split}-00000-of-00001.parquet"] = _parquet(subset.split("-"), rows)
        if script:
            self.files[f"{name.split('/')[-1]}.py"] = b"raise SystemExit('a script of the data set was run')\n"
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        """The address to give as HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """This process' environment, with the client pointed here and its cache below `home`."""
        return client_environment(home, HF_ENDPOINT=self.endpoint, **more)

    def fails_now(self) -> bool:
        """Whether this request for data is one of those that fail; counts down."""
        with self._lock:
            self.failures -= 1
            return self.failures >= 0

    def tree(self, folder: str) -> list[dict[str, Any]]:
        """The files below a folder, in the hub's words, the subsets' folders too when it is the root."""
        rows = [_file(path, content) for path, content in self.files.items() if path.startswith(folder)]
        subsets = {path.split("/")[0] for path in self.files if "/" in path and not folder}
        return rows + [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(subsets)]

    def __enter__(self) -> "Hub":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def client_environment(home: Path, **more: str) -> dict[str, str]:
    """An environment for the client that has nothing of the machine's own settings, cache or network."""
    own = {name: value for name, value in os.environ.items() if not re.match(r"(?i)HF_|HUGGING|.*_proxy$", name)}
    return {**own, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", **more}


def _parquet(languages: Sequence[str], rows: Sequence[Row]) -> bytes:
    kind = pyarrow.struct([(language, pyarrow.string()) for language in sorted(languages)])
    table = pyarrow.table({"translation": pyarrow.array(rows, type=kind)})
    features = {"translation": {"languages": sorted(languages), "_type": "Translation"}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    return stream.getvalue()


def _card(subsets: Subsets) -> bytes:
    """The data set's README: its head says which subsets and splits there are (YAML, for which JSON will do)."""
    information, files = [], []
    for subset, splits in subsets.items():
        kind = {"translation": {"languages": sorted(subset.split("-"))}}
        sizes = [{"name": split, "num_bytes": 1, "num_examples": len(rows)} for split, rows in splits.items()]
        features = [{"name": "translation", "dtype": kind}]
        information.append({"config_name": subset, "features": features, "splits": sizes})
        paths = [{"split": split, "path": f"{subset}/{split}-*"} for split in splits]
        files.append({"config_name": subset, "data_files": paths})
    head = json.dumps({"dataset_info": information, "configs": files})
    return f"---\n{head}\n---\nA stand-in.\n".encode()


def _file(path: str, content: bytes) -> dict[str, Any]:
    # The object's id is any text of 40 hexadecimal digits that changes with the content.
    digest = hashlib.sha256(content).hexdigest()[:40]
    return {"type": "file", "path": path, "size": len(content), "oid": digest}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *values: object) -> None:
        """Keeps quiet: the requests are in `hub.requests`."""

    def do_GET(self) -> None:
        path = self._path()
        api, data = f"/api/datasets/{self.hub.name}", f"/datasets/{self.hub.name}/resolve/"
        if self.hub.gated and path.startswith((api, data)):
            self._answer(403, b'{"error":"gated"}', {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        elif re.fullmatch(re.escape(api) + "(/revision/[^/]+)?", path):
            self._describe(path.removeprefix(api).removeprefix("/revision/"))
        elif found := re.fullmatch(re.escape(api) + "/tree/[^/]+/?(.*)", path):
            self._list(found[1].strip("/"))
        elif found := re.fullmatch(re.escape(data) + "[^/]+/(.+)", path):
            self._send(found[1])
        else:
            self._missing("RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path, body = self._path(), self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not re.fullmatch(f"/api/datasets/{re.escape(self.hub.name)}/paths-info/[^/]+", path):
            return self._missing("RepoNotFound")
        form = json.loads(body) if body[:1] == b"{" else urllib.parse.parse_qs(body.decode())
        return self._answer_json([row for row in self.hub.tree("") if row["path"] in form.get("paths", [])])

    def _path(self) -> str:
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        return path

    def _describe(self, revision: str) -> None:
        if revision not in ("", "main", COMMIT):
            return self._missing("RevisionNotFound")
        information = {"id": self.hub.name, "sha": COMMIT, "private": False, "gated": False, "disabled": False}
        information |= {"tags": [], "downloads": 0, "likes": 0, "siblings": [{"rfilename": f} for f in self.hub.files]}
        return self._answer_json(information)

    def _list(self, folder: str) -> None:
        rows = self.hub.tree(f"{folder}/" if folder else "")
        return self._answer_json(rows) if rows else self._missing("EntryNotFound")

    def _send(self, path: str) -> None:
        content = self.hub.files.get(path)
        if content is None:
            return self._missing("EntryNotFound")
        if path.endswith(".parquet") and self.hub.fails_now():
            return self._answer(503, b'{"error":"busy"}')
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not part:
            return self._answer(200, content, headers)
        first, last = int(part[1]), min(int(part[2] or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return self._answer(206, content[first : last + 1], headers)

    def _missing(self, code: str) -> None:
        self._answer(404, b'{"error":"not found"}', {"X-Error-Code": code, "X-Error-Message": "not found"})

    def _answer_json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
