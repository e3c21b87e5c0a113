#!/usr/bin/env python3
"""Writes fold_tables.cc: what every code point becomes under NFKC, NFD, removal of accents and lower case, as the
normalisers of Hugging Face tokenizers do them (their Unicode versions differ from one another, so the library is asked).

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.23.3
    VENV/bin/python src/text/fold_tables.py > src/text/fold_tables.cc

The four in a row act on each code point alone: NFD after NFKC is full compatibility decomposition, whose only effect
across code points is the order of combining marks, and those are removed. Hangul syllables are left to fold_text().
"""
from tokenizers import normalizers

HANGUL = range(0xAC00, 0xAC00 + 11172)


def folds():
    fold = normalizers.Sequence([normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(),
                                 normalizers.Lowercase()]).normalize_str
    for point in range(0x110000):
        if 0xD800 <= point < 0xE000 or point in HANGUL:
            continue
        text = fold(chr(point))
        if text != chr(point):
            yield point, tuple(map(ord, text))


def print_array(kind, name, values):
    print(f"const {kind} {name}[{len(values)}] = {{")
    line = ""
    for value in values:
        item = f"{value},"
        if len(line) + len(item) > 118:
            print("  " + line)
            line = ""
        line += item
    print("  " + line)
    print("};")


def main():
    points, ends, pool = [], [], []
    for point, text in folds():
        points.append(point)
        pool.extend(text)
        ends.append(len(pool))
    assert len(pool) < 1 << 16
    print("// Written by fold_tables.py; change that.")
    print("// clang-format off")
    print('#include "text/fold.h"\n')
    print("namespace levin::text::fold_tables {\n")
    print_array("uint32_t", "kPoints", points)
    print()
    print_array("uint16_t", "kEnds", ends)
    print()
    print_array("uint32_t", "kTexts", pool)
    print(f"\nconst size_t kCount = {len(points)};")
    print("\n}  // namespace levin::text::fold_tables")


if __name__ == "__main__":
    main()
