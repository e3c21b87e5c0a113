#!/usr/bin/env python3
"""Decode speed of one answer on a machine that is not idle: the neighbour is made here.

  bench/engine/neighbours.py LEVIN [--model FOLDER] [--tokens N] [--repetitions N]

LEVIN is the program. Circumstances: alone; with one loop that keeps a processor busy; two such processes at the same
time; in a control group with a quota of one processor (as root, with cgroup v1 or v2 writable); more threads than
processors. Each is run with the default number of threads and with one. Prints CSV: circumstance, threads, median
tokens/s of all repetitions (of two processes: their sum), least, most.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys

SPEED = re.compile(r"tokens at ([0-9.]+) tokens/s, \w+\]")


def start(args, threads, wrapper=()):
    command = [*wrapper, args.levin, "run", *([args.model] if args.model else []), "-p", "Write", "-n", str(args.tokens),
               "--ignore-eos", "--temperature", "0", "--spec", "off"]
    if threads:
        command += ["--threads", str(threads)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                            errors="replace")


def speed(process):
    output, _ = process.communicate(timeout=600)
    found = SPEED.findall(output)
    if process.returncode != 0 or not found:
        sys.exit(f"the program failed with {process.returncode}: {output[-500:]}")
    return float(found[-1])


def busy_loop():
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


class Quota:
    """A control group of one processor's time; entered by a shell that then becomes the program."""

    def __init__(self):
        root = pathlib.Path("/sys/fs/cgroup")
        v2 = (root / "cgroup.controllers").exists()
        self.folder = (root if v2 else root / "cpu") / f"levin-bench-{os.getpid()}"
        self.folder.mkdir()
        if v2:
            (self.folder / "cpu.max").write_text("100000 100000")
        else:
            (self.folder / "cpu.cfs_period_us").write_text("100000")
            (self.folder / "cpu.cfs_quota_us").write_text("100000")
        self.wrapper = ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh"]

    def close(self):
        self.folder.rmdir()


def alone(args, threads):
    return speed(start(args, threads))


def beside_a_busy_loop(args, threads):
    neighbour = busy_loop()
    try:
        return speed(start(args, threads))
    finally:
        neighbour.kill()
        neighbour.wait()


def two_at_a_time(args, threads):
    processes = [start(args, threads) for _ in range(2)]
    return sum(speed(p) for p in processes)


def quota_of_one(args, threads):
    quota = Quota()
    try:
        return speed(start(args, threads, quota.wrapper))
    finally:
        quota.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("levin")
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    n = os.cpu_count() or 1
    cases = [("alone", alone, 0), ("alone", alone, 1),
             ("beside a busy loop", beside_a_busy_loop, 0), ("beside a busy loop", beside_a_busy_loop, 1),
             ("two at a time", two_at_a_time, 0), ("two at a time", two_at_a_time, 1)]
    if os.access("/sys/fs/cgroup/cpu", os.W_OK) or os.access("/sys/fs/cgroup/cgroup.procs", os.W_OK):
        cases += [("quota of one processor", quota_of_one, threads) for threads in (0, 1, n)]
    cases += [("alone", alone, n * k) for k in (2, 4)]
    print("circumstance,threads,tokens_per_s,least,most")
    samples = {i: [] for i in range(len(cases))}
    for _ in range(args.repetitions):  # in turns, so that a change of the machine's speed meets all alike
        for i, (_, measure, threads) in enumerate(cases):
            samples[i].append(measure(args, threads))
    for i, (name, _, threads) in enumerate(cases):
        print(f"{name},{threads or 'default'},{statistics.median(samples[i]):.0f},{min(samples[i]):.0f},{max(samples[i]):.0f}")


if __name__ == "__main__":
    main()
