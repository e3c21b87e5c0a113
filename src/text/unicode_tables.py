#!/usr/bin/env python3
"""Writes unicode_tables.cc: the classes of all code points as a two-stage table.

    python3 src/text/unicode_tables.py > src/text/unicode_tables.cc

Base data: Unicode 15.0.0 as Debian packages it (unicode-data 15.0.0-1, /usr/share/unicode). The code points that
Unicode 15.1 and 16.0 assigned since then are listed below, because the regular expressions of Hugging Face tokenizers
(Oniguruma) classify by 16.0. No code point that 15.0.0 had changed its class in between.
"""
import sys

FOLDER = "/usr/share/unicode/"

# Must equal enum CharClass in unicode.h.
LETTER, MARK, NUMBER, PUNCTUATION, SYMBOL, SPACE, WORD, NEWLINE = (1 << i for i in range(8))

ADDED_BY_15_1_AND_16_0 = """
897:Mn 1B4E-1B4F:Po 1B7F:Po 1C89:Lu 1C8A:Ll 2427-2429:So 2FFC-2FFF:So 31E4-31E5:So 31EF:So A7CB-A7CC:Lu A7CD:Ll
A7DA:Lu A7DB:Ll A7DC:Lu 105C0-105F3:Lo 10D40-10D49:Nd 10D4A-10D4D:Lo 10D4E:Lm 10D4F:Lo 10D50-10D65:Lu 10D69-10D6D:Mn
10D6E:Pd 10D6F:Lm 10D70-10D85:Ll 10D8E-10D8F:Sm 10EC2-10EC4:Lo 10EFC:Mn 11380-11389:Lo 1138B:Lo 1138E:Lo
11390-113B5:Lo 113B7:Lo 113B8-113BA:Mc 113BB-113C0:Mn 113C2:Mc 113C5:Mc 113C7-113CA:Mc 113CC-113CD:Mc 113CE:Mn
113CF:Mc 113D0:Mn 113D1:Lo 113D2:Mn 113D3:Lo 113D4-113D5:Po 113D7-113D8:Po 113E1-113E2:Mn 116D0-116E3:Nd
11BC0-11BE0:Lo 11BE1:Po 11BF0-11BF9:Nd 11F5A:Mn 13460-143FA:Lo 16100-1611D:Lo 1611E-16129:Mn 1612A-1612C:Mc
1612D-1612F:Mn 16130-16139:Nd 16D40-16D42:Lm 16D43-16D6A:Lo 16D6B-16D6C:Lm 16D6D-16D6F:Po 16D70-16D79:Nd 18CFF:Lo
1CC00-1CCEF:So 1CCF0-1CCF9:Nd 1CD00-1CEB3:So 1E5D0-1E5ED:Lo 1E5EE-1E5EF:Mn 1E5F0:Lo 1E5F1-1E5FA:Nd 1E5FF:Po
1F8B2-1F8BB:So 1F8C0-1F8C1:So 1FA89:So 1FA8F:So 1FABE:So 1FAC6:So 1FADC:So 1FADF:So 1FAE9:So 1FBCB-1FBEF:So
2EBF0-2EE5D:Lo
"""


def span(text):
    first, _, last = text.replace("..", "-").partition("-")
    return range(int(first, 16), int(last or first, 16) + 1)


def property_lines(name):
    with open(FOLDER + name, encoding="utf-8") as file:
        for line in file:
            line = line.split("#")[0].strip()
            if line:
                points, value = (part.strip() for part in line.split(";"))
                yield span(points), value


def classes():
    table = [0] * 0x110000
    general = {"L": LETTER | WORD, "M": MARK | WORD, "N": NUMBER, "P": PUNCTUATION, "S": SYMBOL}
    categories = list(property_lines("extracted/DerivedGeneralCategory.txt"))
    for item in ADDED_BY_15_1_AND_16_0.split():
        points, _, category = item.partition(":")
        categories.append((span(points), category))
    for points, category in categories:
        for point in points:
            table[point] |= general.get(category[0], 0)
            if category in ("Nd", "Pc"):
                table[point] |= WORD
    for points, name in property_lines("PropList.txt"):
        for point in points:
            if name == "White_Space":
                table[point] |= SPACE
            if name == "Join_Control":
                table[point] |= WORD
    for points, name in property_lines("DerivedCoreProperties.txt"):
        if name == "Alphabetic":
            for point in points:
                table[point] |= WORD
    for point in (0x0A, 0x0D):
        table[point] |= NEWLINE
    return table


def two_stages(table, block_size):
    blocks, first = {}, []
    for start in range(0, len(table), block_size):
        block = bytes(table[start:start + block_size])
        first.append(blocks.setdefault(block, len(blocks)))
    return first, b"".join(blocks)


def print_array(name, values):
    print(f"const uint8_t {name}[{len(values)}] = {{")
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
    block_bits = 7
    first, second = two_stages(classes(), 1 << block_bits)
    if len(second) >> block_bits > 256:
        sys.exit("too many different blocks for one byte: enlarge block_bits")
    print("// Written by unicode_tables.py; change that. Unicode 16.0 (see there).")
    print("// clang-format off")
    print('#include "text/unicode.h"\n')
    print("namespace levin::text::unicode_tables {\n")
    print(f'static_assert(kBlockBits == {block_bits}, "unicode.h and unicode_tables.py disagree");\n')
    print_array("kBlockOf", first)
    print()
    print_array("kClasses", list(second))
    print("\n}  // namespace levin::text::unicode_tables")


if __name__ == "__main__":
    main()
