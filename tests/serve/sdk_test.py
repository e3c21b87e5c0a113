"""What the Python clients of OpenAI and Anthropic make of the server: chat, streams, reasoning, tools, completions,
responses, messages, errors.

  python3 -m venv VENV && VENV/bin/pip install openai anthropic
  VENV/bin/python tests/serve/sdk_test.py build/release/apps/levin/levin

Starts the program on a free port with the demonstration model, talks to it, and stops it. Prints a line a check; exits with 1
if one fails.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import anthropic
import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]
GREEDY = {"temperature": 0}  # some versions of the Anthropic client have no argument for it
TOKYO = "The capital of Japan is Tokyo."
THOUGHT = "The country is Japan. Its capital is Tokyo."
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
BOUNDED_TOOLS = [{"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}},
                                      "required": ["city"]}}}]


def chat(client, **more):
    return client.chat.completions.create(model="demo-v32", messages=QUESTION, **{"temperature": 0, **more})


def openai_models(client):
    models = client.models.list().data
    assert models[0].id == "demo-v32" and models[0].max_model_len > 0
    assert client.models.retrieve("demo-v32").id == "demo-v32"


def openai_wrong_key(client):
    try:
        client.with_options(api_key="another").models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key", error
    else:
        raise AssertionError("a wrong key was taken")


def openai_chat(client):
    answer = chat(client)
    assert answer.choices[0].message.content == TOKYO
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def openai_stream(client):
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TOKYO
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0


def openai_reasoning(client):
    message = chat(client, reasoning_effort="high").choices[0].message
    assert message.reasoning_content == THOUGHT and message.reasoning == THOUGHT and message.content == TOKYO


def openai_several(client):
    first = chat(client, n=3, seed=5, max_tokens=12, temperature=2, top_p=1)
    again = chat(client, n=3, seed=5, max_tokens=12, temperature=2, top_p=1)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices] and len(set(texts)) > 1


def openai_logprobs(client):
    content = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert content[0].token == "The" and len(content[0].top_logprobs) == 2


def openai_tools(client):
    answer = chat(client, tools=TOOLS, tool_choice="auto", max_tokens=40)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    follow_up = client.chat.completions.create(
        model="demo-v32", temperature=0, max_tokens=10, tools=TOOLS,
        messages=QUESTION + [{"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Tokyo\"}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}])
    assert follow_up.usage.prompt_tokens > answer.usage.prompt_tokens


SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 0,
                                                                                                "maximum": 99}},
          "required": ["city", "n"], "additionalProperties": False}


def fits_schema(text):
    value = json.loads(text)
    return set(value) == {"city", "n"} and len(value["city"]) <= 12 and 0 <= value["n"] <= 99


def openai_structured_output(client):
    form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}}
    assert fits_schema(chat(client, response_format=form, max_tokens=100).choices[0].message.content)
    thinking = chat(client, response_format=form, max_tokens=200, reasoning_effort="high").choices[0].message
    assert thinking.reasoning == THOUGHT and fits_schema(thinking.content)
    answer = client.responses.create(model="demo-v32", input="Where?", temperature=0, max_output_tokens=100,
                                     text={"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}})
    assert fits_schema(answer.output_text)


def openai_forced_tools(client):
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        answer = chat(client, tools=BOUNDED_TOOLS, tool_choice=choice, max_tokens=200).choices[0]
        call = answer.message.tool_calls[0]
        assert answer.finish_reason == "tool_calls" and call.function.name == "weather"
        assert len(json.loads(call.function.arguments)["city"]) <= 8
    chunks = list(chat(client, tools=BOUNDED_TOOLS, tool_choice=named, max_tokens=200, stream=True))
    calls = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices and c.choices[0].delta.tool_calls]
    assert calls[0].id and json.loads("".join(call.function.arguments for call in calls))["city"] is not None
    assert not any(c.choices[0].delta.content for c in chunks if c.choices)
    flat = [{"type": "function", **BOUNDED_TOOLS[0]["function"]}]
    item = client.responses.create(model="demo-v32", input="Where?", temperature=0, max_output_tokens=200, tools=flat,
                                   tool_choice="required").output[0]
    assert item.type == "function_call" and "city" in json.loads(item.arguments)
    with client.responses.stream(model="demo-v32", input="Where?", temperature=0, max_output_tokens=200, tools=flat,
                                 tool_choice={"type": "function", "name": "weather"}) as stream:
        final = stream.get_final_response()
    assert final.output[0].name == "weather"
    follow_up = client.responses.create(model="demo-v32", max_output_tokens=5, tools=flat, input=[
        {"role": "user", "content": "Where?"}, final.output[0].model_dump(),
        {"type": "function_call_output", "call_id": final.output[0].call_id, "output": "sunny"}])
    assert follow_up.status in ("completed", "incomplete")


def openai_responses(client):
    answer = client.responses.create(model="demo-v32", input="What is the capital of Japan?", temperature=0)
    assert answer.output_text == TOKYO and answer.status == "completed"
    with client.responses.stream(model="demo-v32", input="What is the capital of Japan?", temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == TOKYO and final.output_text == TOKYO and final.usage.output_tokens > 0


def openai_completions(client):
    answer = client.completions.create(model="demo-v32", prompt="def read_file(", max_tokens=6, temperature=0, echo=True,
                                       logprobs=1)
    assert answer.choices[0].text.startswith("def read_file(")
    assert answer.choices[0].logprobs.token_logprobs[0] is None


def openai_errors(client):
    for error, arguments in ((openai.NotFoundError, {"model": "gpt", "messages": QUESTION}),
                             (openai.BadRequestError, {"model": "demo-v32", "messages": []}),
                             (openai.BadRequestError, {"model": "demo-v32", "messages": QUESTION, "max_tokens": 10 ** 6})):
        try:
            client.chat.completions.create(**arguments)
        except error as found:
            assert found.body["message"]
        else:
            raise AssertionError(f"{arguments} was not refused")


def anthropic_models(client):
    model = client.models.list().data[0]
    assert (model.type, model.id, model.display_name) == ("model", "demo-v32", "demo-v32"), model
    assert model.created_at.year >= 2026, model
    assert client.models.retrieve("demo-v32").id == "demo-v32"


def anthropic_prefill(client):
    begun = QUESTION + [{"role": "assistant", "content": "The capital of"}]
    message = client.messages.create(model="demo-v32", max_tokens=50, messages=begun, extra_body=GREEDY)
    assert message.content[0].text == " Japan is Tokyo.", message


def anthropic_message(client):
    answer = client.messages.create(model="demo-v32", max_tokens=100, messages=QUESTION, extra_body=GREEDY)
    assert answer.content[0].text == TOKYO and answer.stop_reason == "end_turn"


def anthropic_stream(client):
    with client.messages.stream(model="demo-v32", max_tokens=2000, messages=QUESTION, extra_body=GREEDY,
                                thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
        assert "".join(stream.text_stream) == TOKYO
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"] and final.content[0].thinking == THOUGHT


def anthropic_structured_output(client):
    answer = client.messages.create(model="demo-v32", max_tokens=100, messages=QUESTION, extra_body={
        **GREEDY, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}})
    assert fits_schema(answer.content[0].text)


def anthropic_forced_tools(client):
    tools = [{"name": "weather", "description": "Weather", "input_schema": BOUNDED_TOOLS[0]["function"]["parameters"]}]
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        answer = client.messages.create(model="demo-v32", max_tokens=200, messages=QUESTION, tools=tools, tool_choice=choice,
                                        extra_body=GREEDY)
        assert answer.stop_reason == "tool_use" and answer.content[0].type == "tool_use"
        assert len(answer.content[0].input["city"]) <= 8
    with client.messages.stream(model="demo-v32", max_tokens=200, messages=QUESTION, tools=tools,
                                tool_choice={"type": "tool", "name": "weather"}, extra_body=GREEDY) as stream:
        final = stream.get_final_message()
    assert "city" in final.content[0].input


def anthropic_tools(client):
    tools = [{"name": "weather", "description": "Weather", "input_schema": TOOLS[0]["function"]["parameters"]}]
    answer = client.messages.create(
        model="demo-v32", max_tokens=20, system="Be brief.", tools=tools,
        messages=QUESTION + [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "x"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]}])
    assert answer.usage.output_tokens > 0


def anthropic_count(client):
    assert client.messages.count_tokens(model="demo-v32", messages=QUESTION).input_tokens == 13


def anthropic_errors(client):
    try:
        client.messages.create(model="other", max_tokens=1, messages=QUESTION)
    except anthropic.NotFoundError as found:
        assert found.body["error"]["type"] == "not_found_error"
    else:
        raise AssertionError("an unknown model was not refused")


def main():
    with tempfile.NamedTemporaryFile("w") as key_file:
        key_file.write("# of the clients below\n\nfirst-key\nsdk-key \n")
        key_file.flush()
        return run(key_file.name)


def run(key_file):
    server = subprocess.Popen([sys.argv[1], "serve", str(ROOT / "models/demo-v32"), "--port", "0", "--max-model-len", "4096",
                               "--api-key-file", key_file],
                              stderr=subprocess.PIPE, text=True)
    address = None
    for line in server.stderr:
        if found := re.search(r"http://\S+?:\d+", line):
            address = found.group()
            break
    n_failed = 0
    try:
        clients = {"openai": openai.OpenAI(base_url=address + "/v1", api_key="sdk-key", max_retries=0),
                   "anthropic": anthropic.Anthropic(base_url=address, api_key="sdk-key", max_retries=0)}
        for name, check in list(globals().items()):
            dialect = name.split("_")[0]
            if dialect not in clients or not callable(check):
                continue
            try:
                check(clients[dialect])
                print(f"ok    {name}")
            except Exception as error:  # a check that fails does not end the others
                n_failed += 1
                print(f"FAIL  {name}: {type(error).__name__}: {error}")
    finally:
        server.terminate()
        code = server.wait(timeout=60)
    if code != 0:
        n_failed += 1
        print(f"FAIL  the server ended with {code}")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
