"""Rename identifiers by a table that is kept. `old_names.py` translates old branches, notes and stack traces with it.

    python tools/rename.py apply tools/renames.tsv      apply the rows that are not applied yet
    python tools/rename.py check tools/renames.tsv      check that every old name exists and every new name is free

A row of the table is `where<TAB>old<TAB>new`. `where` is a file below `src/retrysafe`; `old` is a name in it, with the
class in front of a method or attribute (`Ear.deaf`). A row without an `old` moves the file itself.

`apply` asks the language server of basedpyright for all references of a name, so it has to be installed:
`pip install basedpyright`. All rows are looked up in the unchanged tree and then written together, so that two rows may
swap names. In comments, docstrings and pages only names between backticks are changed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/retrysafe")
FOLDERS = ("src", "tests", "tools", "examples", "benchmarks")
TABLE = Path(__file__).with_name("renames.tsv")


class Row(NamedTuple):
    """One line of the table."""

    where: str
    old: str
    new: str


class Edit(NamedTuple):
    """One identifier to replace: zero-based line and columns."""

    line: int
    start: int
    end: int
    new: str


def read_table(text: str) -> list[Row]:
    """Read the rows. Empty lines and lines that begin with # are comments."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split("\t")
        if len(parts) != 3:
            raise SystemExit(f"line {number} of the table is {line!r}: write `where<TAB>old<TAB>new`")
        rows.append(Row(*(part.strip() for part in parts)))
    return rows


def find_definition(source: str, name: str) -> tuple[int, int] | None:  # noqa: PLR0912  one case for each way to define
    """The zero-based line and column at which a (dotted) name is defined."""
    *owners, last = name.split(".")
    body: list[ast.stmt] = ast.parse(source).body
    for owner in owners:
        found = next(
            (
                node
                for node in _walk(body)
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == owner
            ),
            None,
        )
        if found is None:
            return None
        body = found.body
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = found.args
            for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
                if each.arg == last:
                    return each.lineno - 1, each.col_offset
    lines = source.splitlines()
    for node in _walk(body):
        match node:
            case (
                ast.FunctionDef(name=found_name) | ast.AsyncFunctionDef(name=found_name) | ast.ClassDef(name=found_name)
            ) if found_name == last:
                column = re.compile(rf"\b{re.escape(last)}\b").search(lines[node.lineno - 1], node.col_offset)
                return (node.lineno - 1, column.start()) if column else None
            case ast.AnnAssign(target=ast.Name(id=found_name) as target) if found_name == last:
                return target.lineno - 1, target.col_offset
            case ast.Assign(targets=targets):
                for target in targets:
                    for leaf in ast.walk(target):
                        if isinstance(leaf, ast.Name) and leaf.id == last:
                            return leaf.lineno - 1, leaf.col_offset
    for statement in body:  # an attribute that a method sets
        for leaf in ast.walk(statement):
            if isinstance(leaf, ast.Attribute) and leaf.attr == last and isinstance(leaf.ctx, ast.Store):
                assert leaf.end_col_offset is not None
                assert leaf.end_lineno is not None
                return leaf.end_lineno - 1, leaf.end_col_offset - len(last)
    return None


def _walk(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a scope, also those inside `if` and `try`, but not those of inner functions and classes."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _walk(node.body)
            yield from _walk(getattr(node, "orelse", []))
            yield from _walk(getattr(node, "finalbody", []))
            for handler in getattr(node, "handlers", []):
                yield from _walk(handler.body)


class LanguageServer:
    """A client of the language server. It sends one request at a time."""

    def __init__(self, command: str, root: Path) -> None:
        self._process = subprocess.Popen([command, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0
        self._opened: set[Path] = set()
        capabilities = {"workspace": {"configuration": True, "workspaceEdit": {"documentChanges": True}}}
        self.request(
            "initialize",
            processId=None,
            rootUri=root.as_uri(),
            workspaceFolders=[{"uri": root.as_uri(), "name": "tree"}],
            capabilities=capabilities,
        )
        self.notify("initialized")
        for folder in FOLDERS:  # the server searches only files that were opened
            for file in sorted((root / folder).rglob("*.py")):
                self.open(file)

    def request(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": parameters})
        while True:
            message = self._receive()
            if "method" in message and "id" in message:  # a request for settings: null means its defaults
                items = message["params"].get("items", []) if message.get("params") else []
                self._send({"id": message["id"], "result": [None for _ in items]})
            elif message.get("id") == self._number and "method" not in message:
                if "error" in message:
                    raise SystemExit(f"{method} was refused: {message['error']['message']}")
                return message["result"]

    def notify(self, method: str, **parameters: Any) -> None:
        self._send({"method": method, "params": parameters})

    def open(self, file: Path) -> None:
        if file not in self._opened:
            self._opened.add(file)
            document = {"uri": file.as_uri(), "languageId": "python", "version": 1, "text": file.read_text()}
            self.notify("textDocument/didOpen", textDocument=document)

    def rename(self, file: Path, position: tuple[int, int], new: str) -> dict[Path, list[Edit]]:
        self.open(file)
        where = {"line": position[0], "character": position[1]}
        answer = self.request("textDocument/rename", textDocument={"uri": file.as_uri()}, position=where, newName=new)
        edits: dict[Path, list[Edit]] = defaultdict(list)
        for document in (answer or {}).get("documentChanges", []):
            if "textDocument" not in document:
                continue
            path = Path(unquote(urlparse(document["textDocument"]["uri"]).path))
            for each in document["edits"]:
                start, end = each["range"]["start"], each["range"]["end"]
                edits[path].append(Edit(start["line"], start["character"], end["character"], each["newText"]))
        return edits

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        size = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        if not size:
            raise SystemExit("the language server ended")
        answer: dict[str, Any] = json.loads(self._process.stdout.read(size))
        return answer


def replace(source: str, edits: Iterable[Edit]) -> str:
    """Apply the edits. They do not overlap; the last ones are applied first, so that the columns of the others stay
    valid."""
    lines = source.splitlines(keepends=True)
    for edit in sorted(set(edits), reverse=True):
        line = lines[edit.line]
        lines[edit.line] = line[: edit.start] + edit.new + line[edit.end :]
    return "".join(lines)


def name_module(file: Path) -> str:
    return ".".join(file.with_suffix("").relative_to(PACKAGE.parent).parts)


def find_target(row: Row) -> Path:
    """The new path of a file. A bare name stays in its folder; a path is relative to the package."""
    return PACKAGE / row.new if "/" in row.new else (PACKAGE / row.where).with_name(row.new)


def rename_imports(source: str, old: str, new: str) -> str:
    """Rename a module in dotted paths, and where it was imported by its last part alone."""
    source = re.sub(rf"\b{re.escape(old)}\b(?!\.py)", new, source)
    (old_package, _, old_last), (new_package, _, new_last) = old.rpartition("."), new.rpartition(".")
    edits = []
    tree = ast.parse(source)
    lines = source.splitlines()
    renamed = False

    def edit_at(node: ast.alias | ast.Name) -> Edit:
        start = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())  # `ast` counts columns in bytes
        return Edit(node.lineno - 1, start, start + len(old_last), new_last)

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == old_package and old_package == new_package:
            for alias in node.names:
                if alias.name == old_last:
                    edits.append(edit_at(alias))
                    renamed = renamed or alias.asname is None
    if renamed:
        edits += [edit_at(node) for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == old_last]
    return replace(source, edits)


def list_texts() -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if name.endswith((".py", ".md", ".toml", ".sql", ".lua", ".txt", "Makefile")) and "renames" not in name:
            yield ROOT / name


def move_files(rows: Iterable[Row]) -> None:
    moves = [
        (PACKAGE / row.where, find_target(row)) for row in rows if not row.old and (ROOT / PACKAGE / row.where).exists()
    ]
    for old, new in moves:
        subprocess.run(["git", "mv", str(old), str(new)], cwd=ROOT, check=True)
    for path in list_texts():
        text = before = path.read_text()
        for old, new in moves:
            if old.stem not in text:
                continue
            if path.suffix == ".py":
                text = rename_imports(text, name_module(old), name_module(new))
            else:
                text = re.sub(rf"\b{re.escape(name_module(old))}\b(?!\.py)", name_module(new), text)
            for short in (old, old.relative_to(PACKAGE)):
                text = re.sub(
                    rf"(?<![\w/]){re.escape(str(short))}\b",
                    str(new if short == old else new.relative_to(PACKAGE)),
                    text,
                )
        if text != before:
            path.write_text(text)


def rename_quoted(rows: Iterable[Row]) -> None:
    """Rename names between backticks in comments and pages, if the old name has one meaning and no definition any
    more."""
    meanings: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.old:
            meanings[row.old.rpartition(".")[2]].add(row.new)
    defined: set[str] = set()
    for path in list_texts():
        if path.suffix == ".py":
            defined.update(
                *re.findall(r"\b(?:def|class) (\w+)|^\s*(?:self\.)?(\w+)\s*[:=]", path.read_text(), re.MULTILINE)
            )
    known = {old: next(iter(new)) for old, new in meanings.items() if len(new) == 1 and old not in defined}
    for path in list_texts():
        text = path.read_text()
        new_text = re.sub(r"`(\w+)(\(\))?`", lambda it: f"`{known.get(it[1], it[1])}{it[2] or ''}`", text)
        if new_text != text:
            path.write_text(new_text)


def apply_rows(rows: Iterable[Row], command: str) -> int:
    """Apply the rows. Returns the number of rows whose old name was not found."""
    rows = list(rows)
    missing = rename_identifiers([row for row in rows if row.old], command)
    move_files(rows)
    rename_quoted(rows)
    return missing


def rename_identifiers(rows: Iterable[Row], command: str) -> int:
    server = LanguageServer(command, ROOT)
    gathered: dict[Path, list[Edit]] = defaultdict(list)
    missing = 0
    for row in rows:
        file = ROOT / PACKAGE / row.where
        position = find_definition(file.read_text(), row.old) if file.exists() else None
        if position is None:
            missing += 1
            print(f"not found: {row.where} {row.old}", file=sys.stderr)
            continue
        edits = server.rename(file, position, row.new)
        print(f"{row.where} {row.old} -> {row.new}: {sum(map(len, edits.values()))} in {len(edits)} files", flush=True)
        for path, each in edits.items():
            gathered[path].extend(each)
    server.close()
    for path, all_edits in gathered.items():
        path.write_text(replace(path.read_text(), all_edits))
    return missing


def check_rows(rows: Iterable[Row]) -> list[str]:
    """The problems of a table: a name that does not exist, one that is taken, one that is renamed twice."""
    problems = []
    rows = list(rows)
    leaving = {(row.where, row.old) for row in rows}
    coming: set[tuple[str, str]] = set()
    for row in rows:
        file = ROOT / PACKAGE / row.where
        if not file.exists():
            problems.append(f"{row.where}: no such file below {PACKAGE}")
            continue
        if not row.old:
            if (ROOT / find_target(row)).exists() and (str(find_target(row).relative_to(PACKAGE)), "") not in leaving:
                problems.append(f"{row.where}: {row.new} exists already")
            continue
        source = file.read_text()
        owner = row.old.rpartition(".")[0]
        qualified = f"{owner}.{row.new}" if owner else row.new
        if find_definition(source, row.old) is None:
            problems.append(f"{row.where} {row.old}: not defined there")
        elif not row.new.isidentifier():
            problems.append(f"{row.where} {row.old}: {row.new!r} is not an identifier")
        elif find_definition(source, qualified) is not None and (row.where, qualified) not in leaving:
            problems.append(f"{row.where} {row.old}: {qualified} is defined there already")
        elif (row.where, qualified) in coming:
            problems.append(f"{row.where} {row.old}: another row makes {qualified} too")
        coming.add((row.where, qualified))
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["apply", "check"])
    parser.add_argument("table", nargs="?", type=Path, default=TABLE)
    parser.add_argument("--server", default="basedpyright-langserver")
    args = parser.parse_args()
    rows = read_table(args.table.read_text())
    if args.verb == "check":
        problems = check_rows(rows)
        print("\n".join(problems) or f"{len(rows)} rows, all of them can be applied")
        return int(bool(problems))
    return int(bool(apply_rows(rows, args.server)))


if __name__ == "__main__":
    sys.exit(main())
