"""Writes wgmma_shapes.inc: the wgmma instruction for every tile width the kernels use.

    python3 wgmma_shapes.py > wgmma_shapes.inc
"""

WIDTHS = [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 136, 144, 160, 192, 224, 256]

# name, k of one step, PTX types, whether operand order bits follow
TYPES = [("e4m3", 32, "f32.e4m3.e4m3", False), ("bf16", 16, "f32.bf16.bf16", True)]


def wrapped(items, indent):
    lines, line = [], indent
    for item in items:
        if len(line) + len(item) + 2 > 118:
            lines.append(line.rstrip())
            line = indent
        line += item + " "
    lines.append(line.rstrip())
    return "\n".join(lines)


def accumulators(n_regs, first=0):
    parts = [f"%{first + i}{',' if i + 1 < n_regs else ''}" for i in range(n_regs)]
    rows = [" ".join(parts[i:i + 16]) for i in range(0, n_regs, 16)]
    rows[0] = "{" + rows[0]
    rows[-1] += "},"
    return "\n".join(f'        "{row} "' if i + 1 < len(rows) else f'        "{row}"' for i, row in enumerate(rows))


def operands(n_regs):
    return wrapped([f'"+f"(d[{i}])' + ("," if i + 1 < n_regs else "") for i in range(n_regs)], "          ")


def function(name, step, ptx, transposes, width, a_in_registers):
    n = width // 2
    a_args = "const uint32_t (&a)[4]" if a_in_registers else "uint64_t a"
    template = ""
    if transposes:
        template = "  template <int kTransposeB = 0>\n" if a_in_registers else "  template <int kTransposeA = 0, int kTransposeB = 0>\n"
    first = n
    if a_in_registers:
        a_text, a_in = "{%%%d, %%%d, %%%d, %%%d}" % tuple(range(first, first + 4)), '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])'
        first += 4
    else:
        a_text, a_in = f"%{first}", '"l"(a)'
        first += 1
    tail = "p, 1, 1"
    extra_in = ""
    if transposes and a_in_registers:
        tail, extra_in = f"p, 1, 1, %{first + 2}", ', "n"(kTransposeB)'
    elif transposes:
        tail, extra_in = f"p, 1, 1, %{first + 2}, %{first + 3}", ', "n"(kTransposeA), "n"(kTransposeB)'
    return f"""{template}  __device__ __forceinline__ static void {name}(float (&d)[{n}], {a_args}, uint64_t b, bool accumulate) {{
    asm volatile(
        "{{\\n .reg .pred p;\\n setp.ne.b32 p, %{first + 1}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{width}k{step}.{ptx} "
{accumulators(n)}
        "{a_text}, %{first}, {tail};\\n}}\\n"
        :
{operands(n)}
        : {a_in}, "l"(b), "r"(static_cast<int>(accumulate)){extra_in});
  }}"""


print("// Written by wgmma_shapes.py; do not edit. One struct per tile width, see wgmma.cuh.")
print("// clang-format off")
for width in WIDTHS:
    print(f"\ntemplate <>\nstruct Wgmma<{width}> {{")
    for name, step, ptx, transposes in TYPES:
        for a_in_registers in (False, True):
            print(function(name, step, ptx, transposes, width, a_in_registers))
    print("};")
print("// clang-format on")
