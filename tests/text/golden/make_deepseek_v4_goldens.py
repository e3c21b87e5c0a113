#!/usr/bin/env python3
"""Prompts of the reference encoders of DeepSeek-V4 and V4.1, to compare the chat formats with.

    make_deepseek_v4_goldens.py encoding_dsv4.py > deepseek_v4.jsonl
    make_deepseek_v4_goldens.py encoding_dsv41.py > deepseek_v41.jsonl

The encoder lies in the folder encoding/ of the checkpoint. Each line has a request, drawn from a fixed seed, and the FNV-1a
hash of the prompt that the encoder makes of it; two of the encoder's own test vectors come first. V4.1's knows more efforts, and
refuses calls whose arguments are no object.
"""
import copy
import importlib.util
import json
import sys

N_CASES = 250
WORDS = ["Oslo", "snow", "a < b", "\n\n", "naïve", "天气", "{}", "\"q\"", "</think>", "<｜User｜>", "｜DSML｜", "", " ", "1.50"]
VALUES = ['"x"', "1", "-0.5", "1e16", "true", "null", '[1, "é"]', '{"a": {"b": []}}', '"line\\nbreak"', "123456789012345678901"]
MASK = (1 << 64) - 1


class Draw:
    """The generator of tests/text/variants.h."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 33) % n

    def of(self, items):
        return items[self.below(len(items))]

    def text(self, most=4):
        return "".join(self.of(WORDS) for _ in range(self.below(most + 1)))


def fnv(text):
    value = 14695981039346656037
    for byte in text.encode():
        value = ((value ^ byte) * 1099511628211) & MASK
    return value


def arguments(draw):
    if draw.below(8) == 0:
        return draw.of(["{broken", "", "text"])
    members = ['%s: %s' % (json.dumps("k%d" % i, ensure_ascii=False), draw.of(VALUES)) for i in range(draw.below(4))]
    return "{" + ", ".join(members) + "}"


def tools(draw):
    return [{"type": "function", "function": {"name": "f%d" % i, "description": draw.text(), "parameters": {"x": draw.below(9)}}}
            for i in range(1 + draw.below(3))]


def message(draw):
    role = draw.of(["system", "developer", "latest_reminder", "user", "user", "user", "assistant", "assistant", "assistant",
                    "tool", "tool"])
    out = {"role": role, "content": draw.text()}
    if role == "developer":
        out["content"] += "d"
    if role in ("system", "developer") and draw.below(6) == 0:
        out["tools"] = tools(draw)
    if role in ("system", "developer") and draw.below(8) == 0:
        out["response_format"] = {"type": "object", "n": draw.below(9)}
    if role == "assistant":
        out["reasoning_content"] = draw.text()
        calls = [{"type": "function", "id": "c%d" % draw.below(4), "function": {"name": "f%d" % i, "arguments": arguments(draw)}}
                 for i in range(draw.of([0, 0, 1, 2, 3]))]
        if calls:
            out["tool_calls"] = calls
    if role == "tool":
        out["tool_call_id"] = draw.of(["c0", "c1", "c2", "c3", ""])
    return out


def is_object(text):
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def with_objects(messages):
    for m in messages:
        for call in m.get("tool_calls", []):
            if not is_object(call["function"]["arguments"]):
                call["function"]["arguments"] = "{}"
    return messages


def drawn_cases(efforts):
    for i in range(N_CASES):
        draw = Draw(i)
        yield {
            "messages": [message(draw) for _ in range(1 + draw.below(9))],
            "thinking": draw.below(3) > 0,
            "keep_reasoning": draw.below(4) == 0,
            "effort": draw.of(efforts),
        }


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather for a specific location", "parameters": {
    "type": "object", "properties": {
        "location": {"type": "string", "description": "The city name"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "Temperature unit"}}, "required": ["location"]}}}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Search the web for information", "parameters": {
    "type": "object", "properties": {
        "query": {"type": "string", "description": "Search query"},
        "num_results": {"type": "integer", "description": "Number of results to return"}}, "required": ["query"]}}}


def published_cases():
    """The first two of the test vectors that come with the encoder."""
    call = {"id": "call_001", "type": "function",
            "function": {"name": "get_weather", "arguments": "{\"location\": \"Beijing\", \"unit\": \"celsius\"}"}}
    system = {"role": "system", "content": "You are a helpful assistant."}
    yield {"thinking": True, "keep_reasoning": False, "effort": None, "messages": [
        dict(system, tools=[WEATHER, SEARCH]),
        {"role": "user", "content": "What's the weather in Beijing?"},
        {"role": "assistant", "reasoning_content": "The user wants to know the weather in Beijing. I should use the get_weather tool.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_001", "content": "{\"temperature\": 22, \"condition\": \"sunny\", \"humidity\": 45}"},
        {"role": "assistant", "reasoning_content": "Got the weather data. Let me format a nice response.",
         "content": "The weather in Beijing is currently sunny with a temperature of 22°C and 45% humidity."}]}
    yield {"thinking": True, "keep_reasoning": False, "effort": None, "messages": [
        system,
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "reasoning_content": "The user said hello, I should greet back.", "content": "Hi there! How can I help you?"},
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "reasoning_content": "The user asks about the capital of France. It is Paris.", "content": "The capital of France is Paris."}]}


def main():
    spec = importlib.util.spec_from_file_location("encoder", sys.argv[1])
    encoder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoder)
    v41 = hasattr(encoder, "SYSTEM_SP_TOKEN")
    efforts = [None, "low", "high", "xhigh", "max"] if v41 else [None, None, "high", "max"]
    for case in [*published_cases(), *drawn_cases(efforts)]:
        if v41:
            with_objects(case["messages"])
        prompt = encoder.encode_messages(copy.deepcopy(case["messages"]), "thinking" if case["thinking"] else "chat",
                                         drop_thinking=not case["keep_reasoning"], reasoning_effort=case["effort"])
        print(json.dumps(dict(case, hash=str(fnv(prompt))), ensure_ascii=False))


if __name__ == "__main__":
    main()
