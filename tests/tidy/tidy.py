#!/usr/bin/env python3
"""tidy.py: rules of the house that a compiler does not check. Reads the tree and prints one line per fault; never
changes a file (but for --write-symbols, which rewrites symbols.txt from pg.h).

Usage: tidy.py [--root DIR] [--library LIBMOONCAKE_PG] [--nm NM] [--write-symbols]
"""
import argparse
import os
import re
import subprocess
import sys

MAX_LINES = 600
MAX_COLUMNS = 120
SIZED_FOLDERS = ("src/", "include/", "python/")
BANNED = ("strcpy", "strcat", "sprintf", "vsprintf", "strtok", "atoi", "gets")
COMMENT_STARTS = {
    ".c": ("/*", "//"), ".h": ("/*", "//"), ".def": ("/*", "//"), ".cpp": ("/*", "//"), ".hpp": ("/*", "//"),
    ".proto": ("//", "/*"), ".py": ("#", '"""', "'''"), ".pyi": ("#", '"""', "'''"), ".sh": ("#",),
}
# Written in pieces, so that this file is no fault of its own.
MARKS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")
PLACES = (".." + "/shared", "/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/")
MAY_NOT_INCLUDE = {
    "src/common/": ("agent", "coordinator", "rpc", "dataplane", "api"),
    "src/coordinator/": ("agent", "dataplane", "api"),
    "src/agent/": ("coordinator", "dataplane", "api"),
    "src/rpc/": ("agent", "coordinator", "dataplane", "api"),
    "src/dataplane/": ("agent", "coordinator", "rpc", "api"),
}
CORE = re.compile(r"src/(coordinator/coord_(?!host)|agent/agent_(?!host))\w*\.c$")
SKIPPED_FOLDERS = {".git", ".venv", "run", "__pycache__", "build"}


def list_files(root):
    """Files that belong to the project: tracked ones and new ones that are not ignored; without git, a walk."""
    if os.path.isdir(os.path.join(root, ".git")):
        done = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True)
        if done.returncode == 0:
            names = sorted(set(done.stdout.decode().split("\0")) - {""})
            return [name for name in names if os.path.isfile(os.path.join(root, name))]
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith("build-")]
        found += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    return sorted(found)


def read_text(root, name):
    with open(os.path.join(root, name), "rb") as f:
        data = f.read()
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def code_only(text):
    """C text without comments and with empty strings; line numbers stay."""
    return TOKEN.sub(lambda m: '""' if m.group()[0] == '"' else "\n" * m.group().count("\n") or " ", text)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def check_start(name, text, faults):
    starts = COMMENT_STARTS.get(os.path.splitext(name)[1])
    if starts is None or (name.endswith("__init__.py") and not text):
        return
    if text.startswith("#!"):
        text = text.split("\n", 1)[-1]
    if not text.lstrip("\n").startswith(starts):
        faults.append(f"{name}:1: does not start with a comment: say what the file is for and what it must never do")


def check_size(name, text, faults):
    if not name.startswith(SIZED_FOLDERS) or os.path.splitext(name)[1] not in COMMENT_STARTS:
        return
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        faults.append(f"{name}: {len(lines)} lines, more than {MAX_LINES}: split it")
    wide = [number for number, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS]
    if wide:
        more = f" (and {len(wide) - 1} more lines)" if len(wide) > 1 else ""
        faults.append(f"{name}:{wide[0]}: {len(lines[wide[0] - 1])} columns, more than {MAX_COLUMNS}{more}: wrap it")


def check_code(name, text, faults):
    if not name.startswith("src/") or not name.endswith((".c", ".h", ".cpp", ".hpp")):
        return
    code = code_only(text)
    for m in re.finditer(r"\b(" + "|".join(BANNED) + r")\s*\(", code):
        where = f"{name}:{line_of(code, m.start())}"
        faults.append(f"{where}: {m.group(1)} is banned: use a function that takes a size or reports errors")
    if CORE.search(name):
        for m in re.finditer(r"\bdefault\s*:", code):
            where = f"{name}:{line_of(code, m.start())}"
            faults.append(f"{where}: default in a switch of a step machine: list every value")
    for prefix, layers in MAY_NOT_INCLUDE.items():
        if not name.startswith(prefix):
            continue
        for m in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*["<](\w+)/', text, re.M):
            if m.group(1) in layers:
                faults.append(f"{name}:{line_of(text, m.start())}: {prefix} may not include {m.group(1)}/")


def check_words(name, text, faults):
    for m in re.finditer(r"\b(" + "|".join(MARKS) + r")\b", text):
        where = f"{name}:{line_of(text, m.start())}"
        faults.append(f"{where}: {m.group(1)}: finish it, or say in a sentence what is not supported")
    for place in PLACES:
        at = text.find(place)
        if at >= 0:
            where = f"{name}:{line_of(text, at)}"
            faults.append(f"{where}: {place} is a place on one machine: use a path relative to the project")


def header_symbols(root):
    text = read_text(root, "include/mooncake/pg.h") or ""
    return sorted(set(re.findall(r"\bMCPG_API\b[^;{]*?\b(mcpg_\w+)\s*\(", code_only(text))))


def library_symbols(nm, library):
    done = subprocess.run([nm, "-D", "--defined-only", "--format=posix", library], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    rows = [line.split() for line in done.stdout.splitlines()]
    return sorted({row[0].split("@")[0] for row in rows if len(row) >= 2 and row[1] != "A"})


def compare(what, found, wanted, faults):
    for name in sorted(set(found) - set(wanted)):
        faults.append(f"{what}: {name} is there, but tests/tidy/symbols.txt does not have it")
    for name in sorted(set(wanted) - set(found)):
        faults.append(f"{what}: {name} of tests/tidy/symbols.txt is missing")


def check_symbols(root, library, nm, faults):
    path = "tests/tidy/symbols.txt"
    text = read_text(root, path) if os.path.isfile(os.path.join(root, path)) else None
    if text is None:
        faults.append("tests/tidy/symbols.txt is missing: run tidy.py --write-symbols")
        return
    wanted = [line for line in text.split("\n") if line and not line.startswith("#")]
    compare("include/mooncake/pg.h", header_symbols(root), wanted, faults)
    if library is not None and os.path.exists(library):
        exported = library_symbols(nm, library)
        if exported is None:
            faults.append(f"{library}: {nm} cannot read it")
        else:
            compare(os.path.basename(library), exported, wanted, faults)


def check_house(root, files, texts, faults):
    if "LICENSE" not in files:
        faults.append("LICENSE is missing")
    if "CHANGELOG.md" not in files and "CHANGELOG" not in files:
        faults.append("CHANGELOG.md is missing")
    protocol = texts.get("docs/protocol.md") or ""
    section = protocol.partition("## Invariants")[2].partition("\n## ")[0]
    named = sorted(set(re.findall(r"\bI([0-9]+)\b", section)), key=int)
    if not named:
        faults.append("docs/protocol.md: no invariants (I1, I2, ...) under a heading '## Invariants'")
    source = "\n".join(t for n, t in texts.items() if n.startswith("src/") and t)
    for number in named:
        if not re.search(rf"\bI{number}\b", source):
            faults.append(f"docs/protocol.md: invariant I{number} is named nowhere in src/: "
                          "the code that keeps or checks it must say so")


def check_tree(root, library=None, nm="nm"):
    files = list_files(root)
    texts = {name: read_text(root, name) for name in files}
    faults = []
    for name, text in texts.items():
        if text is None:
            continue
        check_start(name, text, faults)
        check_size(name, text, faults)
        check_code(name, text, faults)
        check_words(name, text, faults)
    check_symbols(root, library, nm, faults)
    check_house(root, files, texts, faults)
    return faults


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description="checks the rules of the house")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(here)))
    parser.add_argument("--library", help="libmooncake_pg.so; its exported symbols are compared when it exists")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--write-symbols", action="store_true", help="rewrite tests/tidy/symbols.txt from pg.h")
    args = parser.parse_args()
    if args.write_symbols:
        with open(os.path.join(args.root, "tests/tidy/symbols.txt"), "w", encoding="utf-8") as f:
            f.write("# The exported functions, from include/mooncake/pg.h by tidy.py --write-symbols. "
                    "A change here is a change of ABI.\n")
            f.writelines(name + "\n" for name in header_symbols(args.root))
    faults = check_tree(args.root, args.library, args.nm)
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else "tidy: no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
