// JSON schemas: which texts match, and what is refused by name.
#include "grammar/json_schema.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"

namespace levin::test {
namespace {

Result<grammar::Grammar> compile(const std::string& schema,
                                 grammar::Unsupported unsupported = grammar::Unsupported::kRefused) {
  const io::JsonValue document = must(io::parse_json(schema, "schema"));
  grammar::RuleSet rules;
  grammar::JsonForms forms(rules);
  grammar::SchemaReader reader(rules, forms, document, unsupported);
  LEVIN_ASSIGN(const grammar::Expression value, reader.value());
  LEVIN_ASSIGN(const grammar::RuleId root, rules.add(value));
  return std::move(rules).finish(root);
}

struct Row {
  const char* schema;
  std::vector<std::string> yes, no;
};

void check(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const auto constraint = constraint_of(must(compile(row.schema)));
    for (const std::string& text : row.yes) EXPECT_TRUE(matches(constraint, text)) << row.schema << "\non " << text;
    for (const std::string& text : row.no) EXPECT_FALSE(matches(constraint, text)) << row.schema << "\non " << text;
  }
}

TEST(JsonSchema, Scalars) {
  check({
      {R"({"type": "string"})", {R"("")", R"("aé日\n\u00e9\/")"}, {"a", R"("a)", R"("\x")", "\"\n\"", R"("\ud800")"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("日本語")", R"("\n\u0041")"},
       {R"("a")", R"("abcd")", R"("")"}},
      {R"({"type": "string", "pattern": "^[a-z]+$"})", {R"("abc")"}, {R"("")", R"("aB")"}},
      {R"({"type": "string", "pattern": "b"})", {R"("abc")", R"("b")"}, {R"("ac")"}},
      {R"({"type": "string", "format": "date"})", {R"("2026-12-31")"}, {R"("2026-02-30")", R"("2026-13-01")"}},
      {R"({"type": "string", "format": "uuid"})", {R"("01234567-89ab-cdef-0123-456789abcdef")"}, {R"("x")"}},
      {R"({"type": "string", "format": "ipv4"})", {R"("255.1.20.0")"}, {R"("256.1.1.1")", R"("1.1.1")"}},
      {R"({"type": "string", "format": "date-time"})", {R"("2026-11-21T23:26:09.5Z")"}, {R"("2026-11-21 23:26:09")"}},
      {R"({"type": "string", "format": "email"})", {R"("a.b@c-d.org")"}, {R"("a.b@c")", R"("@c.org")"}},
      {R"({"type": "string", "format": "int32"})", {R"("anything")"}, {"1"}},
      {R"({"type": "integer"})", {"0", "-12"}, {"1.5", "1e3", "01", ""}},
      {R"({"type": "integer", "minimum": 3, "exclusiveMaximum": 12})", {"3", "11"}, {"2", "12"}},
      {R"({"type": "number"})", {"1.5", "-2e9"}, {"x", "1."}},
      {R"({"type": "boolean"})", {"true", "false"}, {"True", "null"}},
      {R"({"type": "null"})", {"null"}, {"true"}},
      {R"({"type": ["string", "null"]})", {R"("a")", "null"}, {"1"}},
      {R"({"enum": ["a", "b\"", 1, null, {"x": [1, 2]}]})",
       {R"("a")", R"("b\"")", "1", "null", R"({"x": [1, 2]})"},
       {R"("c")", "2"}},
      {R"({"enum": ["a", 1], "type": "integer"})", {"1"}, {R"("a")"}},
      {R"({"enum": [1.0, 1.5], "type": "integer"})", {"1.0"}, {"1.5"}},
      {R"({"const": "é"})", {R"("é")"}, {R"("e")"}},
      {R"({"minLength": 1})", {R"("a")"}, {R"("")", "1"}},
      {"true", {"1", R"({"a": [true, {}]})"}, {"x", ""}},
      {"{}", {"null", "[1, 2.5]", R"("a")"}, {"[1 ,2]", "[,]", "nul"}},
  });
}

TEST(JsonSchema, Arrays) {
  check({
      {R"({"type": "array"})", {"[]", "[1,2]", "[ 1, [] ]", "[\n  1,\n  2\n]"}, {"[1,]", "[", "[1 2]"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
       {"[1, 2]", "[1,2,3]", "[1, 2\n]"},
       {"[]", "[1]", "[1, 2, 3, 4]", "[1, 2, 3, ]", R"([1, "a"])", "[1\n]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]})",
       {"[]", "[1]", R"([1, "a"])"},
       {R"(["a"])", R"([1, "a", 2])", "[1, 2]"}},
      {R"({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 2, "maxItems": 3})",
       {"[1, 2]", "[1, 2, 2]"},
       {"[1]", "[2, 2]", "[1, 2, 2, 2]"}},
      {R"({"type": "array", "items": false})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "prefixItems": [{"const": 1}, false], "minItems": 1})", {"[1]"}, {"[]", "[1, 1]"}},
      {R"({"type": "array", "minItems": 100000, "items": {"type": ["array", "null"], "items": false}})",
       {},
       {"[]", "[null]"}},
      {R"({"type": "array", "items": {"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 2}, "maxItems": 2})",
       {"[]", "[[1], [1, 1]]"},
       {"[[]]", "[[1, 1, 1]]", "[[1], [1], [1]]"}},
  });
}

TEST(JsonSchema, Objects) {
  check({
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]})",
       {R"({"a": 1, "b": "x"})", R"({"a":1,"b":"x"})", "{\n  \"a\": 1,\n  \"b\": \"x\"\n}"},
       {"{}", R"({"a": 1})", R"({"b": "x", "a": 1})", R"({"a": 1, "b": "x", "c": 1})", R"({"a" : 1, "b": "x"})"}},
      {R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]})",
       {R"({"b": 2})", R"({"a": 1, "b": 2})", R"({"b": 2, "c": 3})", R"({"a": 1, "b": 2, "c": 3})"},
       {"{}", R"({"a": 1})", R"({"a": 1, "c": 3})", R"({, "b": 2})", R"({"b": 2, "b": 2})"}},
      {R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}})",
       {"{}", R"({"a": 1})", R"({"b": 2})", R"({"a": 1, "b": 2})"},
       {R"({"a": 1,})", R"({"c": 1})"}},
      {R"({"type": "object", "properties": {"ab": {"const": 1}}, "additionalProperties": {"const": 2}})",
       {"{}", R"({"ab": 1})", R"({"ab": 1, "x": 2, "a": 2, "abc": 2, "": 2})", R"({"é": 2})"},
       {R"({"ab": 2})", R"({"x": 1})", R"({"x": 2, "ab": 1})", R"({"\u0061b": 2})"}},
      {R"({"type": "object"})", {"{}", R"({"x": {"y": []}})"}, {"[]", R"({"x"})"}},
      {R"({"type": "object", "additionalProperties": false})", {"{}", "{ }"}, {R"({"x": 1})"}},
      {R"({"type": "object", "required": ["z"]})", {R"({"z": [1]})"}, {"{}"}},
      {R"({"properties": {"k\"": {"type": "null"}}, "required": ["k\""]})", {R"({"k\"": null})"}, {R"({"k": null})"}},
      {R"({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "boolean"}},
           "required": ["b"]}}, "required": ["a"]})",
       {R"({"a": {"b": true}})"},
       {R"({"a": {}})", R"({"a": {"b": true})"}},
  });
}

TEST(JsonSchema, MembersWhoseNamesMatchPatterns) {
  check({
      {R"({"type": "object", "patternProperties": {"^x-[a-z]+$": {"type": "integer"}}})",
       {"{}", R"({"x-a": 1})", R"({"x-a": 1, "x-bc": 2})"},
       {R"({"x-a": "s"})", R"({"y": 1})", R"({"x-": 1})", R"({"x-A": 1})", R"({"ax-a": 1})"}},
      {R"({"patternProperties": {"_at$": {"const": 1}}, "additionalProperties": {"const": 2}})",
       {"{}", R"({"made_at": 1, "by": 2, "": 2, "_at_": 2, "\"_at": 1, "日_at": 1})"},
       {R"({"made_at": 2})", R"({"by": 1})", R"({"\u006dade_at": 2})"}},
      {R"({"patternProperties": {"^a": {"enum": [1, 2]}, "b$": {"enum": [2, 3]}}, "additionalProperties": false})",
       {R"({"a": 1, "b": 3, "ab": 2})"},
       {R"({"a": 3})", R"({"ab": 1})", R"({"ab": 3})", R"({"c": 2})"}},
      {R"({"properties": {"ab": {"minimum": 5}, "c": {"const": 9}}, "required": ["ab"],
           "patternProperties": {"^a": {"type": "integer", "maximum": 7}}})",
       {R"({"ab": 5})", R"({"ab": 7, "c": 9, "a": 0, "abc": 1})"},
       {R"({"ab": 4})", R"({"ab": 8})", R"({"ab": 5, "ab": 1})", R"({"ab": 5, "a": 8})", R"({"ab": 5, "x": 1})", "{}"}},
      {R"({"required": ["a"], "patternProperties": {"a": {"type": "null"}}, "additionalProperties": {"const": 1}})",
       {R"({"a": null})", R"({"a": null, "ba": null, "c": 1})"},
       {R"({"a": 1})", "{}"}},
      {R"({"allOf": [{"patternProperties": {"^a": {"type": "integer"}}}, {"patternProperties": {"^a": {"maximum": 3}}}]})",
       {R"({"a": 3})"},
       {R"({"a": 4})", R"({"a": "x"})"}},
      {R"({"patternProperties": {"^a": {"type": "string"}, "b$": {"type": "null"}}})",
       {R"({"a": "s", "b": null})"},
       {R"({"ab": "s"})", R"({"ab": null})"}},
      {R"({"type": "object", "patternProperties": {}})", {"{}", R"({"x": 1})"}, {"[]"}},
  });
}

TEST(JsonSchema, References) {
  check({
      {R"({"$defs": {"p": {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"anyOf": [
           {"$ref": "#/$defs/p"}, {"type": "null"}]}}, "required": ["n", "next"]}}, "$ref": "#/$defs/p"})",
       {R"({"n": 1, "next": null})", R"({"n": 1, "next": {"n": 2, "next": null}})"},
       {R"({"n": 1})", R"({"n": 1, "next": {"n": 2}})"}},
      {R"({"type": "array", "items": {"$ref": "#"}, "maxItems": 2})", {"[]", "[[], [[]]]"}, {"[[], [], []]", "[1]"}},
      {R"({"definitions": {"a/b": {"const": 7}}, "type": "object", "properties": {"x": {"$ref": "#/definitions/a~1b"}},
           "required": ["x"]})",
       {R"({"x": 7})"},
       {R"({"x": 8})"}},
      {R"({"allOf": [{"$ref": "#/$defs/s"}], "description": "d", "$defs": {"s": {"type": "string", "maxLength": 1}}})",
       {R"("a")"},
       {R"("ab")"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
                     {"properties": {"b": {"const": 2}}, "required": ["b"]}]})",
       {R"({"a": 1, "b": 2})"},
       {R"({"a": 1})"}},
      {R"({"properties": {"a": {"const": 1}}, "allOf": [{"additionalProperties": true}]})",
       {R"({"a": 1, "b": 2})"},
       {R"({"a": 2})"}},
      {R"({"type": "number", "allOf": [{"type": ["integer", "null"], "minimum": 2}, {"maximum": 3}]})",
       {"2", "3"},
       {"2.5", "null"}},
      {R"({"type": ["integer", "null"], "anyOf": [{"type": "number", "maximum": 3}, {"type": ["null", "number"]}]})",
       {"3", "null"},
       {"2.5"}},
      {R"({"allOf": [{"prefixItems": [{"const": 1}]}, {"items": true, "maxItems": 2}]})", {"[1, 2]"}, {"[2]"}},
      {R"({"anyOf": [{"type": "integer", "maximum": 3, "minimum": 0}, {"type": "string", "maxLength": 1}]})",
       {"2", R"("x")"},
       {"4", R"("xy")"}},
      {R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},
           "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a": 1})", R"({"b": 2})", R"({"a": 1, "b": 2})"},
       {"{}"}},
      {R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]},
                     {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]},
                     {"type": "null"}]})",
       {R"({"kind": "a"})", R"({"kind": "c"})", "null"},
       {R"({"kind": "d"})"}},
  });
}

TEST(JsonSchema, RefusesByName) {
  const std::pair<const char*, const char*> rows[] = {
      {R"({"not": {}})", "\"not\""},
      {R"({"type": "object", "properties": {"a": {"multipleOf": 3}}})",
       "schema.properties.a has the keyword \"multipleOf\""},
      {R"({"type": "array", "uniqueItems": true})", "uniqueItems"},
      {R"({"type": "object", "patternProperties": {"(?=a)b": {}}})",
       "patternProperties that cannot be used: the pattern"},
      {R"({"properties": {"ab": {"type": "string"}}, "patternProperties": {"^a": {"type": "null"}}})",
       "schema.properties.ab joins two schemas whose type have nothing in common"},
      {R"({"type": "object", "patternProperties": []})", "patternProperties that are not an object"},
      {R"({"if": {}})", "\"if\""},
      {R"({"type": "str"})", "\"str\""},
      {R"({"type": []})", "has a type that is an empty list"},
      {R"({"type": "string", "pattern": "(?=a)b"})", "look-around"},
      {R"({"type": "string", "pattern": "a", "maxLength": 3})", "two of pattern"},
      {R"({"type": "string", "maxLength": -1})", "maxLength -1"},
      {R"({"type": "integer", "minimum": "1"})", "minimum \"1\""},
      {R"({"type": "integer", "minimum": 1, "exclusiveMinimum": 2})", "bound of the same side"},
      {R"({"$ref": "http://example.org/s"})", "only references inside"},
      {R"({"$ref": "#/$defs/x"})", "not in the schema"},
      {R"({"$ref": "#"})", "no text at all"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "refers to itself"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "no text at all"},
      {R"({"enum": []})", "not a non-empty list of values"},
      {R"({"enum": ["a"], "maxLength": 1})", "together with enum"},
      {R"({"anyOf": []})", "not a non-empty list of schemas"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "use anyOf"},
      {R"({"oneOf": [{"properties": {"a": {}}}, {"type": "null"}]})", "use anyOf"},
      {R"({"oneOf": [{"type": "integer"}, {"enum": [1.0, "a"]}]})", "use anyOf"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "different things about \"pattern\""},
      {R"({"properties": {"a": {}}, "allOf": [{"additionalProperties": false}]})",
       "joins schemas with other properties, and additionalProperties in one of them"},
      {R"({"properties": {"a": {}}, "anyOf": [{"additionalProperties": {"type": "string"}}, {"required": ["a"]}]})",
       "schema.anyOf[0] joins schemas with other properties"},
      {R"({"$defs": {"closed": {"additionalProperties": false}}, "$ref": "#/$defs/closed", "properties": {"a": {}}})",
       "joins schemas with other properties"},
      {R"({"patternProperties": {"^x": {}}, "allOf": [{"properties": {"a": {}}, "additionalProperties": false}]})",
       "joins schemas with other patternProperties"},
      {R"({"allOf": [{"prefixItems": [{"const": "x"}]}, {"items": {"type": "integer"}}]})",
       "joins schemas with other prefixItems, and items in one of them"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", "no text at all"},
      {R"({"type": "array", "items": false, "minItems": 1})", "no text at all"},
      {R"({"type": "array", "prefixItems": [{"const": 1}, false], "minItems": 2})", "no text at all"},
      {R"({"type": "array", "items": {"enum": ["a"], "type": "null"}, "minItems": 1})", "no text at all"},
      {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "no text at all"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "no text at all"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "no text at all"},
      {"false", "no text at all"},
      {"7", "expected a schema"},
      {R"({"properties": {"a": 7}})", "expected a schema"},
      {R"({"required": [1]})", "expected a name"},
      {R"({"$defs": {"a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a", "minItems": 1}}}},
           "$ref": "#/$defs/a"})",
       "deeper than"},
  };
  for (const auto& [schema, part] : rows) {
    const auto grammar = compile(schema);
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_NE(grammar.error().message.find(part), std::string::npos) << schema << ": " << grammar.error().message;
  }
}

// Schemas that would take long or much to compile are refused at once.
TEST(JsonSchema, BoundsItsSize) {
  const auto list = [](const std::string& part, int n) {
    std::string out = part;
    for (int i = 1; i < n; ++i) out += ", " + part;
    return out;
  };
  std::string properties;
  for (int i = 0; i < 12'000; ++i) properties += (i > 0 ? ", \"" : "\"") + std::to_string(i) + "\": {}";
  std::string nested = R"({"type": "array"})";
  for (int i = 0; i < 60; ++i) nested = R"({"items": )" + nested + "}";
  EXPECT_TRUE(compile(nested).ok());
  const std::string doubling = R"({"$defs": {"a0": {"type": "null"})" + [] {
    std::string out;
    for (int i = 1; i < 30; ++i) {
      out +=
          fmt::format(R"(, "a{0}": {{"type": "object", "properties": {{"x": {{"$ref": "#/$defs/a{1}", "minLength": 1}},
                            "y": {{"$ref": "#/$defs/a{1}", "minLength": 2}}}}}})",
                      i, i - 1);
    }
    return out;
  }() + R"(}, "$ref": "#/$defs/a29"})";
  for (const std::string& schema :
       {"{\"properties\": {" + properties + "}}", R"({"type": "array", "prefixItems": [)" + list("{}", 300) + "]}",
        R"({"oneOf": [)" + list(R"({"type": "null"})", 300) + "]}", doubling,
        R"({"anyOf": [)" + list(R"({"pattern": "(a{300}b?){300}"})", 20) + "]}"}) {
    const auto grammar = compile(schema);
    ASSERT_FALSE(grammar.ok()) << schema.substr(0, 80);
    EXPECT_NE(grammar.error().message.find("more than"), std::string::npos) << grammar.error().message;
  }
}

// Each character becomes a step of the grammar, and takes a hundred times its memory before there are too many.
TEST(JsonSchema, BoundsItsCharacters) {
  const std::string many(1'000'001, 'a');
  for (const std::string& schema :
       {R"({"const": ")" + many + "\"}", R"({"enum": [")" + many + "\"]}", R"({"required": [")" + many + "\"]}",
        R"({"properties": {")" + many + "\": true}}"}) {
    const auto grammar = compile(schema);
    ASSERT_FALSE(grammar.ok()) << schema.substr(0, 80);
    EXPECT_NE(grammar.error().message.find("characters in its names and values"), std::string::npos)
        << grammar.error().message.substr(0, 200);
  }
  EXPECT_TRUE(compile(R"({"const": 1, "description": ")" + many + "\"}").ok());
}

// Once each character of a name took a call of the reader, and one of 20,000 the whole stack.
TEST(JsonSchema, TellsOtherMembersFromLongNames) {
  const auto with_name = [](size_t n_characters) {
    return fmt::format(R"({{"properties": {{"{}": {{"const": 1}}}}, "additionalProperties": {{"const": 2}}}})",
                       std::string(n_characters, 'a'));
  };
  const auto long_name = constraint_of(must(compile(with_name(2000))));
  const std::string name(2000, 'a');
  EXPECT_TRUE(matches(long_name, "{\"" + name + "\": 1, \"" + name + "a\": 2, \"" + name.substr(1) + "\": 2}"));
  EXPECT_FALSE(matches(long_name, "{\"" + name + "\": 2}"));
  for (const size_t n_characters : {20'000, 200'000}) {
    const auto grammar = compile(with_name(n_characters));
    ASSERT_FALSE(grammar.ok()) << n_characters;
    EXPECT_NE(grammar.error().message.find("shorten the names"), std::string::npos) << grammar.error().message;
  }
}

// For each part all that is joined before is copied.
TEST(JsonSchema, BoundsHowManyPartsAreJoined) {
  std::string parts = "{}";
  for (int i = 0; i < 5000; ++i) parts += fmt::format(R"(, {{"title": "{}"}})", i);
  const std::string all = R"({"$defs": {"a": {"allOf": [)" + parts + R"(]}}, "properties": {)";
  EXPECT_FALSE(
      compile(all + R"("x": {"$ref": "#/$defs/a", "minimum": 1}}})").ok());  // more values than a schema may have
  io::JsonArray many;
  for (int i = 0; i < 4000; ++i) many.emplace_back(io::JsonObject());
  const io::JsonValue joined = io::JsonObject{{"allOf", many}};
  grammar::RuleSet rules;
  grammar::JsonForms forms(rules);
  grammar::SchemaReader reader(rules, forms, joined, grammar::Unsupported::kPassedOver);
  EXPECT_TRUE(reader.named_members(joined, "part").ok());
  EXPECT_TRUE(reader.named_members(joined, "part").ok());
  EXPECT_FALSE(reader.named_members(joined, "part").ok());  // 12,000 in all
  const io::JsonValue larger = io::JsonObject{{"allOf", io::JsonArray(20'000, io::JsonValue(io::JsonObject()))}};
  const auto refused = grammar::SchemaReader(rules, forms, larger).named_members(larger, "part");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("more than 10000 parts"), std::string::npos) << refused.error().message;
}

TEST(JsonSchema, BoundsItsPatternsOfNames) {
  std::string patterns;
  for (int i = 0; i < 12; ++i)
    patterns += fmt::format(R"({}"a.{{{}}}b.{{{}}}c": {{}})", i > 0 ? ", " : "", i + 3, 2 * i);
  std::string many;  // each of which is small
  for (int i = 0; i < 4000; ++i) many += fmt::format(R"({}"{}(a?){{100}}": {{}})", i > 0 ? ", " : "", i);
  for (const std::string& each : {patterns, many}) {
    const auto grammar = compile("{\"patternProperties\": {" + each + "}}");
    ASSERT_FALSE(grammar.ok());
    EXPECT_NE(grammar.error().message.find("more than"), std::string::npos) << grammar.error().message;
  }
}

TEST(JsonSchema, PassesOverPatternsOfNamesThatItCannotReadWhereAsked) {
  const auto grammar =
      compile(R"({"type": "object", "properties": {"a": {}}, "patternProperties": {"(?=b)b": {"type": "null"}
}
})",
              grammar::Unsupported::kPassedOver);
  EXPECT_TRUE(matches(constraint_of(must(Result(grammar))), R"({"a": 4})"));
}

TEST(JsonSchema, PassesOverWhatItDoesNotKnowWhereAsked) {
  const auto grammar =
      compile(R"({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}, "not": {}})",
              grammar::Unsupported::kPassedOver);
  EXPECT_TRUE(matches(constraint_of(must(Result(grammar))), R"({"a": 4})"));
}

}  // namespace
}  // namespace levin::test
