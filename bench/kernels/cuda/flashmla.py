"""What bench_sparse_mla times, by FlashMLA: builds its sparse Hopper kernels from source and times them, after Levin's if asked to.

    python3 flashmla.py --sources DIR [--cutlass DIR] [--build DIR] [--bench PROGRAM] [--spread S]
                        [--idle MS] [--warm MS]

    --sources  a checkout of FlashMLA              --cutlass  the include folder of its CUTLASS, if that is not its submodule
    --build    where its objects are kept          --bench    bench_sparse_mla, timed before it on the same device, under the same conditions
    --spread   standard deviation of the scores    --idle, --warm  for how long the device does nothing, and then runs a case, before it is timed

tools/gpu_opponents brings the sources and calls this.

Needs torch with a CUDA device, and nvcc. One line a shape, as bench_sparse_mla prints them: kind, shape, us, TFLOP/s. Rows are cold, as there:
2048 indices of 64 thousand consecutive slots, rows of 656 bytes in a cache of one million slots, launches inside a graph, medians of its
replays. FlashMLA's combine kernel is timed with it; the plan of its split points is not. Its prefill reads rows of 1152 bytes.
"""

import argparse
import os
import pathlib
import subprocess
import sys

import torch
from torch.utils import cpp_extension

from graph_time import time_us

TOPK, SPAN, SLOTS, LATENT, ROPE = 2048, 65536, 1 << 20, 512, 64
DECODE_SHAPES = {  # heads: (requests, tokens of each)
    128: ((1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (16, 1), (32, 1), (32, 2), (32, 4), (128, 2)),
    64: ((1, 1), (8, 1), (128, 2)),
}
PREFILL_HEADS, PREFILL_TOKENS = (128, 64), 4096

BINDINGS = """
#include <pybind11/pybind11.h>
#include "sparse_fwd.h"
#include "sparse_decode.h"
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("sparse_decode_fwd", &sparse_attn_decode_interface);
  m.def("sparse_prefill_fwd", &sparse_attn_prefill_interface);
}
"""
KERNELS = (
    "smxx/decode/*/*.cu",
    "sm90/decode/sparse_fp8/instantiations/*.cu",
    "sm90/prefill/sparse/instantiations/*.cu",
    "sm90/prefill/sparse/fwd.cu",
)
NVCC_FLAGS = ["-gencode=arch=compute_90a,code=sm_90a", "--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math"]


def build(sources, cutlass, build_dir):
    """Its Python module, of the sparse Hopper kernels alone."""
    csrc = sources.resolve() / "csrc"
    files = [file for pattern in KERNELS for file in sorted(csrc.glob(pattern))]
    if not files:
        raise SystemExit(f"no kernels under {csrc}: --sources names a checkout of FlashMLA")
    if not (cutlass / "cutlass" / "cutlass.h").exists():
        raise SystemExit(f"no cutlass/cutlass.h in {cutlass}: --cutlass names the include folder of CUTLASS")
    build_dir.mkdir(parents=True, exist_ok=True)
    bindings = build_dir / "bindings.cpp"
    if not bindings.exists() or bindings.read_text() != BINDINGS:  # a newer file would be compiled again
        bindings.write_text(BINDINGS)
    sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)  # its Blackwell kernels are named, never called and not built
    flags = ["-O3", "-std=c++20", "-DNDEBUG", "-w"]
    undefine = [f"-U__CUDA_NO_{name}__" for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")]
    return cpp_extension.load(
        name="flash_mla_sparse",
        sources=[str(file) for file in (bindings, *files)],
        build_directory=str(build_dir),
        extra_include_paths=[str(path) for path in (csrc, csrc / "api", csrc / "kerutils" / "include", cutlass.resolve())],
        extra_cflags=flags,
        extra_cuda_cflags=[*flags, *undefine, *NVCC_FLAGS],
        extra_ldflags=["-Wl,-z,lazy"],
    )


def report(kind, heads, requests, tokens, us):
    flop = 2 * requests * tokens * heads * TOPK * (2 * LATENT + ROPE)
    print(f"{kind},H={heads} B={requests} n={tokens},{us:.2f},{flop / us * 1e-6:.0f} TFLOP/s", flush=True)


class Conditions:
    """Queries and rows have a standard deviation of 1: the softmax scale sets that of the scores."""

    def __init__(self, spread, idle_ms, warm_ms):
        self.scale = spread * (LATENT + ROPE) ** -0.5
        self.idle_ms, self.warm_ms = idle_ms, warm_ms

    def time_us(self, launch, n_launches):
        return time_us(launch, n_launches, idle_ms=self.idle_ms, warm_ms=self.warm_ms)


def random_bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def make_cache():
    """[SLOTS / 64, 64, 1, 656] bytes: 512 e4m3, 4 f32 scales, 64 bf16."""
    rows = torch.empty(SLOTS, LATENT + 16 + 2 * ROPE, device="cuda", dtype=torch.uint8)
    rows[:, :LATENT] = torch.randn(SLOTS, LATENT, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn).view(torch.uint8)
    rows[:, LATENT : LATENT + 16] = torch.ones(SLOTS, 4, device="cuda").view(torch.uint8)
    rows[:, LATENT + 16 :] = torch.randn(SLOTS, ROPE, device="cuda", dtype=torch.bfloat16).view(torch.uint8)
    return rows.view(SLOTS // 64, 64, 1, -1).view(torch.float8_e4m3fn)


def random_topk(*shape, span, first=0):
    """[*shape, TOPK] ascending indices of `span` slots from `first` on."""
    step = span // TOPK
    return (first + torch.arange(TOPK, device="cuda") * step + torch.randint(0, step, (*shape, TOPK), device="cuda")).int()


def bench_decode(module, conditions, cache, heads, requests, tokens):
    n_launches = 24 if requests * tokens <= 64 else 8
    first = torch.randint(0, SLOTS - SPAN, (n_launches, requests, 1, 1), device="cuda")
    topk = random_topk(n_launches, requests, tokens, span=SPAN, first=first)
    q = random_bf16(requests, tokens, heads, LATENT + ROPE)
    plan = (None, None)

    def launch(i):
        nonlocal plan
        plan = module.sparse_decode_fwd(q, cache, topk[i], None, None, *plan, None, None, None, LATENT, conditions.scale)[2:4]

    report("FlashMLA", heads, requests, tokens, conditions.time_us(launch, n_launches))


def bench_prefill(module, conditions, heads):
    rows = random_bf16(SPAN, 1, LATENT + ROPE)
    rows[..., :LATENT] = rows[..., :LATENT].to(torch.float8_e4m3fn).to(torch.bfloat16)  # as rows of 656 bytes would be
    q = random_bf16(PREFILL_TOKENS, heads, LATENT + ROPE)
    topk = random_topk(PREFILL_TOKENS, 1, span=SPAN)
    us = conditions.time_us(lambda i: module.sparse_prefill_fwd(q, rows, topk, conditions.scale, LATENT, None, None), 2)
    report("FlashMLA bf16 rows", heads, 1, PREFILL_TOKENS, us)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=pathlib.Path, required=True)
    parser.add_argument("--cutlass", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/flashmla"))
    parser.add_argument("--bench", type=pathlib.Path)
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--idle", type=int, default=0)
    parser.add_argument("--warm", type=int, default=200)
    return parser.parse_args()


def main():
    wanted = parse()
    module = build(wanted.sources, wanted.cutlass or wanted.sources / "csrc/cutlass/include", wanted.build)
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name(0)}", flush=True)
    if wanted.bench is not None:
        given = {"--spread": wanted.spread, "--idle": wanted.idle, "--warm": wanted.warm}
        subprocess.run([wanted.bench.resolve(), *(str(word) for option in given.items() for word in option)], check=True)
    conditions = Conditions(wanted.spread, wanted.idle, wanted.warm)
    torch.manual_seed(1)
    for heads in PREFILL_HEADS:
        bench_prefill(module, conditions, heads)
    cache = make_cache()
    for heads, shapes in DECODE_SHAPES.items():
        for requests, tokens in shapes:
            bench_decode(module, conditions, cache, heads, requests, tokens)


if __name__ == "__main__":
    main()
