"""The public way to what bench_index times: paged logits of DeepGEMM, then torch.topk. One line a shape, as bench_index prints them.

    python3 opponents.py [--sources DIR] [--build DIR] [--only scores|topk] [--heads H] [--tokens N] [--batch B] [--length L]

Needs torch with a CUDA device. --sources names a recursive checkout of DeepGEMM, which is built against that very torch, or what tools/gpu_opponents
brings; otherwise a DeepGEMM that is installed is taken, and without one only torch.topk is timed.
Keys rotate through 1.1 GB, so that they are cold; times are medians of replayed graphs. DeepGEMM's plan of a step is not timed, nor is ours.
Its kernels are launched as ours, each before the one ahead has ended. More query tokens of a request than its Hopper kernel takes (two) are
given to it flattened, one request each.
"""

import argparse
import os
import pathlib
import shutil
import sys

import torch
from torch.utils import cpp_extension

from graph_time import time_us

deep_gemm = None  # load_deep_gemm()

PAGES, PAGE_TOKENS, PAGE_BYTES, N_TOPK = 131072, 64, 8448, 2048
LAUNCHES = 24
SCORE_SHAPES = ((1, 8192), (1, 65536), (8, 32768), (32, 8192), (32, 65536), (128, 8192), (256, 8192))
TOPK_SHAPES = ((1, 4096), (1, 8192), (1, 16384), (1, 65536), (4, 8192), (4, 32768), (4, 65536), (32, 65536))


def build_deep_gemm(sources, build_dir):
    """Its package in build_dir, where its kernels are compiled too when they are first called."""
    third_party = sources.resolve() / "third-party"
    includes = [third_party / name / "include" for name in ("cutlass", "fmt")]
    for include in includes:
        if not include.is_dir():
            raise SystemExit(f"no folder {include}: --sources names a recursive checkout of DeepGEMM")
    package = build_dir.resolve() / "deep_gemm"
    shutil.copytree(sources / "deep_gemm", package, dirs_exist_ok=True)
    for name in ("cutlass", "cute"):
        link = package / "include" / name
        link.unlink(missing_ok=True)
        link.symlink_to(includes[0] / name)
    cccl = pathlib.Path(cpp_extension.CUDA_HOME) / "include" / "cccl"
    sys.modules["deep_gemm._C"] = cpp_extension.load(
        name="_C",
        sources=[str(sources.resolve() / "csrc" / "python_api.cpp")],
        build_directory=str(package),
        extra_include_paths=[str(path) for path in (package / "include", *includes, cccl)],
        extra_cflags=["-O3", "-w"],
        # Where the compiler links a C++ library of its own into it, std::regex must not find the locale of torch's.
        extra_ldflags=["-lnvrtc", "-Wl,--exclude-libs,ALL"],
        with_cuda=True,
    )
    os.environ.setdefault("DG_JIT_CACHE_DIR", str(build_dir.resolve() / "jit"))
    sys.path.insert(0, str(package.parent))


def load_deep_gemm(sources, build_dir):
    global deep_gemm
    if sources is not None:
        build_deep_gemm(sources, build_dir)
    try:
        import deep_gemm
    except ImportError as error:
        print(f"# no DeepGEMM: {error}")
        return
    deep_gemm.set_pdl(True)


def random_e4m3(*shape):
    return (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 140).clamp(-448, 448).to(torch.float8_e4m3fn)


def make_pages():
    """[PAGES, 64, 1, 132] bytes as DeepGEMM sees them: 64 keys of 128 e4m3, then their 64 f32 scales."""
    pages = torch.empty(PAGES, PAGE_BYTES, device="cuda", dtype=torch.uint8)
    for first in range(0, PAGES, 8192):
        pages[first : first + 8192, :8192] = random_e4m3(8192, 8192).view(torch.uint8)
    scales = (torch.rand(PAGES, PAGE_TOKENS, device="cuda") + 0.5) * 2**-9
    pages[:, 8192:] = scales.view(torch.uint8).view(PAGES, 256)
    return pages.view(PAGES, PAGE_TOKENS, 1, 132)


class PagedLogits:
    """One step's logits by DeepGEMM; launch i reads the next stretch of the shuffled pages."""

    def __init__(self, pages, n_heads, n_tokens, n_requests, length):
        flat = n_tokens > 2
        n_pages = n_requests * length // PAGE_TOKENS
        order = torch.randperm(PAGES, device="cuda", dtype=torch.int32)
        self.tables = [order[i : i + n_pages].view(n_requests, -1) for i in range(0, PAGES - n_pages + 1, n_pages)][:LAUNCHES]
        if flat:
            self.tables = [table.repeat_interleave(n_tokens, dim=0) for table in self.tables]
        self.tables = [table.contiguous() for table in self.tables]
        rows = n_requests * n_tokens
        shape = (rows, 1) if flat else (n_requests, n_tokens)
        self.pages, self.length = pages, length
        self.q = random_e4m3(*shape, n_heads, 128)
        self.weights = torch.randn(rows, n_heads, device="cuda")
        self.lengths = torch.full(shape, length, device="cuda", dtype=torch.int32)
        self.plan = deep_gemm.get_paged_mqa_logits_metadata(self.lengths, PAGE_TOKENS, deep_gemm.get_num_sms())

    def launch(self, i):
        table = self.tables[i % len(self.tables)]
        return deep_gemm.fp8_paged_mqa_logits(self.q, self.pages, self.weights, self.lengths, table, self.plan, self.length)

    def difference(self):
        """The largest from plain arithmetic in f32, over the largest logit."""
        q = self.q.flatten(0, 1).float()  # [rows, heads, 128]
        table = self.tables[0].repeat_interleave(q.shape[0] // self.tables[0].shape[0], dim=0)
        page = self.pages.view(PAGES, PAGE_BYTES)[table.long()]  # [rows, pages, bytes]
        keys = page[..., :8192].contiguous().view(torch.float8_e4m3fn).float().view(q.shape[0], -1, 128)
        scale = page[..., 8192:].contiguous().view(torch.float32).view(q.shape[0], 1, -1)
        dots = torch.einsum("rhd,rsd->rhs", q.double(), keys.double()).relu()
        plain = torch.einsum("rhs,rh->rs", dots, self.weights.double()) * scale[:, 0]
        return ((self.launch(0) - plain).abs().max() / plain.abs().max()).item()


def report(name, shape, us):
    print("{},H={} n={} B={} L={},{:.2f}".format(name, *shape, us), flush=True)


def bench_scores(pages, shape):
    report("DeepGEMM scores", shape, time_us(PagedLogits(pages, *shape).launch))


def bench_topk(pages, shape):
    _, n_tokens, n_requests, length = shape
    ready = torch.randn(n_requests * n_tokens, length, device="cuda")
    report("torch.topk", shape, time_us(lambda i: torch.topk(ready, min(N_TOPK, length), dim=1)))
    if deep_gemm is not None:
        logits = PagedLogits(pages, *shape)
        report("DeepGEMM + torch.topk", shape, time_us(lambda i: torch.topk(logits.launch(i), min(N_TOPK, length), dim=1)))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/deepgemm"))
    parser.add_argument("--only", choices=("scores", "topk"))
    for name in ("heads", "tokens", "batch", "length"):
        parser.add_argument(f"--{name}", type=int, default=0, help="0 for all")
    return parser.parse_args()


def main():
    wanted = parse()
    load_deep_gemm(wanted.sources, wanted.build)
    torch.manual_seed(1)
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name(0)}, DeepGEMM {getattr(deep_gemm, '__version__', 'none')}")
    pages = make_pages()
    if deep_gemm is not None:
        for n_tokens in (1, 2, 3):
            print(f"# difference from plain arithmetic, n={n_tokens}: {PagedLogits(pages, 64, n_tokens, 2, 4096).difference():.1e}")
    only = (wanted.heads, wanted.tokens, wanted.batch, wanted.length)
    benches = [(bench_topk, (1, 2, 4), TOPK_SHAPES)]
    if deep_gemm is not None:
        benches.insert(0, (bench_scores, (1, 2, 3, 4), SCORE_SHAPES))
    for bench, all_tokens, shapes in benches:
        if wanted.only not in (None, bench.__name__.removeprefix("bench_")):
            continue
        for shape in ((h, n, b, length) for h in (64, 32) for n in all_tokens for b, length in shapes):
            if all(want in (0, value) for want, value in zip(only, shape)):
                bench(pages, shape)


if __name__ == "__main__":
    main()
