#!/usr/bin/env python3
"""Writes goldens.jsonl: what Hugging Face tokenizers makes of the texts below.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers==0.23.3
    /tmp/venv/bin/python tests/text/golden/make_goldens.py

Each line is one of
    {"text": ..., or "hex": ... (bytes that are no UTF-8), "<variant>": [ids], ...}
    {"recipe": name, "parts": [hex, ...], "seed": n, "n_bytes": n, "<variant>": [number of ids, hash of ids], ...}
    {"decode": name, "variant": ..., "seed": n, "n_tokens": n, "text": hash, "text_without_special": hash}
    {"class": "\\p{L}", "n": number of code points, "hash": hash of them}
The variants of the demonstration tokenizer are in variants.json. Texts and recipes are read as bytes and replaced by
U+FFFD where they are no UTF-8 (errors="replace") before they are encoded. hash is FNV-1a over 64-bit numbers; recipes
draw from their parts with the generator below. golden_test.cc does the same in C++.

All texts were written for this file or are drawn from a seed.
"""
import json
import pathlib
import random

from tokenizers import Regex, Tokenizer, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[2] / "models" / "demo-v32" / "tokenizer.json"
MASK = (1 << 64) - 1


def build(variant):
    document = json.loads(MODEL.read_text(encoding="utf-8"))
    model = document["model"]
    if "split" in variant:
        steps = document["pre_tokenizer"]["pretokenizers"]
        split = dict(steps[0], pattern={"Regex": variant["split"]})
        document["pre_tokenizer"]["pretokenizers"] = [split, steps[-1]]
    document["added_tokens"] += variant.get("added_tokens", [])
    for name in variant.get("added_from_vocab", []):
        document["added_tokens"].append({"id": model["vocab"][name], "content": name, "special": False,
                                         "single_word": False, "lstrip": False, "rstrip": False, "normalized": False})
    if "n_merges" in variant:
        model["merges"] = model["merges"][:variant["n_merges"]]
    model["ignore_merges"] = variant.get("ignore_merges", False)
    return Tokenizer.from_str(json.dumps(document))


def fnv(numbers):
    value = 14695981039346656037
    for number in numbers:
        value = ((value ^ number) * 1099511628211) & MASK
    return value


class Draw:
    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 33) % n


def from_recipe(parts, seed, n_bytes):
    draw, text = Draw(seed), bytearray()
    while len(text) < n_bytes:
        text += parts[draw.below(len(parts))]
    return bytes(text)


PROSE = """
The quick brown fox doesn't jump; it's lazy today, and we'll see what they've done — I'd say 42% of it.
DON'T SHOUT'S, I'LL'LL go'd. o'clock 'tis rock'n'roll 'ſ 'K re've 'RE 'Ve'M
Der Fluß fließt über 1.234,56 Steine; „Grüße“ aus Köln — naïve façade, œuvre, Ångström, ŉ ǆ ﬁ ﬀ
Zażółć gęślą jaźń. Příliš žluťoučký kůň. Đây là một câu tiếng Việt có dấu.
Быстрая лиса прыгает через 7 собак. Ёжик, что ты делаешь?! Українська мова: її, ґанок
Ένα ελληνικό κείμενο με τόνους· ερώτηση; ΑΒΓ 123 ʹαʹ
今天天气很好，我们去公园散步吧。一共花了３６５元（含税）！「你好」〇一二三龥龦㐀
これはテストです。カタカナとひらがな、漢字が混ざっています。ヴァイオリン゛゜・ー〜「１２３」ｶﾀｶﾅ
한국어 문장입니다. 조합형 각각 123원
هذه جملة عربية قصيرة، فيها أرقام ١٢٣٤٥ وعلامات؟ مُحَمَّدٌ ﷺ
זוהי שורה בעברית עם ניקוד: שָׁלוֹם ו־123 מספרים
यह हिन्दी का वाक्य है। अंक १२३४५ और क्षत्रिय श्री
বাংলা ভাষায় লেখা ৬৭৮ । தமிழ் மொழி ௧௨௩ తెలుగు ಕನ್ನಡ മലയാളം ગુજરાતી ਪੰਜਾਬੀ
ภาษาไทยไม่มีช่องว่างระหว่างคำ กำลังทดสอบ ๑๒๓ ລາວ ខ្មែរ မြန်မာ བོད་ཡིག
ქართული ენა, Հայերեն լեզու, አማርኛ ቋንቋ ፩፪፫, ᏣᎳᎩ, ᠮᠣᠩᠭᠣᠯ, ⵜⴰⵎⴰⵣⵉⵖⵜ
👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☺ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣ 🤷🏿‍♀️ text🙂text 🙂🙂
∑ᵢ xᵢ² ≤ ∞ → ∀x∈ℝ: √x ≥ 0; ½ ¾ ² ³ Ⅷ ⅷ ① ⑳ 𝟘𝟙 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ℕ € £ ¥ ₿ © ® ™ ° µ
e\u0301 n\u0303 a\u0308\u0323 \u0301alone \u20dd\u20e3 x\u0338= Z\u0351\u036b\u0343\u036a\u0302a\u0310\u0342l\u0348g\u034fo
""".strip().split("\n")

CODE = [
    "def f(x: int) -> str:\n    return f\"{x:>08.3f}\\n\"  # comment\n\n\nclass A(B):\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]*c->d; }\r\n\r\n// end\r\n",
    "#include <vector>\nstd::vector<std::pair<int,int>> v{{1,2},{3,4}};\n",
    "SELECT * FROM t WHERE a='it''s' AND b>=10.5e-3;--x\n",
    "<div class=\"x\">&nbsp;<!-- hi --></div>\n<tag attr='1'/>",
    "{\"a\": [1, 22, 333, 4444, 55555], \"b\": null, \"c\": \"\\u00e9\"}",
    "$ ls -la /usr/share | grep '^d' > /dev/null 2>&1 && echo \"$HOME\"",
    "import numpy as np\nself.x = self.y\nreturn importself returnimport\n",
    "http://example.org/a_b-c/%20?q=1&r=ü#frag user@example.org _init__ __name__ ~!@#$%^&*()_+`-={}|[]\\:\";'<>?,./",
    "if x:\n        y = 1\n            \n        \n    z\n",
]

SPACES = ["", " ", "  ", "\n", "\r", "\r\n", "\t", "\n\n\n", "\r\n\r\n", " \n", "\n ", "  \n  \n  x", "x   1", "x   a", "x   中",
          "x   !", "x  \n", "x  \t", "   ", "a    ", "1   2", "中   中", "a\u00a0b", "a\u00a0\u00a0b", "a\u0085b", "a\u0085\u0085\nb",
          "a\u3000b", "a\u3000\u30001", "\u3000中", "a\u200bb", "\u200b\u200b", "a\u2028b\u2029c", "\x0b\x0c\x1c\x1d\x1e\x1f",
          "a \x0b b", "\ufeffBOM", "a\u00adb", "\u180ea", "x\t\t\ty", "x \t\r\n \t y", "!\n\n", "! \n", "!!\r\n\r\nx", " !\n a",
          "a\n\n\n\nb", "  leading", "trailing  ", "\n\n  1", "  \n1", "  \n中", "\x00", "a\x00b", "\x00\x01\x02abc", "\x7f\x80x",
          "\U000e0001a", "\ue000\ue001", "\U0010ffff", "\u0378\u0379abc", "\u0300", "\u0300\u0301", "1\u0301", " \u0301", "\n\u0301",
          "!\u0301", "\u0301!", "\u30a0\u30fb\u3099ア", "゛a", "・・・", "\u3040\u3097", "ーa", "ア!", "ア 1", "アa", "aア", "1ア", "!ア"]

DIGITS = ["1", "12", "123", "1234", "1234567890", "1 234 567", "1,234.56", "٠١٢٣٤٥٦٧٨٩", "१२३४", "１２３４５", "Ⅷ½²①", "1½2", "a1b22c333d4444",
          "𝟘𝟙𝟚𝟛", "12٣٤5", "v2.0.1-rc3", "0x1F", "1e10", "-1", "+1", "$1", "#1", "1st 2nd", "3.14159265358979"]

SPECIAL = ["<think>", "</think>", "<think", "think>", "<｜User｜>hi<｜Assistant｜>", "a<think>b</think>c", "<<think>>", "< think>",
           "<｜begin▁of▁sentence｜>", "<|begin_of_sentence|>", "<｜begin of sentence｜>", "<｜end▁of▁sentence｜>\n\n",
           "｜DSML｜", "<｜DSML｜invoke name=\"f\">", "</｜DSML｜invoke>", "｜DSML", "｜｜DSML｜｜", "｜DSML｜DSML｜", "x ｜DSML｜ y",
           "<｜User｜><｜User｜>", "<｜User｜> <think> </think>\n<｜Assistant｜>\n", "<｜▁pad▁｜>", "<｜User", "｜User｜>",
           "1<think>2", "中<think>文", "  <think>  ", "\n<think>\n", "<think></think", "<<｜User｜>", "<｜<｜User｜>"]

FLAGS = ["<l>", "a <l> b", "a  \n <l>b", "<l>  <l>", "<r>  x", "<r> \n\t<r>y", "a <lr> b", " <lr> <lr> ", "wyrd", "a wyrd b",
         "wyrds", "swyrd", "wyrd wyrd", "wyrd-wyrd", "_wyrd", "wyrd_", "éwyrd", "wyrd\u0301", "1wyrd", "中wyrd", "(wyrd)",
         "wyrd\u200dx", "<a", "<ab", "<abc>", "<abcd", "<abc>x", "<abc>bc>x", "a<ab<a<abc>", "é中", "é中é中", " é中 ", "xé中",
         "é中!", "x \n y", "x  \n", "<r> \n", " \n<l>", "importself", " import os", "returned", "self.import", "myself",
         "<think> <l> <r> </think>", "\u3000<l>\u3000<r>\u3000", "<l><r>\n\n", "<r>wyrd", "<r> wyrd", "wyrd<l>"]

INVALID = ["80", "bf", "c0", "c1", "c2", "c241", "c2c2", "c0af", "e0", "e080", "e08080", "e0a0", "e0a041", "e0a0e0a0", "e282", "e28241",
           "ed9fbf", "eda080", "edbfbf", "eda080edb080", "ee8080", "efbfbf", "f0", "f080", "f0808080", "f08fbfbf", "f090", "f09080",
           "f0908041", "f09f98", "f09f9841", "f09f98f09f9880", "f48f", "f48fbfbf", "f4908080", "f5", "f5808080", "f7bfbfbf", "f8",
           "f888808080", "fc8480808080", "fe", "ff", "fffe", "feff", "41c2", "41e2", "41e282", "41f09f98", "4180bf41", "c328",
           "a0a1", "e28281e282", "f8a1a1a1a1", "2020c2", "c22020", "31e282", "e4b8ade4b8", "0ae2820a", "c2800a", "61f1808061",
           "f18080e18ac2627fc0", "fc808080808061", "f0908080", "efbbbf61", "2061ff6220", "ffffffff", "4142ff4344", "efbfbd80"]

SCRIPTS = ["abcdeXYZ \n", " \t\n\r\u00a0\u0085\u3000\u200b\u2028a1.", " \n\ra中1", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ aB1é«»…—·｜▁\n",
           "'sStTrReEvVmMlLdDſ’ K1", "0123456789٠١٢३४५௧Ⅷ½²①𝟘 a.,", "中文字龥龦一㐀ぁあゟ゠ァヿー・゛゜゙\u3040、。１２ aA1 \n",
           "a\u0301e\u0308\u20e3का\u093fำאְב ب\u064b1.", "👩‍👧🏽❤️🇩🇪\ufe0f\u200d 1a", "abcäßñéабвαβγאבגدابกไ한국ქአខ្ម ",
           "\x00\x01\x7f\x80\u00ad\ufeff\ue000\U000f0000\u0378aA .\n"]


def random_texts():
    rnd = random.Random(20240607)
    for i in range(500):
        alphabet = SCRIPTS[i % len(SCRIPTS)]
        if i % 4 == 3:
            alphabet += SCRIPTS[rnd.randrange(len(SCRIPTS))] + SCRIPTS[rnd.randrange(len(SCRIPTS))]
        yield "".join(rnd.choice(alphabet) for _ in range(rnd.randrange(2, 28))).encode()
    for _ in range(100):
        points = [rnd.randrange(0x110000) if rnd.random() < 0.4 else rnd.randrange(0x3400) for _ in range(rnd.randrange(2, 14))]
        yield "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000).encode()
    for _ in range(100):
        text = bytearray("".join(rnd.choice(rnd.choice(SCRIPTS)) for _ in range(rnd.randrange(2, 16))).encode())
        for _ in range(rnd.randrange(1, 4)):
            text[rnd.randrange(len(text))] = rnd.randrange(0x80, 0x100)
        yield bytes(text)


MEGABYTE = 1 << 20
RECIPES = [  # name, parts, bytes
    ("one letter", ["a"], MEGABYTE),
    ("spaces", [" "], MEGABYTE),
    ("newlines and spaces", [" ", " ", "\n", "\r\n", "\t", "x"], MEGABYTE),
    ("words", ["the ", "re", "in", "ter", "al ", "on", "ing ", "st", "o", "ver. ", "man", "'s ", "Y", "\n"], MEGABYTE),
    ("code", ["self", ".", "import ", "    ", "\n", "(", ")", ": ", "return ", "x", "=", "0", "\"", "# ", "def ", "_"], MEGABYTE),
    ("scripts", ["наука ", "情報", "カナ", "2024", "العربية ", "हिन्दी ", "«ok» ", "👩‍👧", "\r\n ", "été ", "ไทย", "\u00a0", "゛"], MEGABYTE),
    ("digits", ["0", "1", "23", "٤", "Ⅷ", "½", " ", "."], MEGABYTE),
    ("marks", ["<think>", "</think>", "<｜User｜>", "｜DSML｜", "<｜", " ", "a", "｜", "\n", "<l>", "<r>", "wyrd", "import"], MEGABYTE),
    ("letters without spaces", list("abcdefghijklmnopqrstuvwxyz"), 1 << 17),
    ("bytes", [bytes([i]) for i in range(256)], MEGABYTE),
    ("broken characters", [b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3", b"\xac", b"\x80", b"a", b" ", b"\xed\xa0", b"\xf4\x90", b"\xe4\xb8\xad"], 1 << 18),
]
CLASSES = [r"\p{L}", r"\p{M}", r"\p{N}", r"\p{P}", r"\p{S}", r"\s"]


def main():
    variants = {name: build(v) for name, v in json.loads((HERE / "variants.json").read_text()).items()}
    lines = []

    def ids(variant, text):
        return variants[variant].encode(text.decode("utf-8", errors="replace"), add_special_tokens=False).ids

    def add_text(text, names):
        try:
            line = {"text": text.decode()}
        except UnicodeDecodeError:
            line = {"hex": text.hex()}
        lines.append(line | {name: ids(name, text) for name in names})

    both = ("deepseek", "glm")
    for text in PROSE + CODE:
        add_text(text.encode(), variants)
    for text in SPACES + DIGITS + SPECIAL:
        add_text(text.encode(), both)
    for text in FLAGS:
        add_text(text.encode(), ("flags",))
    for text in INVALID:
        add_text(bytes.fromhex(text), both)
    for text in random_texts():
        add_text(text, both)

    for seed, (name, parts, n_bytes) in enumerate(RECIPES, 1):
        parts = [part if isinstance(part, bytes) else part.encode() for part in parts]
        text = from_recipe(parts, seed, n_bytes)
        line = {"recipe": name, "parts": [part.hex() for part in parts], "seed": seed, "n_bytes": n_bytes}
        for variant in variants:
            tokens = ids(variant, text)
            line[variant] = [len(tokens), fnv(tokens)]
        lines.append(line)

    for variant in ("deepseek", "flags"):
        tokenizer, seed, n_tokens = variants[variant], 99, 20000
        draw = Draw(seed)
        tokens = [draw.below(tokenizer.get_vocab_size()) for _ in range(n_tokens)]
        lines.append({"decode": "random ids", "variant": variant, "seed": seed, "n_tokens": n_tokens,
                      "text": fnv(tokenizer.decode(tokens, skip_special_tokens=False).encode()),
                      "text_without_special": fnv(tokenizer.decode(tokens, skip_special_tokens=True).encode())})

    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    for name in CLASSES:
        split = pre_tokenizers.Split(Regex(name), "removed")
        members = [p for p in points if not split.pre_tokenize_str(chr(p))]
        lines.append({"class": name, "n": len(members), "hash": fnv(members)})

    with open(HERE / "goldens.jsonl", "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
