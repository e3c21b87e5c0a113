"""Times of launches on a CUDA device, for the scripts that time other programs next to ours."""

import statistics
import time

import torch


def time_us(launch, n_launches=24, n_replays=11, idle_ms=0, warm_ms=0):
    """Microseconds of one launch(i), i = 0 .. n_launches - 1, inside a graph: the median of its replays,
    after idle_ms of nothing and warm_ms of replays."""
    for i in range(2):
        launch(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(n_launches):
            launch(i)
    time.sleep(idle_ms / 1000)
    graph.replay()
    torch.cuda.synchronize()
    warm_end = time.monotonic() + warm_ms / 1000
    while time.monotonic() < warm_end:
        graph.replay()
        torch.cuda.synchronize()
    times = []
    for _ in range(n_replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / n_launches)
    return statistics.median(times)
