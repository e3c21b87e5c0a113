// Tokenizer speed on one thread, in bytes of text per second.
//
// Texts   code: the sources of this module; prose: sentences of words drawn from a fixed seed; mixed: scripts, digits
// and
//         punctuation; letters: one letter a million times, the worst case of BPE
// Model   the demonstration tokenizer, 4096 tokens: pieces take more merges than with a full vocabulary
#include <benchmark/benchmark.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace levin::text {
namespace {

constexpr size_t kTextBytes = 1 << 20;

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(LEVIN_SOURCE_DIR "/models/demo-v32").value();
  return tokenizer;
}

std::string code() {
  std::string text;
  while (text.size() < kTextBytes) {
    for (const auto& entry : std::filesystem::directory_iterator(LEVIN_SOURCE_DIR "/src/text")) {
      if (entry.path().filename() == "unicode_tables.cc") continue;
      std::ifstream file(entry.path(), std::ios::binary);
      text.append(std::istreambuf_iterator<char>(file), {});
    }
  }
  return text;
}

uint32_t draw(uint64_t& state, uint32_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>((state >> 33) % n);
}

std::string prose() {
  constexpr const char* kSyllables[] = {"the", "re", "in", "ter", "al", "on", "ing", "st", "o", "ver", "man", "y"};
  uint64_t state = 1;
  std::string text;
  while (text.size() < kTextBytes) {
    const uint32_t n_syllables = 1 + draw(state, 3);
    for (uint32_t i = 0; i < n_syllables; ++i) text += kSyllables[draw(state, 12)];
    text += draw(state, 12) == 0 ? ". " : " ";
  }
  return text;
}

std::string mixed() {
  constexpr const char* kParts[] = {"наука ", "情報技術", "カタカナ",           "2024",   "العربية ",
                                    "हिन्दी ", "«ok» ",    "👩‍👩‍👧", "\r\n  ", "été "};
  uint64_t state = 2;
  std::string text;
  while (text.size() < kTextBytes) text += kParts[draw(state, 10)];
  return text;
}

std::string letters() { return std::string(kTextBytes, 'a'); }

void report(benchmark::State& state, size_t n_bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(n_bytes) * state.iterations());
}

void encode(benchmark::State& state, std::string (*make)()) {
  const std::string text = make();
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().encode_plain(text));
  report(state, text.size());
}
BENCHMARK_CAPTURE(encode, code, code)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, prose, prose)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, mixed, mixed)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, letters, letters)->Unit(benchmark::kMillisecond);

void encode_with_added_tokens(benchmark::State& state) {
  const std::string text = code();
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().encode(text));
  report(state, text.size());
}
BENCHMARK(encode_with_added_tokens)->Unit(benchmark::kMillisecond);

void decode(benchmark::State& state) {
  const std::string text = code();
  const std::vector<TokenId> ids = tokenizer().encode_plain(text).value();
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().decode(ids));
  report(state, text.size());
}
BENCHMARK(decode)->Unit(benchmark::kMillisecond);

void stream_decode(benchmark::State& state) {
  const std::string text = code();
  const std::vector<TokenId> ids = tokenizer().encode_plain(text).value();
  for (auto _ : state) {
    StreamDecoder decoder(tokenizer());
    for (const TokenId id : ids) benchmark::DoNotOptimize(decoder.push(id));
  }
  report(state, text.size());
}
BENCHMARK(stream_decode)->Unit(benchmark::kMillisecond);

void load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(LEVIN_SOURCE_DIR "/models/demo-v32"));
}
BENCHMARK(load)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace levin::text

BENCHMARK_MAIN();
