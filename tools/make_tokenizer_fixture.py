#!/usr/bin/env python3
"""Writes tests/golden/tokenizer_fixture.jsonl: texts and the ids the reference library gives them.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python tools/make_tokenizer_fixture.py [--check]

Each line is {"text": ..., "ids": [...]}; the ids come from the `tokenizers` library for the embedded model's
tokenizer.json, special tokens added and recognised. The texts come from a fixed seed, so the same library writes the
same file. --check compares instead of writing. Needed again only when the tokenizer or the list of texts changes.
"""

import argparse
import json
import pathlib
import random
import sys

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "resources/models/nosa-tiny/tokenizer.json"
FIXTURE = ROOT / "tests/golden/tokenizer_fixture.jsonl"
SEED = 2026
COUNT = 10400
LARGEST_FILE = 1_500_000

WORDS = """the of and to in is was for that with memory cache token block attention window decode prefill kernel
sparse select budget transfer bandwidth host device query value score layer head model language sentence number magic
don't I'll we've it's you're they'd I'm DON'T WE'LL O'Brien rock'n'roll 'tis antidisestablishmentarianism
internationalization supercalifragilisticexpialidocious camelCase snake_case HTTPServer x86_64 utf8 e.g. i.e.""".split()

SENTENCES = [
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Portez ce vieux whisky au juge blond qui fume, dès Noël où un zéphyr haï.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; ¿añoraba?",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "Pijamalı hasta yağız şoföre çabucak güvendi. Iğdır'ın İSTANBUL'u",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "天地玄黃,宇宙洪荒。日月盈昃,辰宿列張。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "दुनिया के सभी लोग आज़ाद हैं और बराबर।",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "Con sói nâu nhảy qua hàng rào; Tiếng Việt có dấu.",
    "ქართული ენა და Հայերեն լեզու",
    "Ĉu vi ŝatas ĝin? Ŭa!",
]

CODE = [
    "def f(x, *args):\n    return {k: v for k, v in x.items() if v != None}\n",
    "for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];\n",
    "#include <vector>\nint main(int argc, char** argv) { return argc > 1 ? 0 : 1; }\n",
    "SELECT step, SUM(bytes) FROM transfers WHERE layer = 3 GROUP BY step;",
    "<div class=\"a b\">&nbsp;<!-- no --></div>",
    "{\"a\": [1, 2.5e-3, null, true], \"b\": \"\\u00e9\"}",
    "git commit -m 'it''s' && echo \"$HOME\" | sed 's/[^a-z]*//g' > /dev/null 2>&1",
    "\tif err != nil {\n\t\treturn fmt.Errorf(\"x: %w\", err)\n\t}\n",
    "a = b<<2 | c>>>3 ^ ~d; // ----------- ====\n/* ***** */",
    "x²+y²=z² ∑∞ √2≈1.41421 ±∂ΔΩ→⇒",
]

EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "☃", "1️⃣", "🫠", "✨", "🧑🏿‍🚀"]
SPACES = [" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u2003", "\u3000", "\u2028",
          "\u0085", "\u200b", "\ufeff", "\u202f", "\u1680", "\u180e", "\u001c", "\u001f"]
# Scripts and blocks: first and last code point of ranges that have been assigned for long.
RANGES = [(0x20, 0x7E), (0x00, 0x1F), (0x7F, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x391, 0x3A1), (0x400, 0x4FF),
          (0x5D0, 0x5EA), (0x620, 0x64A), (0x660, 0x669), (0x905, 0x939), (0x966, 0x96F), (0xE01, 0xE3A),
          (0x10D0, 0x10F0), (0x1100, 0x1112), (0x1E00, 0x1EFF), (0x2010, 0x2027), (0x2070, 0x2071), (0x20A0, 0x20B5),
          (0x2150, 0x2188), (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x257F), (0x3041, 0x3096),
          (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFB00, 0xFB06), (0xFE00, 0xFE0F),
          (0xFF01, 0xFF5E), (0x10000, 0x1000B), (0x10400, 0x1044F), (0x1D400, 0x1D454), (0x1F300, 0x1F3FA),
          (0x1F600, 0x1F640), (0x20000, 0x2A6D6), (0xFFFD, 0xFFFD), (0x10FFFF, 0x10FFFF)]
SPECIALS = ["<|bos|>", "<|eos|>"]
NEAR_SPECIALS = ["<|bos|", "<|", "|>", "<|BOS|>", "<|eos|> ", " <|bos|>", "<<|bos|>>", "<|bos|><|eos|>",
                 "<|b<|eos|>os|>", "<|pad|>"]

FIXED = ["", " ", "\n", "\0", "a", "'s", "'S", "'\u017f", "'ll'LL'lL", "it's IT'S it'\u017f", "''s", " 's", "\u212a",
         "ſ", "ß", "a\u0301", "e\u0301\u0302\u0303", "\u0301", " \u0301", "\u0301a", "q\u0307\u0323", "ﬃ", "Ⅻ", "½",
         "٣٤", "①", "²", "a" * 300, "ab" * 200, " " * 300, "\n" * 100, "\r\n" * 60, "1" * 200, "=" * 200, "é" * 100,
         "字" * 80, "😀" * 40, "a" + " " * 50 + "b", "a" + "\t" * 9 + "\n" + " " * 7 + "b", " \n \n ", "\n \n",
         "  \r\n\t x", "x \u3000 y", "a\u180eb", "x\u200dy", "\u200b", "\ufeffBOM", "a\u0000b\u0001c", "\x7f\x80\x9f",
         "\U0010ffff", "\ud7ff\ue000", *SPECIALS, *NEAR_SPECIALS, "<|bos|>" * 5, "text<|eos|>more<|bos|> end",
         "\n<|eos|>\n", "The magic number for silver lantern is 73398."]


def word(rng):
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(WORDS)
    if kind < 0.65:
        return rng.choice(WORDS).upper() if rng.random() < 0.5 else rng.choice(WORDS).capitalize()
    if kind < 0.8:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(1, 12)))
    if kind < 0.9:
        return str(rng.randint(0, 10 ** rng.randint(1, 9)))
    return rng.choice([rng.choice(sentence.split() or [sentence]) for sentence in SENTENCES])


def characters(rng):
    low, high = rng.choice(RANGES)
    if rng.random() < 0.3:  # one block
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))
    return "".join(chr(rng.randint(*rng.choice(RANGES))) for _ in range(rng.randint(1, 8)))


def cut(rng, text, longest=30):
    length = rng.randint(1, min(longest, len(text)))
    start = rng.randint(0, len(text) - length)
    return text[start:start + length]


def part(rng):
    kind = rng.random()
    if kind < 0.28:
        return " ".join(word(rng) for _ in range(rng.randint(1, 5)))
    if kind < 0.42:
        return cut(rng, rng.choice(SENTENCES))
    if kind < 0.54:
        return cut(rng, rng.choice(CODE))
    if kind < 0.66:
        return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 5)))
    if kind < 0.72:
        return "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 3)))
    if kind < 0.86:
        return characters(rng)
    if kind < 0.90:
        return rng.choice("aeiounAEO") + "".join(chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randint(1, 4)))
    if kind < 0.94:
        return rng.choice(SPECIALS)
    if kind < 0.96:
        return rng.choice(NEAR_SPECIALS)
    return "".join(rng.choice(".,;:!?'\"()[]{}<>|/\\@#$%^&*-+=_~`") for _ in range(rng.randint(1, 10)))


def texts():
    rng = random.Random(SEED)
    out = list(dict.fromkeys(FIXED))
    seen = set(out)
    while len(out) < COUNT:
        text = "".join(part(rng) for _ in range(rng.choice([1, 1, 1, 1, 2, 3])))
        if text not in seen:
            seen.add(text)
            out.append(text)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    check = parser.parse_args().check
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    lines = []
    for text in texts():
        ids = tokenizer.encode(text, add_special_tokens=True).ids
        lines.append(json.dumps({"text": text, "ids": ids}, ensure_ascii=False, separators=(",", ":")))
    content = ("\n".join(lines) + "\n").encode("utf-8")
    if len(content) > LARGEST_FILE:
        sys.exit(f"the fixture would have {len(content)} bytes, more than {LARGEST_FILE}")
    if check:
        sys.exit(0 if FIXTURE.read_bytes() == content else f"{FIXTURE} differs")
    FIXTURE.write_bytes(content)
    print(f"{FIXTURE.relative_to(ROOT)}: {len(lines)} texts, {len(content)} bytes")


if __name__ == "__main__":
    main()
