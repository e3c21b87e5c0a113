"""lm-eval's local-completions against the server: loglikelihoods are those of `levin trace`, greedy or not as its logits say.

  python3 -m venv VENV && VENV/bin/pip install 'lm-eval[api]' transformers
  VENV/bin/python tests/serve/lm_eval_test.py build/release/apps/levin/levin

Starts the program with the demonstration model and speculation on, takes the server's own tokenizer (the client asks for it), sends
contexts and continuations in batches and side by side, and runs each as token ids through `levin trace`. Prints a line a check;
exits with 1 if one fails.
"""
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is to be fetched
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402
import numpy  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "models/demo-v32")
PAIRS = [("What is the capital of Japan?", " Tokyo"), ("The capital of Japan is", " Tokyo."), ("def read_file(", "path):\n    return"),
         ("river stone apple", " river stone apple"), ("a", "b"), ("日本の", "首都"), ("The country is Japan. " * 20, "Its capital is Tokyo."),
         ("x = 1\n", "y = 2\nz = 3\n")]


def read_logits(path):
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + length])["logits"]
    begin, end = entry["data_offsets"]
    return numpy.frombuffer(data[8 + length + begin:8 + length + end], "<f4").reshape(entry["shape"]).astype(numpy.float64)


def traced(program, ids, n_context):
    """Sum of the continuation's log probabilities, and whether each token is a likeliest one."""
    with tempfile.TemporaryDirectory() as folder:
        ids_file, out = folder + "/ids", folder + "/out.safetensors"
        pathlib.Path(ids_file).write_text(" ".join(map(str, ids)))
        subprocess.run([program, "trace", MODEL, "--ids-file", ids_file, "--out", out], check=True, capture_output=True)
        logits = read_logits(out)
    total, greedy = 0.0, True
    for i in range(n_context, len(ids)):
        row = logits[i - 1]
        top = row.max()
        total += row[ids[i]] - top - math.log(numpy.exp(row - top).sum())
        greedy = greedy and row[ids[i]] == top
    return total, greedy


def check_loglikelihoods(program, lm):
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(PAIRS)]
    found = lm.loglikelihood(requests)
    n_greedy = 0
    for (context, continuation), (logprob, greedy) in zip(PAIRS, found):
        context_ids, continuation_ids = lm._encode_pair(context, continuation)
        right, right_greedy = traced(program, context_ids + continuation_ids, len(context_ids))
        assert abs(logprob - right) < 1e-9 * max(1, abs(right)), (context, continuation, logprob, right)
        assert greedy == right_greedy, (context, continuation)
        n_greedy += greedy
    assert 0 < n_greedy < len(PAIRS), "the pairs are to have both"


def check_rolling(program, lm):
    text = "The capital of Japan is Tokyo. river stone apple"
    found = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])[0]
    ids = lm.tok_encode(text)
    right, _ = traced(program, [lm.prefix_token_id] + ids, 1)
    assert abs(found - right) < 1e-9 * abs(right), (found, right)


def check_generation(program, lm):
    request = Instance("generate_until", {}, ("The capital of Japan is", {"until": ["."], "max_gen_toks": 12, "temperature": 0}), 0)
    text = lm.generate_until([request])[0]
    assert "." not in text and text, text


def main():
    program = sys.argv[1]
    server = subprocess.Popen([program, "serve", MODEL, "--port", "0", "--max-model-len", "4096", "--spec-steps", "3"],
                              stderr=subprocess.PIPE, text=True)
    address = None
    for line in server.stderr:
        if found := re.search(r"http://\S+?:\d+", line):
            address = found.group()
            break
    n_failed = 0
    try:
        for settings in ({"num_concurrent": 1, "batch_size": 1}, {"num_concurrent": 4, "batch_size": 3}):
            lm = LocalCompletionsAPI(model="demo-v32", base_url=address + "/v1/completions", tokenizer_backend="remote",
                                     max_length=2048, max_retries=1, **settings)
            for check in (check_loglikelihoods, check_rolling, check_generation):
                try:
                    check(program, lm)
                    print(f"ok    {check.__name__} {settings}")
                except Exception as error:  # a check that fails does not end the others
                    n_failed += 1
                    print(f"FAIL  {check.__name__} {settings}: {type(error).__name__}: {error}")
    finally:
        server.terminate()
        server.wait(timeout=60)
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
