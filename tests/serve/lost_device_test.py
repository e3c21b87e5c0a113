#!/usr/bin/env python3
"""A GPU that fails while `levin serve` computes: running and new requests get status 503, and the server ends with its exit
code; also one that writes pages to disk, which the next server reads. The fault is a real one: a library that is loaded before
the program (break_device.c) runs a kernel that traps. Exits 77 where there is no GPU."""
import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

NO_DEVICE = 5  # exit code of the program
NO_GPU = 77  # of this test
PATIENCE = 60  # seconds
PROMPT = "import os\n" * 200  # of whole pages


def ask(port, stream, max_tokens=15000):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def is_refusal(status, text):
    """Of a stream that had begun the last event says so."""
    if status == 200:
        text = [line[6:] for line in text.splitlines() if line.startswith("data: {")][-1]
    return status in (200, 503) and json.loads(text)["error"]["code"] == "device_lost"


class Server:
    """`levin serve` on a free port; its log is text()."""

    def __init__(self, options, serve_options, environment):
        self.log = tempfile.TemporaryFile("w+")
        command = [options.levin, "serve", options.model, "--device", "cuda", "--port", "0", *serve_options]
        self.process = subprocess.Popen(command, env=environment, stderr=self.log, stdout=self.log)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def wait_until_ready(self):
        """Its port, or None if it ended or takes too long."""
        deadline = time.monotonic() + PATIENCE
        while "ready " not in self.text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        return int(self.text().split("ready ")[1].split("/v1")[0].rsplit(":", 1)[1])

    def wait_for_exit_code(self):
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "none: it hangs"


def loses_its_device(options, serve_options):
    """Exit code of this test for one server, which has answered a request before, so that pages of its prompt are kept."""
    signal_file = tempfile.mktemp()
    server = Server(options, serve_options, dict(os.environ, LD_PRELOAD=options.breaker, LEVIN_TEST_BREAK_DEVICE_AT=signal_file))
    port = server.wait_until_ready()
    if port is None:
        print("the server did not start:", server.text())
        return NO_GPU if server.process.poll() == NO_DEVICE else 1
    status, text = ask(port, False, max_tokens=20)
    if status != 200:
        print("no answer before the fault:", status, text)
        return 1
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
    code = server.wait_for_exit_code()
    seconds = time.monotonic() - broken_at
    os.remove(signal_file)
    right = (len(replies) == len(clients) and all(is_refusal(*reply) for reply in replies) and code == NO_DEVICE
             and (late is None or is_refusal(*late)))
    print(f"statuses {sorted(status for status, _ in replies)}, answered {seconds_to_answers:.2f} s after the fault; a request "
          f"after it: {late[0] if late else 'none taken'}; exit code {code} after {seconds:.2f} s")
    print("\n".join(server.text().splitlines()[-3:]))
    return 0 if right else 1


def answer_of_a_new_server(options, serve_options):
    """To the prompt that the server that lost its device had: text and cached tokens; or None."""
    server = Server(options, serve_options, os.environ)
    port = server.wait_until_ready()
    status, text = ask(port, False, max_tokens=20) if port else (0, server.text())
    server.process.terminate()
    code = server.wait_for_exit_code()
    if status == 200 and code == 0:
        reply = json.loads(text)
        return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    print(f"a new server: status {status}, exit code {code}: {text}")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--breaker", required=True, help="the library")
    parser.add_argument("serve_options", nargs="*")
    options = parser.parse_args()
    code = loses_its_device(options, options.serve_options)
    if code:
        return code
    with tempfile.TemporaryDirectory() as folder:
        with_pages = [*options.serve_options, "--cache-dir", folder]
        code = loses_its_device(options, with_pages)
        if code:
            return code
        computed, read = (answer_of_a_new_server(options, o) for o in (options.serve_options, with_pages))
    print(f"new servers, without and with the page files that were left: {computed}, {read}")
    right = computed and read and computed[0] == read[0] and computed[1] == 0 and read[1] > 0
    return 0 if right else 1


sys.exit(main())
