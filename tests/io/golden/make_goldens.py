#!/usr/bin/env python3
"""Record how CPython writes JSON and floats: python_json.txt and python_floats.txt next to this script.

python_json.txt    pairs of lines: a JSON text, and json.dumps(json.loads(text), ensure_ascii=False)
python_floats.txt  lines of a double's 64 bits in hexadecimal, a blank, and repr(float)
"""
import json
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).parent

TEXTS = [
    "null", "true", "false", "0", "-0", "-0.0", "0.0", "1", "-17", "123456789012345678901234567890",
    "18446744073709551616", "-9223372036854775809", "1.0", "1.50", "1e5", "1E5", "1e+5", "1e-5", "1.5e300", "1e16",
    "9999999999999998.0", "1e15", "123456789012345680.0", "0.0001", "0.00001", "1e22", "1e23", "5e-324", "2.5e-5",
    "1e-400", "3.141592653589793", "0.1", "100", "1e2",
    '""', '"a"', '"\\""', '"\\\\"', '"\\/"', '"/"', '"\\b\\f\\n\\r\\t"', '"\\u0000\\u0001\\u001f\\u007f"',
    '"\\u00e9 \\u6f22 \\ud83d\\ude00 \\u2028 \\ufeff"', '"é 漢 😀 \u2028"', '"<script>&amp;\'</script>"',
    "[]", "[ ]", "{}", "{ }", "[1,2, 3]", "[[],[[]],{}]", '{"a":1,"b":[true,null],"c":{"d":"e"}}',
    '{"b":1,"a":2}', '{"a":1,"b":2,"a":3}', '{"":0,"\\u0041":1,"A":2}', '{"a\\"b":1,"\\n":2,"é":3}',
    ' {\t"a" : [ 1 , 2 ] } ',
    '{"city":"München","days":7,"unit":"°C","ratio":0.30000000000000004}',
    '[1.7976931348623157e308,2.2250738585072014e-308,4.9406564584124654e-324]',
]


def main():
    with open(HERE / "python_json.txt", "w", encoding="utf-8") as out:
        for text in TEXTS:
            assert "\n" not in text
            out.write(text + "\n" + json.dumps(json.loads(text), ensure_ascii=False) + "\n")

    draw = random.Random(1)
    values = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan")]
    values += [10.0**k for k in range(-25, 26)] + [-(10.0**k) / 3 for k in range(-25, 26)]
    values += [2.0**k for k in range(-1074, 1024, 61)] + [float(2**53 + k) for k in range(-3, 4)]
    values += [9.5e15, 9.999e15, 9999999999999999.0, 1.2345e16, 123456789.125, 0.00012345, 0.000099999]
    while len(values) < 600:
        value = struct.unpack("<d", struct.pack("<Q", draw.getrandbits(64)))[0]
        if value == value:
            values.append(value)
        values.append(round(draw.uniform(-1000, 1000), draw.randrange(6)))
    with open(HERE / "python_floats.txt", "w", encoding="ascii") as out:
        for value in values:
            out.write(f"{struct.unpack('<Q', struct.pack('<d', value))[0]:016x} {value!r}\n")


main()
