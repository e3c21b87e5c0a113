#!/usr/bin/env python3
"""A GPU that fails while `levin serve` computes: running and new requests get status 503, and the server ends with its exit
code. The fault is a real one: a library that is loaded before the program (break_device.c) runs a kernel that traps.
Exits 77 where there is no GPU."""
import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

NO_DEVICE = 5  # the exit code
PATIENCE = 60  # seconds


def ask(port, stream):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = {"prompt": "import os", "max_tokens": 15000, "ignore_eos": True, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def is_refusal(status, text):
    """Of a stream that had begun the last event says so."""
    if status == 200:
        text = [line[6:] for line in text.splitlines() if line.startswith("data: {")][-1]
    return status in (200, 503) and json.loads(text)["error"]["code"] == "device_lost"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--breaker", required=True, help="the library")
    parser.add_argument("serve_options", nargs="*")
    options = parser.parse_args()
    signal_file = tempfile.mktemp()
    environment = dict(os.environ, LD_PRELOAD=options.breaker, LEVIN_TEST_BREAK_DEVICE_AT=signal_file)
    log = tempfile.TemporaryFile("w+")
    server = subprocess.Popen([options.levin, "serve", options.model, "--device", "cuda", "--port", "0", *options.serve_options],
                              env=environment, stderr=log, stdout=log)

    def text():
        log.seek(0)
        return log.read()

    deadline = time.monotonic() + PATIENCE
    while "ready " not in text():
        if server.poll() == NO_DEVICE:
            print("no device:", text())
            return 77
        if server.poll() is not None or time.monotonic() > deadline:
            print("the server did not start:", text())
            return 1
        time.sleep(0.05)
    port = int(text().split("ready ")[1].split("/v1")[0].rsplit(":", 1)[1])
    replies = []
    clients = [threading.Thread(target=lambda i=i: replies.append(ask(port, i % 2 == 0))) for i in range(6)]
    for client in clients:
        client.start()
    time.sleep(1)
    if replies:
        print("answered before the fault:", replies)
        return 1
    broken_at = time.monotonic()
    with open(signal_file, "w", encoding="utf-8"):
        pass
    for client in clients:
        client.join()
    seconds_to_answers = time.monotonic() - broken_at
    late = None
    try:
        late = ask(port, False)
    except OSError:
        pass  # it has ended
    try:
        code = server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        code = "none: it hangs"
    seconds = time.monotonic() - broken_at
    os.remove(signal_file)
    right = (len(replies) == len(clients) and all(is_refusal(*reply) for reply in replies) and code == NO_DEVICE
             and (late is None or is_refusal(*late)))
    print(f"statuses {sorted(status for status, _ in replies)}, answered {seconds_to_answers:.2f} s after the fault; a request "
          f"after it: {late[0] if late else 'none taken'}; exit code {code} after {seconds:.2f} s")
    print("\n".join(text().splitlines()[-3:]))
    return 0 if right else 1


sys.exit(main())
