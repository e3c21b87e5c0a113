#include "support/fixture.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <system_error>

#include "base/check.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace levin::test {
namespace {

using io::JsonFields;
using io::StoredDtype;

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// One row of `tensors`.
struct Recipe {
  DrawnTensor tensor;
  std::string kind;
  std::string drawn_as;  // the name that it is drawn under
  int exp = 0;
  uint64_t n_experts = 0;
  std::string of;      // columns: the tensor whose first columns these are ...
  uint64_t width = 0;  // ... and how many it has
};

// The words of one tensor.
class Words {
 public:
  Words(std::string_view name, uint64_t seed) : start_(fnv1a64(name) ^ seed) {}
  uint64_t word(uint64_t i) const { return mix(start_ + (i + 1) * kGolden); }
  int top(int n_bits, uint64_t i) const { return static_cast<int>(word(i) >> (64 - n_bits)); }

 private:
  uint64_t start_;
};

template <class T>
void append(T value, std::vector<std::byte>& out) {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

float draw_float(const Recipe& recipe, const Words& words, uint64_t i) {
  if (recipe.kind == "columns") {
    const auto n_columns = static_cast<uint64_t>(recipe.tensor.shape[1]);
    i = i / n_columns * recipe.width + i % n_columns;
  }
  if (recipe.kind == "uniform" || recipe.kind == "columns")
    return std::ldexp(static_cast<float>(2 * words.top(8, i) - 255), recipe.exp);
  if (recipe.kind == "around_one") return 1.0f + static_cast<float>(words.top(4, i) - 8) / 32.0f;
  if (recipe.kind == "scalar") return std::ldexp(static_cast<float>(256 + words.top(8, i)), recipe.exp - 8);
  return std::ldexp(1.0f, recipe.exp + words.top(1, i));  // pow2
}

uint8_t draw_byte(const Recipe& recipe, const Words& words, uint64_t i) {
  const int top = words.top(8, i);
  if (recipe.kind == "fp8") return static_cast<uint8_t>((top & 0x80) | (0x58 + (top & 0x1F)));
  if (recipe.kind == "e4m3_scale") return static_cast<uint8_t>(0x5F + words.top(5, i));
  if (recipe.kind == "e8m0") return static_cast<uint8_t>(127 + recipe.exp + words.top(1, i));
  return static_cast<uint8_t>(top);  // fp4
}

void draw_experts(const Recipe& recipe, const Words& words, std::vector<std::byte>& out) {
  const auto n_rows = static_cast<uint64_t>(recipe.tensor.shape[0]);
  const auto n_columns = static_cast<uint64_t>(recipe.tensor.shape[1]);
  for (uint64_t t = 0; t < n_rows; ++t) {
    const uint64_t start = words.word(t) % recipe.n_experts;
    for (uint64_t j = 0; j < n_columns; ++j) append((start + j) % recipe.n_experts, out);
  }
}

void draw(Recipe& recipe, uint64_t seed) {
  DrawnTensor& tensor = recipe.tensor;
  const Words words(recipe.kind == "columns" ? recipe.of : recipe.drawn_as, seed);
  const auto n_bytes = static_cast<uint64_t>(*io::tensor_bytes(tensor.dtype, tensor.shape));
  const uint64_t n_elements = n_bytes / io::dtype_bytes(tensor.dtype);
  tensor.bytes.reserve(n_bytes);
  if (recipe.kind == "experts") {
    draw_experts(recipe, words, tensor.bytes);
  } else if (tensor.dtype == StoredDtype::kF32) {
    for (uint64_t i = 0; i < n_elements; ++i) append(draw_float(recipe, words, i), tensor.bytes);
  } else if (tensor.dtype == StoredDtype::kBF16) {
    for (uint64_t i = 0; i < n_elements; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(draw_float(recipe, words, i));  // every value fits bf16
      append(static_cast<uint16_t>(bits >> 16), tensor.bytes);
    }
  } else {
    for (uint64_t i = 0; i < n_elements; ++i) append(draw_byte(recipe, words, i), tensor.bytes);
  }
}

// The dtypes a kind can be stored in.
bool kind_fits(std::string_view kind, StoredDtype dtype) {
  if (kind == "uniform" || kind == "around_one" || kind == "pow2" || kind == "columns") {
    return dtype == StoredDtype::kF32 || dtype == StoredDtype::kBF16;
  }
  if (kind == "scalar") return dtype == StoredDtype::kF32;
  if (kind == "fp8" || kind == "e4m3_scale") return dtype == StoredDtype::kF8_E4M3;
  if (kind == "e8m0") return dtype == StoredDtype::kF8_E8M0;
  if (kind == "fp4") return dtype == StoredDtype::kI8 || dtype == StoredDtype::kU8;
  return kind == "experts" && dtype == StoredDtype::kI64;
}

Result<Recipe> read_recipe(const io::JsonValue& row, const std::string& where) {
  LEVIN_ASSIGN(JsonFields fields, JsonFields::of(row, where));
  Recipe recipe;
  LEVIN_ASSIGN(recipe.tensor.name, fields.get<std::string>("name"));
  LEVIN_ASSIGN(const std::string dtype, fields.get<std::string>("dtype"));
  LEVIN_ASSIGN(recipe.tensor.shape, fields.get<std::vector<int64_t>>("shape"));
  LEVIN_ASSIGN(recipe.kind, fields.get<std::string>("kind"));
  LEVIN_ASSIGN(recipe.drawn_as, fields.get_or("as", recipe.tensor.name));
  LEVIN_ASSIGN(const int64_t exp, fields.get_or<int64_t>("exp", 0));
  LEVIN_ASSIGN(recipe.n_experts, fields.get_or<uint64_t>("n", 0));
  LEVIN_ASSIGN(recipe.of, fields.get_or("of", ""));
  LEVIN_ASSIGN(recipe.width, fields.get_or<uint64_t>("width", 0));
  recipe.exp = static_cast<int>(exp);
  const std::optional<StoredDtype> known = io::dtype_from_name(dtype);
  if (!known || !kind_fits(recipe.kind, *known)) return fields.unexpected("kind", "a kind that fits dtype " + dtype);
  recipe.tensor.dtype = *known;
  if (!io::tensor_bytes(*known, recipe.tensor.shape)) return fields.unexpected("shape", "a shape");
  const bool experts_ok = recipe.n_experts > 0 && recipe.tensor.shape.size() == 2;
  if (recipe.kind == "experts" && !experts_ok) return fields.unexpected("n", "a positive count and two dimensions");
  const bool columns_ok = recipe.tensor.shape.size() == 2 && !recipe.of.empty() &&
                          recipe.width >= static_cast<uint64_t>(recipe.tensor.shape[1]);
  if (recipe.kind == "columns" && !columns_ok)
    return fields.unexpected("width", "two dimensions, `of` and at least as many columns");
  return recipe;
}

}  // namespace

std::filesystem::path fixture_folder(std::string_view name) {
  return std::filesystem::path(LEVIN_SOURCE_DIR) / "tests" / "fixtures" / name;
}

std::string sha256_hex(std::span<const DrawnTensor> tensors) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned n_bytes = 0;
  bool ok = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const DrawnTensor& tensor : tensors) {
    ok = ok && EVP_DigestUpdate(context.get(), tensor.bytes.data(), tensor.bytes.size()) == 1;
  }
  ok = ok && EVP_DigestFinal_ex(context.get(), digest.data(), &n_bytes) == 1;
  LEVIN_CHECK(ok, "libcrypto does not offer SHA-256");
  std::string hex;
  for (unsigned i = 0; i < n_bytes; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

Result<std::vector<DrawnTensor>> draw_tensors(const std::filesystem::path& weights_json) {
  const std::string where = weights_json.string();
  LEVIN_ASSIGN(const std::string text, io::read_file(weights_json));
  LEVIN_ASSIGN(const io::JsonValue document, io::parse_json(text, where));
  LEVIN_ASSIGN(const JsonFields fields, JsonFields::of(document, where));
  LEVIN_ASSIGN(const uint64_t seed, fields.get<uint64_t>("seed"));
  LEVIN_ASSIGN(const std::string expected, fields.get<std::string>("sha256"));
  const io::JsonValue* rows = fields.find("tensors");
  if (rows == nullptr || rows->as_array() == nullptr) return fields.unexpected("tensors", "a list");

  std::vector<DrawnTensor> tensors;
  for (const io::JsonValue& row : *rows->as_array()) {
    LEVIN_ASSIGN(Recipe recipe, read_recipe(row, fmt::format("{}: tensors[{}]", where, tensors.size())));
    draw(recipe, seed);
    tensors.push_back(std::move(recipe.tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const DrawnTensor& a, const DrawnTensor& b) { return a.name < b.name; });
  const std::string found = sha256_hex(tensors);
  if (found != expected) {
    return Error{ErrorKind::kModelInvalid,
                 fmt::format("{}: the tensors drawn have SHA-256 {}, expected {}", where, found, expected)};
  }
  return tensors;
}

Status materialise(const std::filesystem::path& fixture, const std::filesystem::path& out) {
  LEVIN_ASSIGN(const std::vector<DrawnTensor> tensors, draw_tensors(fixture / "weights.json"));
  LEVIN_ASSIGN(const std::string config, io::read_file(fixture / "config.json"));
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) return Error{ErrorKind::kRuntime, fmt::format("cannot make {}: {}", out.string(), error.message())};
  io::SafetensorsWriter writer;
  for (const DrawnTensor& t : tensors) writer.add({t.name, t.dtype, t.shape, t.bytes});
  LEVIN_TRY(io::write_file_atomically(out / "config.json", config));
  if (std::filesystem::exists(fixture / "tokenizer.json")) {
    LEVIN_ASSIGN(const std::string tokenizer, io::read_file(fixture / "tokenizer.json"));
    LEVIN_TRY(io::write_file_atomically(out / "tokenizer.json", tokenizer));
  }
  return writer.write(out / "model.safetensors");
}

}  // namespace levin::test
