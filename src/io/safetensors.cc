#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "io/json.h"

namespace levin::io {
namespace {

struct DtypeInfo {
  std::string_view name;
  size_t n_bytes;
};

constexpr std::array<DtypeInfo, 13> kDtypes = {{{"F64", 8},
                                                {"F32", 4},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"F8_E4M3", 1},
                                                {"F8_E5M2", 1},
                                                {"F8_E8M0", 1},
                                                {"I64", 8},
                                                {"I32", 4},
                                                {"I16", 2},
                                                {"I8", 1},
                                                {"U8", 1},
                                                {"BOOL", 1}}};

constexpr size_t kLengthBytes = 8;  // the header length at the start of a file

uint64_t load_u64_le(const std::byte* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

// One tensor with its place in the data.
struct PlacedTensor {
  StoredTensor tensor;
  uint64_t begin = 0;
  uint64_t end = 0;
};

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, std::string_view what) : file_(file), what_(what) {}

  Result<SafetensorsHeader> read() {
    LEVIN_ASSIGN(std::string_view text, header_text());
    LEVIN_ASSIGN(JsonValue document, parse_json(text, std::string(what_) + " (header)"));
    const JsonObject* object = document.as_object();
    if (object == nullptr) return fail("the header is {}, expected an object", describe_json(document));

    SafetensorsHeader header;
    std::vector<PlacedTensor> placed;
    placed.reserve(object->n_members());
    for (const JsonMember& member : object->members()) {
      if (member.key == "__metadata__") {
        LEVIN_TRY(read_metadata(member.value, header));
      } else {
        LEVIN_ASSIGN(PlacedTensor tensor, read_tensor(member));
        placed.push_back(std::move(tensor));
      }
    }
    LEVIN_TRY(check_coverage(placed));
    header.tensors.reserve(placed.size());
    for (PlacedTensor& p : placed) {
      p.tensor.bytes = data_.subspan(p.begin, p.end - p.begin);
      header.tensors.push_back(std::move(p.tensor));
    }
    std::sort(header.tensors.begin(), header.tensors.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
    return header;
  }

 private:
  template <class... Args>
  Error fail(fmt::format_string<Args...> format, Args&&... args) const {
    return Error{ErrorKind::kModelInvalid,
                 fmt::format("{}: {}", what_, fmt::format(format, std::forward<Args>(args)...))};
  }

  // The JSON text; sets data_ to what follows it.
  Result<std::string_view> header_text() {
    if (file_.size() < kLengthBytes) {
      return fail("{} bytes are too few for a safetensors file, it is cut off or not one", file_.size());
    }
    const uint64_t n_header_bytes = load_u64_le(file_.data());
    if (n_header_bytes > kMaxSafetensorsHeaderBytes) {
      return fail("the header length is {}, more than the {} that the format allows; this is not a safetensors file",
                  n_header_bytes, kMaxSafetensorsHeaderBytes);
    }
    if (n_header_bytes > file_.size() - kLengthBytes) {
      return fail("the header of {} bytes reaches beyond the end of the file ({} bytes), it is cut off", n_header_bytes,
                  file_.size());
    }
    data_ = file_.subspan(kLengthBytes + n_header_bytes);
    return std::string_view(reinterpret_cast<const char*>(file_.data()) + kLengthBytes, n_header_bytes);
  }

  Status read_metadata(const JsonValue& value, SafetensorsHeader& header) const {
    const JsonObject* object = value.as_object();
    if (object == nullptr) return fail("__metadata__ is {}, expected an object", describe_json(value));
    for (const JsonMember& member : object->members()) {
      const std::string* text = member.value.as_string();
      if (text == nullptr) {
        return fail("__metadata__.{} is {}, expected a string", member.key, describe_json(member.value));
      }
      header.metadata.emplace_back(member.key, *text);
    }
    return {};
  }

  Result<PlacedTensor> read_tensor(const JsonMember& member) const {
    const std::string where = fmt::format("{}: tensor {}", what_, member.key);
    LEVIN_ASSIGN(JsonFields fields, JsonFields::of(member.value, where));
    for (const JsonMember& field : fields.object().members()) {
      if (field.key != "dtype" && field.key != "shape" && field.key != "data_offsets") {
        return fields.unexpected(field.key, "only dtype, shape and data_offsets");
      }
    }
    LEVIN_ASSIGN(std::string dtype, fields.get<std::string>("dtype"));
    LEVIN_ASSIGN(std::vector<int64_t> shape, fields.get<std::vector<int64_t>>("shape"));
    LEVIN_ASSIGN(std::vector<uint64_t> offsets, fields.get<std::vector<uint64_t>>("data_offsets"));
    if (offsets.size() != 2) return fields.unexpected("data_offsets", "[begin, end]");

    PlacedTensor placed;
    const std::optional<StoredDtype> known = dtype_from_name(dtype);
    if (!known) return fields.unexpected("dtype", all_dtypes());
    placed.tensor.name = member.key;
    placed.tensor.dtype = *known;
    placed.tensor.shape = std::move(shape);
    placed.begin = offsets[0];
    placed.end = offsets[1];
    LEVIN_TRY(check_tensor(placed));
    return placed;
  }

  static std::string all_dtypes() {
    std::vector<std::string_view> names;
    names.reserve(kDtypes.size());
    for (const DtypeInfo& dtype : kDtypes) names.push_back(dtype.name);
    return fmt::format("one of {}", fmt::join(names, ", "));
  }

  Status check_tensor(const PlacedTensor& p) const {
    const StoredTensor& t = p.tensor;
    const std::optional<int64_t> n_bytes = tensor_bytes(t.dtype, t.shape);
    if (!n_bytes) {
      return fail("tensor {}: shape {} has a negative dimension or more elements than 64 bits can count", t.name,
                  shape_text(t.shape));
    }
    if (p.begin > p.end) return fail("tensor {}: data_offsets [{}, {}] run backwards", t.name, p.begin, p.end);
    if (p.end > data_.size()) {
      return fail("tensor {}: data_offsets [{}, {}] reach beyond the {} bytes of data, the file is cut off", t.name,
                  p.begin, p.end, data_.size());
    }
    if (p.end - p.begin != static_cast<uint64_t>(*n_bytes)) {
      return fail("tensor {}: data_offsets [{}, {}] hold {} bytes, but {} {} takes {}", t.name, p.begin, p.end,
                  p.end - p.begin, dtype_name(t.dtype), shape_text(t.shape), *n_bytes);
    }
    return {};
  }

  // Every byte of data belongs to exactly one tensor. Leaves the tensors in the order of their places.
  Status check_coverage(std::vector<PlacedTensor>& placed) const {
    std::sort(placed.begin(), placed.end(), [](const PlacedTensor& a, const PlacedTensor& b) {
      return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
    });
    uint64_t covered = 0;
    std::string_view last = "the start of the data";
    for (const PlacedTensor& p : placed) {
      if (p.begin < covered) {
        return fail("tensor {} begins at {}, inside tensor {}, which ends at {}", p.tensor.name, p.begin, last,
                    covered);
      }
      if (p.begin > covered) {
        return fail("tensor {} begins at {}, which leaves a hole of {} bytes after {}", p.tensor.name, p.begin,
                    p.begin - covered, last);
      }
      covered = p.end;
      last = p.tensor.name;
    }
    if (covered != data_.size()) {
      return fail("{} bytes follow the last tensor ({}), expected none", data_.size() - covered, last);
    }
    return {};
  }

  std::span<const std::byte> file_;
  std::span<const std::byte> data_;
  std::string_view what_;
};

}  // namespace

std::string_view dtype_name(StoredDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }

std::optional<StoredDtype> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<StoredDtype>(i);
  }
  return std::nullopt;
}

size_t dtype_bytes(StoredDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].n_bytes; }

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::optional<int64_t> tensor_bytes(StoredDtype dtype, std::span<const int64_t> shape) {
  auto n_bytes = static_cast<int64_t>(dtype_bytes(dtype));
  for (const int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(n_bytes, dimension, &n_bytes)) return std::nullopt;
  }
  return n_bytes;
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view what) {
  return HeaderReader(file, what).read();
}

}  // namespace levin::io
