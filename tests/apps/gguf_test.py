#!/usr/bin/env python3
"""What the reader of the ggml project makes of `levin export-gguf`: every tensor under the name that its own table gives it,
with the values of the checkpoint as read by NumPy alone.

  python3 -m venv VENV && VENV/bin/pip install gguf
  VENV/bin/python tests/apps/gguf_test.py --levin build/release/apps/levin/levin

Without the package it exits with 77, which ctest counts as skipped. Exits with 1 if a check fails.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
    from gguf.quants import dequantize
except ImportError:
    print("skipped: the package gguf is not installed")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]


def e4m3_values():
    codes = np.arange(256)
    sign, exponent, mantissa = codes >> 7, codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent.astype(float) - 10))
    return np.where(sign == 1, -values, values).astype(np.float32)


def read_checkpoint(folder):
    """All tensors as f32, block scales applied."""
    raw = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + n])
        header.pop("__metadata__", None)
        for name, info in header.items():
            begin, end = (8 + n + x for x in info["data_offsets"])
            raw[name] = (info["dtype"], info["shape"], data[begin:end])
    out = {}
    for name, (dtype, shape, data) in raw.items():
        if dtype == "BF16":
            out[name] = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
        elif dtype == "F32":
            out[name] = np.frombuffer(data, "<f4").reshape(shape)
        else:
            out[name] = e4m3_values()[np.frombuffer(data, np.uint8)].reshape(shape)
    for name in [name for name in out if name.endswith("_scale_inv")]:
        scale = np.repeat(np.repeat(out.pop(name), 128, 0), 128, 1)
        weight = name.removesuffix("_scale_inv")
        out[weight] = out[weight] * scale[: out[weight].shape[0], : out[weight].shape[1]]
    return out


def expected_tensors(folder, architecture):
    """By GGUF name, as the converters of the ggml project arrange them."""
    config = json.loads((folder / "config.json").read_text())
    n_layers = config["num_hidden_layers"] + config["num_nextn_predict_layers"]
    names = gguf.get_tensor_name_map(architecture, n_layers)
    out, experts = {}, {}
    for name, values in read_checkpoint(folder).items():
        expert = re.match(r"(.*\.experts)\.(\d+)\.(.*)", name)
        if expert:
            experts.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = values
        elif name.endswith("kv_b_proj.weight"):
            heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
            per_head = values.reshape(heads, -1, values.shape[-1])
            out[name.replace("kv_b", "k_b")] = per_head[:, :nope].transpose(0, 2, 1)
            out[name.replace("kv_b", "v_b")] = per_head[:, nope:]
        else:
            out[name] = values
    for name, by_number in experts.items():
        out[name] = np.stack([by_number[i] for i in range(len(by_number))])

    def renamed(name):
        # the router's bias is a parameter without a suffix in the checkpoint
        found = names.get_name(name.replace("e_score_correction_bias", "e_score_correction.bias"), (".weight", ".bias"))
        assert found, f"{name} has no name in the table"
        return found

    return {renamed(name): values for name, values in out.items()}


def values_of(tensor):
    shape = [int(x) for x in reversed(tensor.shape)]
    return dequantize(tensor.data, tensor.tensor_type).reshape(shape)


def export(levin, folder, out, *options):
    subprocess.run([levin, "export-gguf", str(folder), "--out", str(out), *options], check=True, stderr=subprocess.DEVNULL)
    return gguf.GGUFReader(out)


def check_model(levin, name, options, architecture, table, scratch):
    folder = ROOT / "models" / name
    reader = export(levin, folder, scratch / "model.gguf", *options)
    field = lambda key: reader.fields[key].contents()
    assert field("general.architecture") == architecture
    expected = expected_tensors(folder, table)
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert set(found) == set(expected), set(found) ^ set(expected)
    for key, values in expected.items():
        assert np.array_equal(values_of(found[key]), values), key
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = field("tokenizer.ggml.tokens")
    assert all(tokens[i] == token for token, i in tokenizer["model"]["vocab"].items())
    assert all(tokens[added["id"]] == added["content"] for added in tokenizer["added_tokens"])
    assert len(field("tokenizer.ggml.merges")) == len(tokenizer["model"]["merges"])
    print(f"{name} as {architecture}: {len(found)} tensors")


def check_deepseek_v4(levin, scratch):
    """No model of this family is at hand here: dummies, of which the reader must make sense."""
    folder = ROOT / "tests" / "fixtures" / "v4-fp4"
    config = json.loads((folder / "config.json").read_text())
    reader = export(levin, folder, scratch / "v4.gguf", "--load-format", "dummy")
    field = lambda key: reader.fields["deepseek4." + key].contents()
    assert field("attention.compress_ratios") == config["compress_ratios"][:-1]
    assert field("hyper_connection.count") == config["hc_mult"]
    assert field("attention.output_group_count") == config["o_groups"]
    experts = next(t for t in reader.tensors if t.name == "blk.1.ffn_up_exps.weight")
    assert experts.tensor_type == gguf.GGMLQuantizationType.MXFP4
    spread = values_of(experts).std() * np.sqrt(config["hidden_size"])
    assert 0.5 < spread < 3, spread
    print(f"v4-fp4 as deepseek4: {len(reader.tensors)} tensors")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--levin", required=True)
    levin = parser.parse_args().levin
    glm = gguf.MODEL_ARCH.GLM_DSA
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        check_model(levin, "demo-glm", [], "glm-dsa", glm, scratch)
        check_model(levin, "demo-v32", ["--type", "f32"], "deepseek32", glm, scratch)
        check_model(levin, "demo-v32", ["--architecture", "glm-dsa"], "glm-dsa", glm, scratch)
        check_deepseek_v4(levin, scratch)


main()
