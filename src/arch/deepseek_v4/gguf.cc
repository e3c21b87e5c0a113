// DeepSeek-V4 as GGUF.
#include <array>
#include <utility>
#include <vector>

#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/parts.h"

namespace levin::deepseek_v4 {
namespace {

constexpr std::array kOutside = {
    Renamed{"embed.weight", "token_embd.weight"},     Renamed{"norm.weight", "output_norm.weight"},
    Renamed{"head.weight", "output.weight"},          Renamed{"hc_head_fn", "output_hc_fn.weight"},
    Renamed{"hc_head_base", "output_hc_base.weight"}, Renamed{"hc_head_scale", "output_hc_scale.weight"},
};

constexpr std::array kInLayer = {
    Renamed{"hc_attn_fn", "hc_attn_fn.weight"},
    Renamed{"hc_attn_base", "hc_attn_base.weight"},
    Renamed{"hc_attn_scale", "hc_attn_scale.weight"},
    Renamed{"hc_ffn_fn", "hc_ffn_fn.weight"},
    Renamed{"hc_ffn_base", "hc_ffn_base.weight"},
    Renamed{"hc_ffn_scale", "hc_ffn_scale.weight"},
    Renamed{"attn_norm.weight", "attn_norm.weight"},
    Renamed{"ffn_norm.weight", "ffn_norm.weight"},
    Renamed{"attn.attn_sink", "attn_sinks.weight"},
    Renamed{"attn.wq_a.weight", "attn_q_a.weight"},
    Renamed{"attn.q_norm.weight", "attn_q_a_norm.weight"},
    Renamed{"attn.wq_b.weight", "attn_q_b.weight"},
    Renamed{"attn.wkv.weight", "attn_kv.weight"},
    Renamed{"attn.kv_norm.weight", "attn_kv_a_norm.weight"},
    Renamed{"attn.wo_a.weight", "attn_output_a.weight"},
    Renamed{"attn.wo_b.weight", "attn_output_b.weight"},
    Renamed{"attn.compressor.ape", "attn_compressor_ape.weight"},
    Renamed{"attn.compressor.wkv.weight", "attn_compressor_kv.weight"},
    Renamed{"attn.compressor.wgate.weight", "attn_compressor_gate.weight"},
    Renamed{"attn.compressor.norm.weight", "attn_compressor_norm.weight"},
    Renamed{"attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    Renamed{"attn.indexer.weights_proj.weight", "indexer.proj.weight"},
    Renamed{"attn.indexer.compressor.ape", "indexer_compressor_ape.weight"},
    Renamed{"attn.indexer.compressor.wkv.weight", "indexer_compressor_kv.weight"},
    Renamed{"attn.indexer.compressor.wgate.weight", "indexer_compressor_gate.weight"},
    Renamed{"attn.indexer.compressor.norm.weight", "indexer_compressor_norm.weight"},
    Renamed{"ffn.gate.weight", "ffn_gate_inp.weight"},
    Renamed{"ffn.gate.bias", "exp_probs_b.bias"},
    Renamed{"ffn.gate.tid2eid", "ffn_gate_tid2eid.weight"},
    Renamed{"ffn.experts.*.w1.weight", "ffn_gate_exps.weight"},
    Renamed{"ffn.experts.*.w3.weight", "ffn_up_exps.weight"},
    Renamed{"ffn.experts.*.w2.weight", "ffn_down_exps.weight"},
    Renamed{"ffn.shared_experts.w1.weight", "ffn_gate_shexp.weight"},
    Renamed{"ffn.shared_experts.w3.weight", "ffn_up_shexp.weight"},
    Renamed{"ffn.shared_experts.w2.weight", "ffn_down_shexp.weight"},
};

constexpr GgufTensorNames kTensors{.outside = kOutside, .in_layer = kInLayer};
constexpr std::array<std::string_view, 1> kArchitectures = {"deepseek4"};

void set_keys(const ModelConfig& c, const std::string&, GgufKeys& keys) {
  keys.size("feed_forward_length", c.d_expert);
  keys.size("attention.key_length", c.d_head());
  keys.size("attention.value_length", c.d_head());
  keys.size("attention.sliding_window", c.n_window);
  keys.size("attention.output_group_count", own(c).n_out_groups);
  keys.size("attention.output_lora_rank", own(c).d_out_lora);
  keys.real("attention.compress_rope_freq_base", own(c).compressed_rope_theta);
  std::vector<uint32_t> ratios;
  for (int layer = 0; layer < c.n_layers; ++layer)
    ratios.push_back(static_cast<uint32_t>(own(c).compression_of(layer).ratio));
  keys.set("attention.compress_ratios", std::move(ratios));
  keys.size("hyper_connection.count", c.n_streams);
  keys.size("hyper_connection.sinkhorn_iterations", c.n_sinkhorn_steps);
  keys.real("hyper_connection.epsilon", c.stream_eps);
  keys.size("hash_layer_count", own(c).n_hash_layers);
  keys.set("swiglu_clamp_exp", std::vector<float>(static_cast<size_t>(c.n_layers), c.ffn_limit));
  set_gguf_rope(c, own(c).compressed_yarn, keys);
  set_gguf_experts(c, GgufGating::kSqrtSoftplus, keys);
}

}  // namespace

constinit const GgufNames kGguf{.architectures = kArchitectures,
                                .tensors = &kTensors,
                                .pre_tokenizer = "deepseek-v3",
                                .has_mtp = false,
                                .set_keys = set_keys};

}  // namespace levin::deepseek_v4
