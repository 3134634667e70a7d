#!/usr/bin/env python3
"""Writes bench/results/README.md from bench/results/index.json, where every headline row holds its goals, its newest values, the
commit they were measured on, and a digest of the sources it depends on.

Usage: tools/bench_index.py                write the page
       tools/bench_index.py --check        exit status 1 where the page is not what the rows generate
       tools/bench_index.py --take FILE    put what `kvscope-bench headline` wrote (bench/results/NAME.json) into the rows
       tools/bench_index.py --fill         compute the digests of rows that lack one, at their commits

A row whose sources differ today is marked *of an older build*; that asks for no new measurement. Comments and layout do not
count. --check needs no history; it says which rows it cannot judge because this checkout lacks their sources. --take and --fill
read the sources of the measured commit from git, under the names that they have today.

A row: id, what, better ("more" or "less"), values, and for each value what it is `of`, `value` (a number, the least and the
most of several, or why there is none), `unit`, `goal` and `aim` (the further one). Where a goal is no number it is the row's, as text. `sources` are
files, folders ("kernels/cuda/linear/": the files in it, not those in its folders) and groups of index.json ("@step").
"""
import argparse
import functools
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tokenize

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CODE = (".h", ".cpp", ".cu", ".cuh")
SOURCES = CODE + (".py", ".sh", ".sql", ".json")
PART = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<raw>(?:u8|[uUL])?R"(?P<end>[^()\\\s]{0,16})\(.*?\)(?P=end)")
      | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
      | (?P<number>\d(?:'?[\w.])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<line>\n)
      | (?P<space>[^\S\n]+)
      | (?P<other>.)""",
    re.DOTALL | re.VERBOSE)


def code_of(text):
    """C++ or CUDA without comments and layout. Texts that compile to different programs stay different."""
    out, gap, in_directive, line_begins = [], False, False, True
    for part in PART.finditer(text.replace("\r\n", "\n").replace("\\\n", " ")):
        kind, word = part.lastgroup, part[0]
        if kind == "end":
            kind = "raw"
        if kind == "line":
            if in_directive:
                out.append("\n")
            gap, in_directive, line_begins = True, False, True
        elif kind in ("comment", "space"):
            gap = True
        else:
            if line_begins and word == "#":
                in_directive = True
                out.append("\n")
            last = out[-1][-1] if out else "\n"
            both_words = (last.isalnum() or last == "_") and (word[0].isalnum() or word[0] == "_")
            if kind == "string" and out and word[0] == '"' and len(out[-1]) > 1 and out[-1][0] == '"':
                out[-1] = out[-1][:-1] + word[1:]  # two literals side by side are one, wherever the line was broken
            else:
                if gap and (both_words or (last == word[0] and last in "+-&|<>=:")):
                    out.append(" ")
                out.append(word)
            gap, line_begins = False, False
    return "".join(out)


def python_of(text):
    left_out = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(f"{t.type} {t.string.strip() if t.type == tokenize.INDENT else t.string}" for t in tokens if t.type not in left_out)


def counted(path, content):
    """The part of a file that a digest is made of."""
    text = content.decode("utf-8", errors="replace")
    if path.endswith(CODE):
        return code_of(text)
    if path.endswith(".py"):
        return python_of(text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def git(root, *words):
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, check=False)
    if done.returncode != 0:
        raise OSError(f"git {' '.join(words[:2])}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


class Tree:
    """The sources as they lie in the checkout."""

    def __init__(self, root):
        self.root, self.kept = root, {}
        try:  # the files that git knows, and those that a sparse checkout leaves out
            lines = git(root, "ls-files", "-t", "-z").decode().split("\0")
            if os.path.realpath(git(root, "rev-parse", "--show-toplevel").decode().strip()) != os.path.realpath(root):
                raise OSError("another repository is around this folder")
            self.known = {line[2:] for line in lines if line}
            self.left_out = {line[2:] for line in lines if line.startswith("S ")}
        except OSError:
            self.known, self.left_out = None, set()

    def names(self, folder):
        place = os.path.join(self.root, folder)
        return [folder + name for name in os.listdir(place) if name.endswith(SOURCES)] if os.path.isdir(place) else []

    def lacks(self, source):
        """Whether this checkout leaves the source out, although the project has it."""
        if any(name == source or (source.endswith("/") and os.path.dirname(name) + "/" == source) for name in self.left_out):
            return True
        return self.known is None and not os.path.exists(os.path.join(self.root, source))

    def text(self, path):
        if path not in self.kept:
            place = os.path.join(self.root, path)
            content = None
            if os.path.isfile(place):
                with open(place, "rb") as file:
                    content = counted(path, file.read())
            self.kept[path] = content
        return self.kept[path]


class Commit:
    """The sources of a commit, under the names that they have at HEAD."""

    def __init__(self, root, commit):
        self.root, self.commit, self.kept = root, commit, {}
        self.old = {name: name for name in git(root, "ls-tree", "-r", "--name-only", commit).decode().splitlines()}
        renames = git(root, "-c", "diff.renameLimit=0", "diff", "--find-renames=40%", "--diff-filter=R", "--name-status", commit, "HEAD")
        for line in renames.decode().splitlines():
            _, before, after = line.split("\t")
            self.old.pop(before, None)
            self.old[after] = before

    def names(self, folder):
        return [name for name in self.old if os.path.dirname(name) + "/" == folder and name.endswith(SOURCES)]

    def text(self, path):
        if path not in self.old:
            return None
        if path not in self.kept:
            self.kept[path] = counted(path, git(self.root, "show", f"{self.commit}:{self.old[path]}"))
        return self.kept[path]


def sources_of(index, row):
    for source in row["sources"]:
        if source.startswith("@"):
            yield from index["groups"][source[1:]]
        else:
            yield source


def digest(index, row, tree):
    files = set()
    for source in sources_of(index, row):
        files.update(tree.names(source) if source.endswith("/") else [source])
    total = hashlib.sha256()
    for path in sorted(files):
        text = tree.text(path)
        total.update(f"{path}\0{'absent' if text is None else hashlib.sha256(text.encode()).hexdigest()}\0".encode())
    return total.hexdigest()[:16]


def is_older(index, row, tree):
    """Whether the row's sources are others today; None where this checkout lacks some of them."""
    if any(tree.lacks(source) for source in sources_of(index, row)):
        return None
    return digest(index, row, tree) != row["digest"]


def number(value):
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def in_words(value):
    if isinstance(value["value"], str):
        return value["value"] + (f" ({value['of']})" if value.get("of") else "")
    ends = value["value"] if isinstance(value["value"], list) else [value["value"]]
    unit = value.get("unit", "")
    texts = list(dict.fromkeys(number(end) for end in ends))
    text = " to ".join(texts) + (unit if unit in ("x", "%", "") else " " + unit)
    return text + (f" ({value['of']})" if value.get("of") else "")


def is_missed(row, value):
    if value.get("value") is None or isinstance(value["value"], str) or "goal" not in value:
        return False
    ends = value["value"] if isinstance(value["value"], list) else [value["value"]]
    return min(ends) < value["goal"] if value.get("better", row.get("better")) == "more" else max(ends) > value["goal"]


def goals(row):
    if "goal" in row:
        return row["goal"]
    groups = []
    for value in row["values"]:
        if "goal" not in value:
            continue
        better, unit = value.get("better", row.get("better")), value.get("unit", "")
        if not groups or groups[-1][0] != (better, unit):
            groups.append(((better, unit), [], []))
        if not groups[-1][1] or (value["goal"], value.get("aim")) != (groups[-1][1][-1], groups[-1][2][-1]):
            groups[-1][1].append(value["goal"])
            groups[-1][2].append(value.get("aim"))
    texts = []
    for (better, unit), wanted, aims in groups:
        after = unit if unit in ("x", "%", "") else " " + unit
        text = ("at least " if better == "more" else "at most ") + ", ".join(number(goal) for goal in wanted) + after
        if any(aim is not None for aim in aims):
            text += " (" + ", ".join("-" if aim is None else number(aim) for aim in aims) + ")"
        texts.append(text)
    return "; ".join(texts)


def newest(row):
    texts = [("**missed**: " if is_missed(row, value) else "") + in_words(value) for value in row["values"] if value["value"] is not None]
    absent = [value.get("of", "") for value in row["values"] if value["value"] is None]
    if absent:
        texts.append("**not measured**" + (f" ({', '.join(absent)})" if texts else ""))
    return "; ".join(texts + ([row["note"]] if row.get("note") else []))


def line_of(row, older):
    measured = "-"
    if "commit" in row:
        measured = f"{row['date']}, {row['machine']}, " + (f"*of an older build ({row['commit']})*" if older else row["commit"])
    sheets = ", ".join(f"[{re.sub(r'^[-0-9]*(h[12]00-)?|[.](md|json)$', '', name)}]({name})" for name in row.get("sheets", []))
    return f"| {row['what']} | {goals(row)} | {newest(row)} | {measured} | {sheets or '-'} |"


def page(index, tree, present=""):
    """The page, and the ids of the rows that cannot be judged here: those keep the mark that they have."""
    lines, unknown = [], []
    there = set(present.splitlines())
    for row in index["rows"]:
        older = is_older(index, row, tree) if "commit" in row else False
        if older is None:
            unknown.append(row["id"])
            older = line_of(row, False) not in there
        lines.append(line_of(row, older))
    idle = [machine for machine in index["machines"] if not any(row.get("machine", "").startswith(machine) for row in index["rows"])]
    end = f"\nNo row has been measured on: {', '.join(idle)}.\n" if idle else ""
    return "\n".join([index["introduction"].rstrip(), "", "| what | goal (further aim) | newest | measured | sheet |",
                      "| --- | --- | --- | --- | --- |", *lines, end]), unknown  # fmt: skip


def take(index, path, tree_at):
    """Puts the values of a headline file into the rows. Where the machine is another, a row stands beside the one that is there."""
    with open(path, encoding="utf-8") as file:
        headline = json.load(file)
    commit, machine = headline["commit"], headline["machine"]
    if headline.get("format") != 1 or not re.fullmatch("[0-9a-f]{8,40}", commit):
        raise ValueError(f"{path} is of no commit: build from one that has all changes")
    taken = []
    for name, part in headline["parts"].items():
        for id_, values in part["rows"].items():
            like = [row for row in index["rows"] if row["id"] == id_]
            if not like:
                raise ValueError(f"part {name}: index.json has no row {id_}")
            row = next((row for row in like if row.get("machine", machine) == machine), None)
            if row is None:
                row = json.loads(json.dumps(like[-1]))
                index["rows"].insert(index["rows"].index(like[-1]) + 1, row)
            names = [value.get("of", "") for value in row["values"]]
            if sorted(names) != sorted(values):
                raise ValueError(f"row {id_} has values of {', '.join(names)}, and the file those of {', '.join(values)}")
            for value in row["values"]:
                measured = values[value.get("of", "")]  # a number of each run, or a text that says why there is none
                ends = measured if isinstance(measured, str) else [float(f"{end(measured):.6g}") for end in (min, max)]
                value["value"] = ends
            row.pop("note", None)  # the note is about the values measured before
            row.update(machine=machine, date=part["date"], commit=commit[:8], sheets=[os.path.basename(path)])
            row["digest"] = digest(index, row, tree_at(commit))
            taken.append(id_)
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--take", metavar="FILE")
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--root", default=ROOT, help="the source tree; without it the one this program lies in")
    given = parser.parse_args()
    folder = os.path.join(given.root, "bench", "results")
    index_path, page_path = os.path.join(folder, "index.json"), os.path.join(folder, "README.md")
    with open(index_path, encoding="utf-8") as file:
        index = json.load(file)
    present = ""
    if os.path.exists(page_path):
        with open(page_path, encoding="utf-8") as file:
            present = file.read()
    tree_at = functools.lru_cache(lambda commit: Commit(given.root, commit))

    if given.take or given.fill:
        if given.take:
            if os.path.realpath(os.path.dirname(os.path.abspath(given.take))) != os.path.realpath(folder):
                raise ValueError(f"{given.take} does not lie in bench/results, where measurements are kept")
            print("taken: " + ", ".join(take(index, given.take, tree_at)))
        for row in index["rows"]:
            if "commit" in row and "digest" not in row:
                try:
                    row["digest"] = digest(index, row, tree_at(row["commit"]))
                except OSError as error:
                    row["digest"] = "unknown"  # differs from every digest, so that the row is one of an older build
                    print(f"{row['id']}: {error}")
        with open(index_path, "w", encoding="utf-8") as file:
            file.write(json.dumps(index, indent=1, ensure_ascii=False) + "\n")
    text, unknown = page(index, Tree(given.root), present)
    if unknown:
        print("not judged, for their sources are not in this checkout: " + ", ".join(unknown))
    if not given.check:
        with open(page_path, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    if text == present:
        return 0
    wanted, found = text.splitlines(), present.splitlines()
    for line in [line for line in wanted if line not in found][:3]:
        print("bench/results/README.md lacks: " + line)
    for line in [line for line in found if line not in wanted][:3]:
        print("index.json does not generate:  " + line)
    print("run tools/bench_index.py")
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"bench_index.py: {error}")
