"""Structured output over many schemas: the answers are valid, and the same with speculation and without.

  python3 -m venv VENV && VENV/bin/pip install jsonschema
  VENV/bin/python tests/serve/structure_test.py build/release/apps/levin/levin [--schemas 300] [--seed 1]

Serves the demonstration model's tokenizer over dummy weights, whose answers are as random as can be, once with drafts and once
without, draws schemas in which every string and every array is bounded, and asks both for each, greedily or by chance, some with
reasoning allowed to end at once, some as the parameters of a tool that must be called. The answers are judged by the jsonschema package. Prints
a line every 50 schemas; exits with 1 if an answer is invalid or differs.
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import re
import subprocess
import sys
import urllib.request

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATTERNS = [r"^[A-Z][a-z]{1,8}$", r"^\d{3}-\d{2}$", r"^(red|green|blue)( light)?$", r"^[^\"\\]{2,6}$", r"^\w{1,9}@\w{2,8}\.(org|com)$",
            r"^[α-ω]{1,4}$", r"^\S{1,5}$", r"^(a|b|\\|\"){0,5}c{2,3}$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email", "hostname"]
NAMES = ["name", "count", "city", "a b", "weiß", "日本", "is_open", "x\"y", "tags", "next", "$id", "value/1"]


class Draw:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}

    def string(self):
        kind = self.random.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": self.random.choice(PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        low = self.random.choice([0, 0, 1, 3])
        return {"type": "string", "minLength": low, "maxLength": low + self.random.randrange(12)}

    def number(self):
        low = round(self.random.uniform(-500, 500), self.random.randrange(3))
        high = low + self.random.choice([0, 0.5, 1, 7, 1000])
        whole = self.random.random() < 0.5
        if whole:
            low, high = int(low), int(high) + 1
        schema = {"type": "integer" if whole else "number", "minimum": low, "maximum": high}
        if self.random.random() < 0.3:
            schema["exclusiveMaximum"] = schema.pop("maximum") + 1
        return schema

    def array(self, depth):
        low = self.random.choice([0, 0, 1, 2])
        schema = {"type": "array", "items": self.schema(depth - 1), "minItems": low, "maxItems": low + self.random.randrange(1, 3)}
        if self.random.random() < 0.2:
            schema["prefixItems"] = [self.schema(0), self.schema(0)]
        return schema

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randrange(1, 5))
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names},
                  "required": [name for name in names if self.random.random() < 0.6]}
        if self.random.random() < 0.7:
            schema["additionalProperties"] = False
        if self.random.random() < 0.3:
            schema["description"] = "an object"
        return schema

    def kinds(self, depth):
        key = self.random.choice(["kind", "type"])
        parts = []
        for name in ("cat", "dog"):
            part = self.object(depth - 1)
            part["properties"] = {key: {"const": name}, **part["properties"]}
            part["required"] = [key] + part["required"]
            parts.append(part)
        return {"oneOf": parts}

    def schema(self, depth):
        simple = [self.string, self.number, lambda: {"type": self.random.choice(["boolean", "null", ["boolean", "null"]])},
                  lambda: {"enum": self.random.sample(["one", "two \"2\"", 3, None, True, {"x": [1]}], 3)},
                  lambda: {"const": self.random.choice(["ü", 0, -1.5, [], {"a": "b"}])}]
        if depth <= 0:
            return self.random.choice(simple)()
        deep = [lambda: self.array(depth), lambda: self.object(depth), lambda: self.object(depth), lambda: self.kinds(depth),
                lambda: {"anyOf": [self.schema(depth - 1), {"type": "null"}]}, lambda: self.reference(depth),
                lambda: {"allOf": [self.object(depth)], "title": "one"}]
        return self.random.choice(deep + simple[:2])()

    def reference(self, depth):
        name = f"d{len(self.definitions)}"
        self.definitions[name] = {}
        self.definitions[name] = self.schema(depth - 1)
        return {"$ref": f"#/$defs/{name}"}

    def document(self):
        schema = self.schema(3)
        return {**schema, "$defs": self.definitions} if self.definitions else schema


class Server:
    def __init__(self, program, *more):
        self.process = subprocess.Popen([program, "serve", str(ROOT / "models/demo-v32"), "--load-format", "dummy", "--port", "0",
                                         "--max-model-len", "8192", "--cache-tokens", "32768", *more],
                                        stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://\S+?:\d+", line):
                self.address = found.group()
                return
        raise SystemExit("the server did not start")

    def ask(self, body):
        request = urllib.request.Request(self.address + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=900) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            return {"refused": refused.read().decode()}

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)


def body_of(i, schema):
    body = {"messages": [{"role": "user", "content": f"Question {i}"}], "max_tokens": 4000, "seed": i,
            "temperature": [0, 0.8, 1.5][i % 3], "logprobs": True}
    as_tool = i % 5 == 4 and schema.get("type") == "object" and not any("\"" in name for name in schema["properties"])
    if as_tool:
        tool = {"name": "f", "strict": True, "parameters": schema}
        return {**body, "tools": [{"type": "function", "function": tool}], "tool_choice": "required", "parallel_tool_calls": False}
    return {**body, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}}


def check(i, schema, servers):
    """What is wrong with the answers, or nothing."""
    body = body_of(i, schema)
    answers = [server.ask(body) for server in servers]
    for answer in answers:
        if "refused" in answer:
            return f"refused: {answer['refused']}"
    choices = [answer["choices"][0] for answer in answers]
    tokens = [[entry["bytes"] for entry in choice["logprobs"]["content"]] for choice in choices]
    if tokens[0] != tokens[1]:
        return "the tokens differ with speculation and without"
    message = choices[0]["message"]
    text = message["tool_calls"][0]["function"]["arguments"] if message.get("tool_calls") else message["content"]
    if choices[0]["finish_reason"] == "length":
        return f"no end: {text[:200]}"
    try:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator,
                            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    except (ValueError, jsonschema.ValidationError) as wrong:
        return f"{wrong}\n{text}"
    return None


def main():
    options = argparse.ArgumentParser()
    options.add_argument("program")
    options.add_argument("--schemas", type=int, default=300)
    options.add_argument("--seed", type=int, default=1)
    options = options.parse_args()
    servers = [Server(options.program, "--spec-steps", "3"), Server(options.program, "--spec", "off")]
    n_failed = n_done = 0
    try:
        schemas = [Draw(options.seed * 100_000 + i).document() for i in range(options.schemas)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for i, wrong in enumerate(pool.map(lambda i: check(i, schemas[i], servers), range(len(schemas)))):
                n_done += 1
                if wrong:
                    n_failed += 1
                    print(f"FAIL  schema {i}: {wrong}\n{json.dumps(schemas[i])}")
                if n_done % 50 == 0:
                    print(f"{n_done} schemas, {n_failed} failed", flush=True)
        metrics = urllib.request.urlopen(servers[0].address + "/metrics").read().decode()
        accepted = re.search(r"^levin_\S*accepted\S* ([0-9.]+)$", metrics, re.M)
        print("drafts accepted:", accepted.group(1) if accepted else "unknown")
    finally:
        for server in servers:
            server.stop()
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
