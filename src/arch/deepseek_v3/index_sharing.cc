// Which layers select for themselves, and whether drafts share indices (model_spec.md 2.2). Files of GLM-5.2 say it;
// DeepSeek-V3.2 has an indexer in every layer, and a configuration that lets its layers share adds the same keys.
#include <fmt/core.h>

#include <algorithm>

#include "arch/deepseek_v3/mla.h"

namespace levin::mla {
namespace {

using io::JsonFields;

// One of the ways to say which layers have an indexer of their own.
struct Schedule {
  std::string_view key;
  std::vector<bool> owns_indexer;  // [L]; as read also [L + n_mtp_layers]
};

// Drops the entry of the MTP layer, which always has its own indexer.
Status trim_to_trunk(const JsonFields& fields, const ModelConfig& config, Schedule* schedule) {
  std::vector<bool>& owns = schedule->owns_indexer;
  const auto n = static_cast<int64_t>(owns.size());
  if (n != config.n_layers && n != config.n_layers + config.n_mtp_layers) {
    return fields.unexpected(
        schedule->key, fmt::format("one entry for each of the {} layers (num_hidden_layers){}, not {}", config.n_layers,
                                   config.n_mtp_layers > 0 ? ", and at most one more for the MTP layer" : "", n));
  }
  if (n > config.n_layers && !owns.back()) {
    return invalid_model(
        fmt::format("{} makes the MTP layer, its last entry, \"shared\", but that layer always has its own "
                    "indexer; make it \"full\" or leave it out",
                    fields.name_of(schedule->key)));
  }
  owns.resize(static_cast<size_t>(config.n_layers));
  return {};
}

// A list of "full" and "shared", or of their initials.
Result<Schedule> schedule_of_list(const JsonFields& fields, std::string_view key) {
  LEVIN_ASSIGN(const auto entries, fields.get<std::vector<std::string>>(key));
  Schedule schedule{.key = key, .owns_indexer = {}};
  for (const std::string& entry : entries) {
    const bool full = entry == "full" || entry == "F";
    if (!full && entry != "shared" && entry != "S") {
      return invalid_model(fmt::format("{}[{}] is \"{}\", expected \"full\" or \"shared\"", fields.name_of(key),
                                       schedule.owns_indexer.size(), entry));
    }
    schedule.owns_indexer.push_back(full);
  }
  return schedule;
}

// "FSFSSF", or a list.
Result<Schedule> schedule_of_pattern(const JsonFields& fields, std::string_view key) {
  if (fields.find(key)->as_array() != nullptr) return schedule_of_list(fields, key);
  LEVIN_ASSIGN(const std::string letters, fields.get<std::string>(key));
  Schedule schedule{.key = key, .owns_indexer = {}};
  for (const char letter : letters) {
    if (letter != 'F' && letter != 'S') return fields.unexpected(key, "letters F (full) and S (shared)");
    schedule.owns_indexer.push_back(letter == 'F');
  }
  return schedule;
}

// Every freq-th layer from layer offset - 1 on; the ones before it all have their own.
std::vector<bool> owners_by_frequency(int64_t freq, int64_t offset, int n_layers) {
  std::vector<bool> owns;
  for (int64_t i = 0; i < n_layers; ++i) owns.push_back(std::max<int64_t>(i - offset + 1, 0) % freq == 0);
  return owns;
}

constexpr int64_t kMaxFrequency = 1 << 20;

// Frequency 1, which libraries write as a default in addition to the other spellings, says nothing.
Status add_frequency(const JsonFields& fields, const ModelConfig& config, std::vector<Schedule>* schedules) {
  LEVIN_ASSIGN(const int64_t freq, fields.get_or("index_topk_freq", int64_t{1}));
  LEVIN_ASSIGN(const int64_t offset, fields.get_or("index_skip_topk_offset", int64_t{2}));
  const std::string expected = fmt::format("a whole number from 1 to {}", kMaxFrequency);
  if (freq < 1 || freq > kMaxFrequency) return fields.unexpected("index_topk_freq", expected);
  if (offset < 1 || offset > kMaxFrequency) {
    return fields.unexpected("index_skip_topk_offset",
                             expected + ": layer 0 has no layer below whose top-k indices it could share");
  }
  if (freq > 1) schedules->push_back({"index_topk_freq", owners_by_frequency(freq, offset, config.n_layers)});
  return {};
}

Status check_agreement(const JsonFields& fields, const Schedule& a, const Schedule& b) {
  const auto [in_a, in_b] = std::mismatch(a.owns_indexer.begin(), a.owns_indexer.end(), b.owns_indexer.begin());
  if (in_a == a.owns_indexer.end()) return {};
  const auto word = [](bool owns) { return owns ? "full" : "shared"; };
  return invalid_model(
      fmt::format("{} makes layer {} \"{}\", and {} makes it \"{}\"; correct one of them or leave it out",
                  fields.name_of(a.key), in_a - a.owns_indexer.begin(), word(*in_a), b.key, word(*in_b)));
}

Status read_schedule(const JsonFields& fields, ModelConfig* config) {
  std::vector<Schedule> schedules;
  if (fields.has("indexer_types")) {
    LEVIN_ASSIGN(schedules.emplace_back(), schedule_of_list(fields, "indexer_types"));
  }
  if (fields.has("index_topk_pattern")) {
    LEVIN_ASSIGN(schedules.emplace_back(), schedule_of_pattern(fields, "index_topk_pattern"));
  }
  LEVIN_TRY(add_frequency(fields, *config, &schedules));
  for (Schedule& schedule : schedules) {
    LEVIN_TRY(trim_to_trunk(fields, *config, &schedule));
    if (!schedule.owns_indexer.front()) {
      return invalid_model(
          fmt::format("{} makes layer 0 \"shared\", and there is no layer below whose top-k indices it could share",
                      fields.name_of(schedule.key)));
    }
    LEVIN_TRY(check_agreement(fields, schedules.front(), schedule));
  }
  config->owns_indexer = schedules.empty() ? std::vector<bool>(static_cast<size_t>(config->n_layers), true)
                                           : schedules.front().owns_indexer;
  return {};
}

}  // namespace

Status read_index_sharing(const JsonFields& fields, ModelConfig* config) {
  LEVIN_ASSIGN(config->share_topk_across_drafts, fields.get_or("index_share_for_mtp_iteration", false));
  return read_schedule(fields, config);
}

}  // namespace levin::mla
