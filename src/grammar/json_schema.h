// JSON schemas as rules of a grammar.
//
//   RuleSet rules;
//   JsonForms forms(rules);
//   LEVIN_ASSIGN(const Expression value, SchemaReader(rules, forms, schema).value());
//
// Every text that matches is JSON that the schema admits; what it admits but no text matches is said here.
//
//   type, enum, const, anyOf, $ref (inside the document, also to itself), $defs, definitions; allOf where its parts do
//     not say two things about one keyword, nor one of them what the rest of the other's properties or items is; oneOf
//     where no value can meet two of its parts
//   object   properties, required, patternProperties, additionalProperties. Members come in the order of the schema, then
//            those whose names match patterns; others only where additionalProperties is there and not false, or where
//            neither properties nor patterns are named. No member has a name with several patterns whose schemas
//            cannot be joined
//   array    items, prefixItems, minItems, maxItems
//   string   minLength, maxLength; pattern (regex.h); format date, time, date-time, uuid, ipv4, email, hostname; not two
//            of these three together
//   number   minimum, maximum, exclusiveMinimum, exclusiveMaximum, written without exponent (number_range.h)
// A schema without a type is of the type its keywords speak of. Keywords of other types, annotations and unknown formats
// change nothing. All other keywords are refused by name (kUsage), or, where the reader is lenient, ignored.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "grammar/json_forms.h"
#include "grammar/name_classes.h"
#include "grammar/schema_values.h"
#include "grammar/text_forms.h"
#include "io/json.h"

namespace levin::grammar {

enum class Unsupported : uint8_t { kRefused, kPassedOver };

class SchemaReader {
 public:
  // The schema must outlive the reader.
  SchemaReader(RuleSet& rules, JsonForms& forms, const io::JsonValue& schema,
               Unsupported unsupported = Unsupported::kRefused)
      : rules_(rules),
        forms_(forms),
        root_(schema),
        unsupported_(unsupported),
        n_in_document_(n_values(schema)),
        n_characters_(n_characters(schema)) {}

  Result<Expression> value() { return value_of(root_, "schema"); }

  // As value(), of a part of the schema; `path` names it in errors.
  Result<Expression> value_of(const io::JsonValue& schema, const std::string& path);

  // The same for formats that write strings without quotes and escapes: `strings` match such a text with `suffix` after
  // it, whose first byte is to be marked kGuarded; `others` what else the part admits, in JSON.
  struct PlainForms {
    std::vector<RuleId> strings;
    std::vector<Expression> others;
  };
  Result<PlainForms> plain_forms(const io::JsonValue& schema, const std::string& path, const Expression& suffix);

  // The members that an object may have by name, each with all that it obeys; for formats that write them one by one.
  // Keywords that say more of the object than these are refused, or ignored.
  struct NamedMember {
    std::string name;
    io::JsonValue schema;
    bool required = false;
  };
  Result<std::vector<NamedMember>> named_members(const io::JsonValue& schema, const std::string& path);

 private:
  static constexpr int kMaxDepth = 200;
  static constexpr int64_t kMaxValues = 10'000;  // in the document, and with references and joined parts written out
  static constexpr int64_t kMaxCharacters = kMaxNodes;  // more could not be compiled, and takes much memory until then
  static constexpr size_t kMaxParts = 256;              // of one oneOf, anyOf or prefixItems

  // Follows references and joins allOf: an object with the keywords of the part, or a boolean.
  Result<io::JsonValue> resolve(const io::JsonValue& schema, const std::string& path);
  Status count_part(const std::string& path);
  static Error too_large(const std::string& path);
  Result<Expression> value_at_depth(const io::JsonValue& schema, const std::string& path);
  Status add_plain_forms(const io::JsonValue& schema, const std::string& path, const Expression& suffix,
                         PlainForms* out);
  Status add_listed_plain(const io::JsonObject& schema, const std::string& path, const Expression& suffix,
                          PlainForms* out);
  Status add_plain_string(const io::JsonObject& schema, const std::string& path, const Expression& suffix,
                          PlainForms* out);
  Status check_keywords(const io::JsonObject& schema, const std::string& path) const;
  Result<const io::JsonValue*> find_reference(const std::string& reference, const std::string& path) const;
  Result<Expression> referenced(const std::string& reference, const std::string& path);
  Result<std::vector<io::JsonValue>> parts_of(const io::JsonObject& schema, std::string_view keyword,
                                              const std::string& path);
  Result<Expression> alternatives(const io::JsonObject& schema, std::string_view keyword, const std::string& path);
  Result<io::JsonArray> listed(const io::JsonObject& schema, const std::string& path) const;
  Result<Expression> of_type(const std::string& type, const io::JsonObject& schema, const std::string& path);
  Result<Expression> string_of(const io::JsonObject& schema, const std::string& path);
  Result<Expression> number_of(const io::JsonObject& schema, bool integer, const std::string& path) const;
  Result<Expression> array_of(const io::JsonObject& schema, const std::string& path);
  Result<Expression> object_of(const io::JsonObject& schema, const std::string& path);
  // patternProperties; of none: no patterns.
  struct NamePatterns {
    std::vector<const io::JsonValue*> schemas;
    NameClasses classes;
  };
  Result<NamePatterns> name_patterns(const io::JsonObject& schema, const std::vector<std::string>& names,
                                     const std::string& path) const;
  Result<io::JsonValue> obeyed_by(const Property& property, const NamePatterns& patterns,
                                  const std::string& place) const;
  Status check_named_alone(const io::JsonObject& schema, const std::string& path) const;
  Result<io::JsonValue> joined(const NamePatterns& patterns, const std::vector<size_t>& matched, io::JsonValue schema,
                               const std::string& path) const;
  Result<std::optional<Expression>> other_members(const io::JsonObject& schema, const std::vector<std::string>& names,
                                                  const NamePatterns& patterns, const std::string& path);
  Result<std::optional<Expression>> classed_members(const io::JsonObject& schema, const NamePatterns& patterns,
                                                    const std::string& path);
  struct StringShape {
    std::optional<Expression> pattern;  // of the whole string
    CountRange n_characters;
  };
  Result<StringShape> string_shape(const io::JsonObject& schema, Writing writing, const std::string& path) const;

  RuleSet& rules_;
  JsonForms& forms_;
  const io::JsonValue& root_;
  const Unsupported unsupported_;
  std::map<std::string, RuleId> references_;
  const int64_t n_in_document_;
  const int64_t n_characters_;
  int depth_ = 0;
  int64_t n_values_ = 0;
};

}  // namespace levin::grammar
