#!/usr/bin/env python3
"""tools/compare_peers with stand-ins for the peers: it exports what they can open, runs all in turn and divides the right way round.

  tests/apps/compare_peers_test.py --levin LEVIN --tool tools/compare_peers
"""
import argparse
import json
import pathlib
import stat
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Each notes its arguments, looks at the file and prints what the program would.
LLAMA_BENCH = """
n = int(sys.argv[sys.argv.index("-r") + 1])
rows = [{"n_prompt": 512, "n_gen": 0, "samples_ts": [1e-3 * (i + 1) for i in range(n)]}, {"n_prompt": 0, "n_gen": 4, "samples_ts": [1e9] * n}]
print(json.dumps(rows))
"""
IK_SWEEP = """
print("some banner")
print("flash_attn = 1\\nllama_init: dsa           = %d\\nllama_init: dsa_idx_topk  = 1" % ("--dsa" in sys.argv), file=sys.stderr)
for n_kv in (0, 512, 1024):
    print(json.dumps({"n_kv": n_kv, "speed_pp": 1000.0 + n_kv, "speed_tg": 100.0 + n_kv}))
"""
PREAMBLE = """#!%s
import json, sys
with open(sys.argv[0] + ".log", "a") as log: log.write(" ".join(sys.argv[1:]) + "\\n")
file = open(sys.argv[sys.argv.index("-m") + 1], "rb").read(4096)
assert file[:4] == b"GGUF"
assert %r in file
"""


def stand_in(folder, name, architecture, body):
    path = folder / name
    path.write_text(PREAMBLE % (sys.executable, architecture) + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--levin", required=True)
    parser.add_argument("--tool", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        llama = stand_in(folder, "llama", b"deepseek32", LLAMA_BENCH)
        ik = stand_in(folder, "ik", b"glm-dsa", IK_SWEEP)
        command = [arguments.tool, str(ROOT / "tests" / "fixtures" / "v32-fp8"), "--dummy", "--levin", arguments.levin, "--depth", "512",
                   "--decode-tokens", "4", "--threads", "1", "--rounds", "2", "--llama-bench", str(llama), "--ik-sweep", str(ik)]
        result = json.loads(subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout)
        assert result["rounds"]["llama.cpp"] == [[1e-3, 1e9]] * 2
        assert result["rounds"]["ik_llama.cpp"] == [[1512.0, 612.0]] * 2  # the row at the depth
        assert all(prefill > 0 and decode > 0 for prefill, decode in result["rounds"]["levin"])
        runs = (folder / "ik.log").read_text().splitlines()
        assert len(runs) == 2 and "-mla 1 -fa on --dsa -fidx" in runs[0] and "-c 1024" in runs[0] and "-n 4" in runs[0]
        table = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        row = next(line for line in table.splitlines() if line.startswith("llama.cpp")).split()
        assert float(row[2]) > 1 > float(row[4]), row  # it prefills slower and decodes faster
        once = json.loads(subprocess.run([*command, "--json", "--llama-once"], check=True, stdout=subprocess.PIPE, text=True).stdout)
        assert once["rounds"]["llama.cpp"] == [[1e-3, 1e9], [2e-3, 1e9]] and len(once["rounds"]["levin"]) == 2
        assert len((folder / "llama.log").read_text().splitlines()) == 2 * 2 + 1
        ik.write_text(ik.read_text().replace('"--dsa" in sys.argv', "0"))
        dense = subprocess.run([*command[:-4], "--ik-sweep", str(ik)], capture_output=True, text=True, check=False)
        assert dense.returncode == 1 and "does not report 'dsa = 1'" in dense.stderr, dense.stderr
        broken = subprocess.run([*command[:2], "--dummy", "--levin", arguments.levin, "--depth", "100"], capture_output=True, text=True,
                                check=False)
        assert broken.returncode == 2 and "--depth 100 is not a multiple of 512" in broken.stderr


main()
