#!/usr/bin/env python3
"""Turn unpacked documentation packages into a plain English text corpus.

    clean_text.py ROOT OUT_TRAIN OUT_HELDOUT

ROOT holds one folder per unpacked package.  Every HTML page, manual page, POD
file, text file, dictionary or game script in it is reduced to paragraphs;
paragraphs that are not English prose (code, tables, navigation, other
languages) are dropped, and so is every paragraph already seen anywhere else.
Documents are separated by a form feed (\\f).  One document in a hundred (chosen
by a hash of its name) goes to OUT_HELDOUT instead of OUT_TRAIN.
"""
import gzip
import hashlib
import multiprocessing as mp
import os
import random
import re
import subprocess
import sys

import lxml.etree
import lxml.html

DEFAULT_CAP = 5_000_000          # characters of text kept from one package
CAPS = {
    "linux-doc-6.1": 16_000_000, "dict-gcide": 12_000_000, "dict-wn": 9_000_000,
    "anarchism": 12_000_000, "postgresql-doc-15": 9_000_000, "python3.11-doc": 9_000_000,
    "racket-doc": 7_000_000, "libboost1.81-doc": 7_000_000, "vim-runtime": 9_000_000,
    "perl-doc": 9_000_000, "sqlite3-doc": 9_000_000, "rust-doc": 7_000_000,
    "lilypond-doc-html": 6_000_000, "libreoffice-help-en-us": 8_000_000,
    "bible-kjv": 5_000_000, "git-doc": 7_000_000,
}
SKIP_TAGS = {"script", "style", "nav", "header", "footer", "head", "svg", "button", "form",
             "select", "math", "noscript", "iframe", "img", "input", "label", "indexterm"}
BLOCK_TAGS = {"p", "li", "dd", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "td", "th", "tr",
              "table", "div", "section", "article", "body", "html", "ul", "ol", "dl", "blockquote",
              "hr", "br", "title", "item", "page", "caption", "note", "steps", "list", "terms",
              "main", "aside", "fieldset", "center", "tbody", "thead", "screen", "code-block"}
SKIP_CLASS = re.compile(r"sidebar|navheader|navfooter|navigation|related|toctree|breadcrumb|footer|"
                        r"headerlink|\btoc\b|highlight|copyright|admonition-title|linenos|searchbox|"
                        r"versionmodified|navbar|menu|sphinxsidebar|memproto|dirtab")
STOP = set("the of and to a in is that for it be as are with this or by on not an from at if you can "
           "will which have has was but when all he his her they their we our your there one more "
           "use used may must should into than then its so no only other such any these been were "
           "do does what who how i my me him she them would could".split())
TRANSLATE = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u201c": '"', "\u201d": '"', "\u201e": '"',
    "\u2013": "-", "\u2014": "--", "\u2010": "-", "\u2011": "-", "\u2212": "-", "\u2026": "...",
    "\u00a0": " ", "\u2009": " ", "\u200b": "", "\u00ad": "", "\ufeff": "", "\u2022": "*",
    "\u00b7": "*", "\u2192": "->", "\u00b6": "", "\u2190": "<-", "\u00d7": "x", "\ufb01": "fi",
    "\ufb02": "fl", "\u2032": "'", "\u2033": '"', "\u00ab": '"', "\u00bb": '"', "\t": " ",
})
WORD = re.compile(r"[A-Za-z']+")


def prose(par, heading=False):
    """Return the cleaned paragraph, or None when it is not English prose."""
    par = par.translate(TRANSLATE)
    par = re.sub(r"\s+", " ", par).strip()
    if heading:
        return par if 3 <= len(par) <= 120 and sum(c.isalpha() for c in par) > 0.6 * len(par) else None
    if len(par) < 50:
        return None
    letters = sum(c.isalpha() or c == " " for c in par)
    if letters < 0.80 * len(par) or sum(ord(c) > 126 for c in par) > 0.01 * len(par):
        return None
    words = WORD.findall(par.lower())
    if len(words) < 8 or sum(w in STOP for w in words) < 0.2 * len(words):
        return None
    return par


def from_tree(root):
    """Paragraphs of an HTML or XML tree, headings marked by a leading \\x01."""
    paras, buf = [], []

    def flush(heading=False):
        text = "".join(buf)
        buf.clear()
        if text.strip():
            paras.append(("\x01" if heading else "") + text)

    def walk(el, depth):
        tag = el.tag
        if not isinstance(tag, str):
            if el.tail:
                buf.append(el.tail)
            return
        tag = tag.rsplit("}", 1)[-1].lower()
        cls = (el.get("class") or "") + " " + (el.get("id") or "")
        skip = tag in SKIP_TAGS or depth > 200 or (cls.strip() and SKIP_CLASS.search(cls)) \
            or tag in ("pre", "screen", "programlisting")
        block = tag in BLOCK_TAGS
        head = tag in ("h1", "h2", "h3", "h4", "title")
        if block:
            flush()
        if not skip:
            if el.text:
                buf.append(el.text)
            for child in el:
                walk(child, depth + 1)
        if block:
            flush(head)
        if el.tail:
            buf.append(el.tail)

    walk(root, 0)
    flush()
    return paras


def from_plain(text):
    return re.split(r"\n\s*\n", text)


def from_pod(text):
    text = re.sub(r"(?m)^=head\d\s+(.*)$", lambda m: "\n\n\x01" + m.group(1) + "\n\n", text)
    text = re.sub(r"(?m)^=(item|over|back|cut|pod|encoding|for|begin|end)\b.*$", "\n", text)
    for _ in range(3):
        text = re.sub(r"[BICFSXLE]<+\s?([^<>]*?)\s?>+", r"\1", text)
    return [p for p in re.split(r"\n\s*\n", text) if not p.startswith((" ", "\t"))]


def from_man(path):
    out = subprocess.run(f"zcat -f '{path}' | preconv 2>/dev/null | tbl 2>/dev/null | "
                         "groff -man -Tascii -rLL=2000n -rHY=0 -P-c 2>/dev/null | col -bx", shell=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60).stdout.decode("utf8", "replace")
    return [p for line in out.split("\n") for p in [line.strip()] if p]


def from_file(path):
    name = path.lower()
    if re.search(r"/man/man\d/[^/]+\.\dp?(x)?(posix)?(\.gz)?$", path) or re.search(r"\.\d(\.gz)?$", name) \
            and "/man/" in name:
        return from_man(path)
    opener = gzip.open if name.endswith((".gz", ".dz")) else open
    with opener(path, "rb") as fh:
        raw = fh.read(8_000_000 if not name.endswith(".dz") else 64_000_000)
    base = name[:-3] if name.endswith((".gz", ".dz")) else name
    if base.endswith((".html", ".htm", ".xhtml")):
        if len(raw) < 400:
            return []
        tree = lxml.html.document_fromstring(raw)
        body = tree.find("body")
        return from_tree(body if body is not None else tree)
    if base.endswith((".page", ".docbook")):
        return from_tree(lxml.etree.fromstring(raw, lxml.etree.XMLParser(recover=True, no_network=True)))
    text = raw.decode("utf8", "replace")
    if base.endswith(".pod"):
        return from_pod(text)
    if base.endswith(".dict"):
        text = re.sub(r"\[(1913 Webster|PJC|WordNet 1\.5|Webster 1913 Suppl\.|.{0,12}PJC.{0,12})\]", "", text)
        text = re.sub(r"[{}]", "", text)
        return re.split(r"\n\s*\n|\n(?=\S)", text)
    if base.endswith(".cfg"):
        found = re.findall(r'(?:story|message|description|text)\s*=\s*_\s*"((?:[^"]|"")*)"', text)
        return [re.sub(r"<[^>]*>", "", f.replace('""', '"')) for f in found]
    if "endless-sky" in path:
        found = re.findall(r"[`\"]([^`\"\n]{40,})[`\"]", text)
        return [f.replace("&", "") for f in found]
    if base.endswith((".txt", ".des", ".rst", ".md", ".texi", ".info")) or "/fortunes/" in base \
            or "/games/" in base or "jargon" in base or re.search(r"\.info(-\d+)?$", base):
        text = re.sub(r"(?m)^%+$", "\n", text)
        text = re.sub(r"\*([^\s*]+)\*|\|([^\s|]+)\|", r"\1\2", text)
        return from_plain(text)
    return []


OTHER_LANG = re.compile(r"/(html|doc|help|man|en|share)/(?!(C|en|en-US|en_US|man\d)\b)[a-z]{2}([-_][A-Z]{2})?/|"
                        r"\.(ca|cs|da|de|el|es|fi|fr|hr|hu|it|ja|ko|lt|nb|nl|nn|pl|pt|pt-br|pt-BR|ro|ru|sk|sl|sv|"
                        r"tr|uk|vi|zh|zh_CN|zh-cn|zh-tw)\.(html|txt|pdf)|/translations/|/_sources/|/po/|genindex|"
                        r"search\.html|/(da|de|es|fr|it|ja|ko|ru|tr|zh_CN|pt_br|pt-br)/|changelog|copyright|NEWS|/locale/")


def wanted(path):
    if os.path.islink(path) or OTHER_LANG.search(path):
        return False
    if "debian-handbook" in path and "/en-US/" not in path:
        return False
    if "rust-doc" in path and not re.search(r"/(book|reference|nomicon|cargo|rustc|rustdoc|rust-by-example|"
                                            r"edition-guide|embedded-book|unstable-book)/|/std/[a-z_]+/index", path):
        return False
    if "linux-doc" in path and "/html/" not in path:
        return False
    return True


def one_package(job):
    pkg, root = job
    files = []
    for base, _, names in os.walk(root):
        files += [os.path.join(base, n) for n in names]
    files = sorted(f for f in files if wanted(f))
    random.Random(pkg).shuffle(files)
    cap, total, docs = CAPS.get(pkg, DEFAULT_CAP), 0, []
    for path in files:
        try:
            paras = from_file(path)
        except Exception:       # one unreadable page must not stop the run
            continue
        keep, pending = [], None
        for par in paras:
            if par.startswith("\x01"):
                pending = prose(par[1:], heading=True)
                continue
            par = prose(par)
            if par is None:
                continue
            if pending:
                keep.append(pending)
                pending = None
            keep.append(par)
        # a whole dictionary or book is many documents: pieces of about 120 kB
        piece, pieces, size = [], [], 0
        for par in keep:
            piece.append(par)
            size += len(par)
            if size > 120_000:
                pieces.append(piece)
                piece, size = [], 0
        pieces.append(piece)
        if len(pieces) > 1:
            random.Random(pkg + path[len(root):]).shuffle(pieces)     # the same split wherever the text lies
        for i, piece in enumerate(pieces):
            size = sum(map(len, piece))
            if size >= 300 and total < cap:
                docs.append((f"{path[len(root):]}#{i:04d}", piece))
                total += size
        if total >= cap:
            break
    docs.sort()
    return pkg, docs


def main():
    if len(sys.argv) != 4:
        print(__doc__.strip())
        raise SystemExit(0 if sys.argv[1:] in (["--help"], ["-h"]) else 2)
    root, out_train, out_held = sys.argv[1:4]
    jobs = [(d, os.path.join(root, d)) for d in sorted(os.listdir(root))]
    seen, stats = set(), {}
    with mp.Pool() as pool, open(out_train, "w") as train, open(out_held, "w") as held:
        for pkg, docs in pool.imap(one_package, jobs, chunksize=1):
            size = 0
            for name, paras in docs:
                keep = []
                for par in paras:
                    key = hashlib.blake2b(par.lower().encode(), digest_size=8).digest()
                    if len(par) >= 50 and key in seen:
                        continue
                    seen.add(key)
                    keep.append(par)
                text = "\n".join(keep)
                if len(text) < 250:
                    continue
                in_held = hashlib.md5((pkg + name).encode()).digest()[0] * 256 + \
                    hashlib.md5((pkg + name).encode()).digest()[1] < 655
                (held if in_held else train).write(text + "\n\f")
                size += len(text)
            stats[pkg] = size
            print(f"{size / 1e6:8.2f} MB  {len(docs):6d} docs  {pkg}", file=sys.stderr, flush=True)
    print(f"{sum(stats.values()) / 1e6:.1f} MB in all", file=sys.stderr)


if __name__ == "__main__":
    main()
