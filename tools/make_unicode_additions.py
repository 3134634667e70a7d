#!/usr/bin/env python3
"""Writes core/model/unicode_additions.h: code points that a tokenizer's pattern knows and PCRE2 may not.

    python3.11 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python tools/make_unicode_additions.py [--check]

The reference library's regular expressions follow a newer Unicode than PCRE2 10.42 (Unicode 14, like Python 3.11's
unicodedata). For every property a split pattern may name, the table holds the code points that were unassigned in
Unicode 14 and that the reference counts to the property. The script fails where the two disagree about a code point
that was assigned before, for then adding would not be enough. --check compares instead of writing.
"""

import argparse
import pathlib
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, pre_tokenizers

HEADER = pathlib.Path(__file__).resolve().parent.parent / "core/model/unicode_additions.h"
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
SCRIPTS = "Arabic Cyrillic Greek Han Hangul Hebrew Hiragana Katakana Latin Thai".split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CHUNK = 4096
MOVED = {0x1171E}  # from Mn to Mc: \p{M} holds it in both, split_pattern.cpp refuses the two by themselves


def matched(pattern):
    """Code points that the pattern of one character matches in the reference library."""
    remove, found = pre_tokenizers.Split(Regex(pattern), "removed"), set()
    for start in range(0, len(CODE_POINTS), CHUNK):
        chunk = CODE_POINTS[start:start + CHUNK]
        kept = {ord(c) for piece, _ in remove.pre_tokenize_str("".join(map(chr, chunk))) for c in piece}
        found.update(c for c in chunk if c not in kept)
    return found


def ranges(points):
    out = []
    for point in sorted(points):
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def table():
    category = {c: unicodedata.category(chr(c)) for c in CODE_POINTS}
    rows = []
    for name in CATEGORIES:
        reference = matched(rf"\p{{{name}}}")
        before = {c for c in CODE_POINTS if category[c] == name}
        moved = ({c for c in reference - before if category[c] != "Cn"} | (before - reference)) - MOVED
        assert not moved, f"{name}: {[hex(c) for c in sorted(moved)][:9]} changed the category"
        rows += [(name, low, high) for low, high in ranges(reference - before - MOVED)]
    for name in SCRIPTS:
        new = {c for c in matched(rf"\p{{{name}}}") if category[c] == "Cn"}
        rows += [(name, low, high) for low, high in ranges(new)]
    # \w is Alphabetic, marks, decimal digits and connectors: what the categories above do not bring
    known = {c for name, low, high in rows if name[0] in "LM" or name in ("Nd", "Pc") for c in range(low, high + 1)}
    new = {c for c in matched(r"\w") if category[c] == "Cn"} - known
    return rows + [("Alphabetic", low, high) for low, high in ranges(new)]


def header(rows):
    lines = ["// Written by tools/make_unicode_additions.py. Code points assigned after Unicode 14, by property.",
             "#pragma once", "", "#include <cstdint>", "#include <string_view>", "", "namespace kvscope {", "",
             "struct UnicodeAddition {", "    std::string_view property; // general category, script or \"Alphabetic\"",
             "    std::uint32_t first, last;", "};", "", "inline constexpr UnicodeAddition kUnicodeAdditions[] = {"]
    line = "   "
    for name, low, high in rows:
        entry = f' {{"{name}", 0x{low:X}, 0x{high:X}}},'
        if len(line + entry) > 120:
            lines.append(line)
            line = "   "
        line += entry
    lines += [line.rstrip(",") + "};", "", "} // namespace kvscope", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    check = parser.parse_args().check
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"this Python knows Unicode {unicodedata.unidata_version}; use Python 3.11, which knows 14.0.0")
    rows = table()
    content = header(rows)
    if check:
        sys.exit(0 if HEADER.read_text() == content else f"{HEADER} differs")
    HEADER.write_text(content)
    print(f"{len(rows)} ranges, tokenizers {tokenizers.__version__}")


if __name__ == "__main__":
    main()
