"""Compiles headers alone, as the first and only include of a file: what a header needs it includes itself.

Usage: headers_alone.py COMPILE_COMMANDS JOBS < names of headers. Each is compiled as a .cpp file of its folder is, or of
the nearest folder that has one. Headers of folders that this build leaves out (CUDA's without a toolkit) are left out.
"""

import concurrent.futures
import json
import os
import shlex
import subprocess
import sys

# Headers for programs of another project: where stubs of its headers stand, and our own folder as such a program sees it.
FOREIGN = {"sdk/trace/kvscope_llama.h": ["tests/sdk/ggml_stub", "sdk/trace"]}


def command_of(entry):
    """The compiler's words without the file, its outputs and the precompiled header."""
    words, out, skip = shlex.split(entry["command"]), [], 0
    for at, word in enumerate(words):
        if skip:
            skip -= 1
        elif word in ("-o", "-MT", "-MF", "-c"):
            skip = 1
        elif word == "-include" and "cmake_pch" in words[at + 1]:
            skip = 1
        elif word not in ("-MD", "-Winvalid-pch") and not (at == 0 and word.endswith("ccache")):
            out.append(word)
    return out


def main():
    root = os.getcwd()
    folders = {}
    for entry in json.load(open(sys.argv[1], encoding="utf-8")):
        name = os.path.relpath(entry["file"], root)
        if name.endswith(".cpp") and not name.startswith(".."):
            folders.setdefault(os.path.dirname(name), entry)

    def check(header):
        folder = os.path.dirname(header)
        while folder and folder not in folders:
            # A header is compiled with the flags of its folder's files. A folder without such files takes those of the folder above.
            folder = os.path.dirname(folder)
        if not folder:
            return header, None, ""
        words = command_of(folders[folder])
        program = f'#include "{header}"\n'
        foreign = [word for place in FOREIGN.get(header, []) for word in ("-I", os.path.join(root, place))]
        run = subprocess.run(words + ["-I", root, *foreign, "-fsyntax-only", "-w", "-x", "c++", "-"], input=program, text=True,
                             capture_output=True, cwd=folders[folder]["directory"], check=False)
        return header, run.returncode, run.stderr

    headers = sys.stdin.read().split()
    # A fault planted to see that the check can fail: a name that no header was included for.
    words = command_of(next(iter(folders.values())))
    planted = subprocess.run(words + ["-fsyntax-only", "-w", "-x", "c++", "-"], input="std::string text;\n", text=True,
                             capture_output=True, check=False)
    if planted.returncode == 0:
        print("a text that names std::string without its header compiles: this check finds nothing")
        return 1
    failed = compiled = 0
    with concurrent.futures.ThreadPoolExecutor(int(sys.argv[2])) as pool:
        for header, status, text in pool.map(check, headers):
            if status is None:
                continue
            compiled += 1
            if status != 0:
                failed += 1
                print(f"{header} does not compile alone:\n" + "\n".join(text.splitlines()[:4]))
    print(f"headers alone: {compiled} of {len(headers)} compiled, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
