"""The public way to what bench_index times: paged logits of DeepGEMM, then torch.topk. One line a shape, as bench_index prints them.

    python3 opponents.py         needs torch with a CUDA device; DeepGEMM where it can be imported, otherwise torch.topk alone

Keys rotate through 1.1 GB, so that they are cold; times are medians of replayed graphs, one launch each way.
"""

import statistics

import torch

try:
    import deep_gemm
except ImportError as error:
    deep_gemm = None
    print(f"# no DeepGEMM: {error}")

PAGES, PAGE_BYTES, LAUNCHES, REPLAYS = 131072, 8448, 12, 11


def time_us(launch):
    """Microseconds of launch(i), i rotating, inside a graph."""
    for i in range(2):
        launch(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(LAUNCHES):
            launch(i)
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / LAUNCHES)
    return statistics.median(times)


def random_e4m3(*shape):
    return (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 140).clamp(-448, 448).to(torch.float8_e4m3fn)


def make_pages():
    pages = torch.empty(PAGES, PAGE_BYTES, device="cuda", dtype=torch.uint8)
    for first in range(0, PAGES, 8192):
        pages[first : first + 8192, :8192] = random_e4m3(8192, 8192).view(torch.uint8)
    scales = (torch.rand(PAGES, 64, device="cuda") + 0.5) * 2**-9
    pages[:, 8192:] = scales.view(torch.uint8).view(PAGES, 256)
    return pages.view(PAGES, 64, 1, 132)


def bench(pages, n_heads, n_tokens, n_requests, length):
    n_pages = n_requests * length // 64
    order = torch.randperm(PAGES, device="cuda", dtype=torch.int32)
    tables = [order[i * n_pages : (i + 1) * n_pages].view(n_requests, -1).contiguous() for i in range(max(1, min(16, PAGES // n_pages)))]
    label = f"H={n_heads} n={n_tokens} B={n_requests} L={length}"
    rows = n_requests * n_tokens
    logits = torch.randn(rows, length, device="cuda")
    times = {"torch.topk": time_us(lambda i: torch.topk(logits, min(2048, length), dim=1))}
    if deep_gemm is not None:
        flat = n_tokens > 2  # more query tokens of a request than its Hopper kernel takes: one request each
        q = random_e4m3(rows, 1, n_heads, 128) if flat else random_e4m3(n_requests, n_tokens, n_heads, 128)
        weights = torch.randn(rows, n_heads, device="cuda")
        lengths = torch.full((rows, 1) if flat else (n_requests, n_tokens), length, device="cuda", dtype=torch.int32)
        if flat:
            tables = [table.repeat_interleave(n_tokens, dim=0).contiguous() for table in tables]
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        # Releases differ in what they call a request's length: one number, or one for each query token.
        for given in (lengths, lengths[:, -1].contiguous()):
            try:
                plan = deep_gemm.get_paged_mqa_logits_metadata(given, 64, sms)
                run = lambda i: deep_gemm.fp8_paged_mqa_logits(q, pages, weights, given, tables[i % len(tables)], plan, length)
                times["DeepGEMM"] = time_us(run)
                times["DeepGEMM + torch.topk"] = time_us(lambda i: torch.topk(run(i), min(2048, length), dim=1))
                break
            except Exception as error:  # an opponent that refuses a shape is no reason to stop
                print(f"# {label}, lengths of {given.dim()} dimensions: {' '.join(str(error).split())[:200]}")
    for name, us in times.items():
        print(f"{name},{label},{us:.2f}", flush=True)


def main():
    torch.manual_seed(1)
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name(0)}, DeepGEMM {getattr(deep_gemm, '__version__', 'none')}")
    pages = make_pages()
    for n_heads in (64, 32):
        for n_tokens in (1, 2, 4):
            for n_requests, length in ((1, 8192), (1, 65536), (4, 8192), (4, 65536), (32, 65536), (128, 8192)):
                bench(pages, n_heads, n_tokens, n_requests, length)


main()
