"use strict";
// Syntax colours for code. A lexer per language, fed one line at a time with the state the line before it ended in, so
// that a block of code that is still being written never has a line read twice.
//
// Highlight.lexer(name)        the lexer of a language as a fence names it ("py", "C++"), or null: no colours
// Highlight.line(lexer, line, open)   {pieces: [[class, text], ...], open}: the pieces join to the line; `open` is null
//                              or the span (a comment or string of several lines) that the line leaves open
const Highlight = (() => {
  const kLongestLine = 2000; // a longer one is data rather than code, and stays plain

  const words = (...lists) => {
    const out = new Map();
    for (const [kind, list] of lists) for (const word of list.split(" ")) out.set(word, kind);
    return out;
  };

  // The parts that languages have in common. A rule is a class and what matches at a place; a span is a class, what
  // opens it, and what runs from inside it to its end.
  const kNumber = ["number", /0[xX][\da-fA-F_]+\w*|0[bB][01_]+|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\w*/y];
  const kDouble = ["string", /"(?:\\.|[^"\\])*"?/y];
  const kSingle = ["string", /'(?:\\.|[^'\\])*'?/y];
  const kCharacter = ["string", /'(?:\\[^']+|[^'\\])'/y]; // leaves digit separators and lifetimes alone
  const kSlashes = ["comment", /\/\/.*/y];
  const kHash = ["comment", /#.*/y];
  const kBlock = ["comment", /\/\*/y, /(?:[^*]|\*(?!\/))*\*\//y];
  const kTriples = [["string", /[a-zA-Z]{0,2}"""/y, /(?:\\.|[^\\])*?"""/y], ["string", /[a-zA-Z]{0,2}'''/y, /(?:\\.|[^\\])*?'''/y]];
  const kBackticks = ["string", /`/y, /(?:\\.|[^`\\])*`/y];

  const kCWords = "break case const continue default do else enum extern for goto if inline register return sizeof static " +
    "struct switch typedef union volatile while";
  const kCTypes = "bool char double float int int8_t int16_t int32_t int64_t long short signed size_t uint8_t uint16_t " +
    "uint32_t uint64_t unsigned void";
  const kCppWords = kCWords + " alignas alignof and auto catch class co_await co_return co_yield concept consteval constexpr " +
    "constinit decltype delete explicit export final friend import module mutable namespace new noexcept not operator or " +
    "override private protected public requires static_assert static_cast dynamic_cast reinterpret_cast const_cast template " +
    "this throw try typename using virtual __global__ __device__ __host__ __shared__ __constant__";
  const kScriptWords = "abstract as async await break case catch class const continue debugger declare default delete do " +
    "else enum export extends finally for from function get if implements import in instanceof interface keyof let namespace " +
    "new of private protected public readonly return satisfies set static super switch this throw try type typeof var void " +
    "while with yield";

  const cLike = (keywords, types, more = {}) => ({
    words: words(["keyword", keywords], ["type", types], ["literal", "true false null nullptr NULL nil None"]),
    spans: [kBlock], rules: [kSlashes, kDouble, kCharacter, kNumber], calls: true, ...more });
  const cRules = [["meta", /#\s*\w+(?:\s*<[^>]*>)?/y], kSlashes, kDouble, kCharacter, kNumber];

  const kLexers = {
    c: cLike(kCWords, kCTypes, { rules: cRules }),
    cpp: cLike(kCppWords, kCTypes + " wchar_t char8_t char16_t char32_t string string_view vector", {
      rules: cRules, spans: [kBlock, ["string", /R"\(/y, /.*?\)"/y]] }),
    java: cLike("abstract assert break case catch class const continue default do else enum extends final finally for if " +
      "implements import instanceof interface native new package private protected public record return sealed static super " +
      "switch synchronized this throw throws transient try var void volatile while yield",
      "boolean byte char double float int long short", { spans: [kBlock, kTriples[0]], rules: [["meta", /@\w+/y], kSlashes, kDouble, kCharacter, kNumber] }),
    csharp: cLike("abstract as async await base break case catch checked class const continue default delegate do else enum " +
      "event explicit extern finally fixed for foreach get if implicit in init interface internal is lock namespace new " +
      "operator out override params private protected public readonly record ref required return sealed set sizeof static " +
      "struct switch this throw try typeof unchecked unsafe using var virtual void volatile when where while yield",
      "bool byte char decimal double dynamic float int long object sbyte short string uint ulong ushort", {
        rules: [kSlashes, ["string", /[$@]{1,2}"(?:""|\\.|[^"\\])*"?/y], kDouble, kCharacter, kNumber] }),
    go: cLike("break case chan const continue default defer else fallthrough for func go goto if import interface map package " +
      "range return select struct switch type var", "any bool byte complex64 complex128 error float32 float64 int int8 int16 " +
      "int32 int64 rune string uint uint8 uint16 uint32 uint64 uintptr", { spans: [kBlock, kBackticks] }),
    rust: cLike("as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut " +
      "pub ref return self Self static struct super trait type unsafe use where while", "bool char f32 f64 i8 i16 i32 i64 i128 " +
      "isize str u8 u16 u32 u64 u128 usize Option Result String Vec Box", {
        rules: [["meta", /#!?\[[^\]]*\]?|\w+!(?=[\s([{])/y], kSlashes, kDouble, kCharacter, ["type", /'[a-z_]\w*/y], kNumber] }),
    kotlin: cLike("abstract as break by catch class companion const constructor continue data do else enum finally for fun if " +
      "import in init inline interface internal is lateinit object open override package private protected public return " +
      "sealed super suspend this throw try typealias val var when where while", "Any Boolean Byte Char Double Float Int Long " +
      "Short String Unit List Map Set", { spans: [kBlock, kTriples[0]] }),
    swift: cLike("as associatedtype async await break case catch class continue default defer deinit do else enum extension " +
      "fallthrough fileprivate final for func guard if import in init inout internal is lazy let mutating nil open override " +
      "private protocol public repeat rethrows return self Self static struct subscript super switch throw throws try " +
      "typealias var weak where while", "Any Bool Character Double Float Int String UInt Void", { spans: [kBlock, kTriples[0]] }),
    javascript: cLike(kScriptWords, "any bigint boolean never number object string symbol unknown undefined", {
      spans: [kBlock, kBackticks],
      rules: [kSlashes, kDouble, kSingle, ["string", /(?<=(?:^|[=(,:;!&|?{}[\n]|return)\s*)\/(?![*/])(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\[])+\/[a-z]*/y], kNumber] }),
    php: cLike("abstract and array as break callable case catch class clone const continue declare default do echo else elseif " +
      "empty enum extends final finally fn for foreach function global if implements include instanceof interface isset list " +
      "match namespace new or print private protected public readonly require require_once return static switch throw trait " +
      "try unset use var while yield", "bool float int iterable mixed object self string void", {
        rules: [kSlashes, kHash, ["meta", /<\?(?:php)?|\?>/y], ["variable", /\$\w+/y], kDouble, kSingle, kNumber] }),
    python: { words: words(["keyword", "and as assert async await break case class continue def del elif else except finally for " +
      "from global if import in is lambda match nonlocal not or pass raise return try while with yield"],
      ["literal", "True False None self cls"], ["type", "bool bytes dict float frozenset int list object set str tuple type"]),
      spans: kTriples, calls: true,
      rules: [kHash, ["meta", /@[\w.]+/y], ["string", /[rbfuRBFU]{0,2}"(?:\\.|[^"\\])*"?/y], ["string", /[rbfuRBFU]{0,2}'(?:\\.|[^'\\])*'?/y], kNumber] },
    ruby: { words: words(["keyword", "alias and begin break case class def defined do else elsif end ensure extend for if in include " +
      "module next not or private protected public raise redo require rescue retry return self super then undef unless until " +
      "when while yield attr_accessor attr_reader"], ["literal", "true false nil"]),
      spans: [], calls: true, rules: [kHash, kDouble, kSingle, ["literal", /:[a-zA-Z_]\w*/y], ["variable", /@{1,2}\w+/y], kNumber] },
    lua: { words: words(["keyword", "and break do else elseif end for function goto if in local not or repeat return then until while"],
      ["literal", "true false nil"]), spans: [["comment", /--\[\[/y, /.*?\]\]/y]], calls: true,
      rules: [["comment", /--.*/y], kDouble, kSingle, kNumber] },
    haskell: { words: words(["keyword", "case class data deriving do else if import in infixl infixr instance let module newtype " +
      "of qualified then type where"], ["literal", "True False"]), spans: [["comment", /\{-/y, /.*?-\}/y]],
      rules: [["comment", /--.*/y], kDouble, kCharacter, ["type", /[A-Z][\w']*/y], kNumber] },
    r: { words: words(["keyword", "break else for function if in next repeat return while library require"],
      ["literal", "TRUE FALSE NULL NA Inf NaN"]), spans: [], calls: true, rules: [kHash, kDouble, kSingle, kNumber] },
    bash: { words: words(["keyword", "case do done elif else esac export fi for function if in local return select set shift source " +
      "then time trap unset until while"], ["call", "apt apt-get awk cat cd chmod chown cmake cp curl docker echo exit find git go " +
      "grep kill ls make mkdir mv node npm pip python python3 rm sed ssh sudo systemctl tar test touch wget xargs"]), word: /[A-Za-z_][\w-]*/y, spans: [],
      rules: [["comment", /(?<=^|\s)#.*/y], kDouble, ["string", /'[^']*'?/y], ["variable", /\$(?:\w+|\{[^}]*\}|[@#?$!*-])/y],
              ["meta", /(?<=\s)--?[a-zA-Z][\w-]*/y], ["number", /(?<![\w.-])\d+(?![\w.-])/y]] },
    sql: { caseless: true, words: words(["keyword", "add all alter and as asc begin between by cascade case check column commit " +
      "constraint create cross database default delete desc distinct drop else end except exists foreign from full group having " +
      "if in index inner insert intersect into is join key left like limit not offset on or order outer over partition primary " +
      "references returning right rollback select set table then transaction truncate union unique update using values view " +
      "when where window with"], ["literal", "true false null"], ["type", "bigint blob boolean char date decimal float int integer " +
      "json jsonb numeric real serial smallint text timestamp uuid varchar"]), spans: [kBlock], calls: true,
      rules: [["comment", /--.*/y], ["string", /'(?:''|[^'])*'?/y], ["variable", /"[^"]*"?/y], kNumber] },
    json: { words: words(["literal", "true false null"]), spans: [kBlock],
      rules: [kSlashes, ["property", /"(?:\\.|[^"\\])*"(?=\s*:)/y], kDouble, ["number", /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/y]] },
    yaml: { words: words(["literal", "true false null yes no on off"]), spans: [],
      rules: [["comment", /(?<=^|\s)#.*/y], ["property", /(?<=^\s*(?:-\s+)*)[\w./-]+(?=\s*:(?:\s|$))/y], ["property", /(?<=^\s*(?:-\s+)*)"[^"]*"(?=\s*:)/y], kDouble, kSingle,
              ["meta", /(?<=\s)[&*!][\w-]+|^---|^\.\.\./y], ["number", /(?<![\w.-])-?\d+(?:\.\d+)?(?![\w.-])/y]] },
    toml: { words: words(["literal", "true false"]), spans: kTriples,
      rules: [["comment", /[#;].*/y], ["meta", /^\s*\[[^\]]*\]+/y], ["property", /(?<=^\s*)[\w.-]+(?=\s*=)/y], kDouble, kSingle, kNumber] },
    css: { words: words(["keyword", "important from to"], ["literal", "auto none inherit initial unset"]), word: /[A-Za-z_-][\w-]*/y, spans: [kBlock], calls: true,
      rules: [["meta", /@[\w-]+/y], ["property", /[\w-]+(?=\s*:\s)/y], kDouble, kSingle, ["number", /#[\da-fA-F]{3,8}\b/y], ["type", /[.#][A-Za-z_-][\w-]*|::?[a-z-]+/y], ["number", /-?(?:\d+\.?\d*|\.\d+)(?:%|[a-z]+)?/y]] },
    html: { words: new Map(), spans: [["comment", new RegExp("<" + "!--", "y"), /.*?-->/y]],
      rules: [["keyword", /<[/!?]?[A-Za-z][\w:.-]*|[/?]?>/y], ["property", /[\w:@.-]+(?=\s*=\s*["'{])/y], ["string", /(?<==\s*)(?:"[^"]*"?|'[^']*'?)/y], ["literal", /&#?\w+;/y]] },
    diff: { words: new Map(), spans: [],
      rules: [["meta", /^(?:@@.*|diff .*|index .*|--- .*|\+\+\+ .*)/y], ["inserted", /^\+.*/y], ["deleted", /^-.*/y]] },
    latex: { words: new Map(), spans: [], rules: [["comment", /(?<!\\)%.*/y], ["keyword", /\\(?:[A-Za-z]+\*?|.)/y], ["string", /\$[^$]*\$?/y], ["meta", /[{}[\]&]/y]] },
    makefile: { words: words(["keyword", "ifeq ifneq ifdef ifndef else endif include define endef export"]), spans: [],
      rules: [kHash, ["variable", /\$(?:\([^)]*\)|\{[^}]*\}|[@<^*?%$])/y], ["call", /^[\w.%/ -]+(?=:(?!=))/y], ["property", /^\w+(?=\s*[:?+]?=)/y], kDouble, kSingle] },
    dockerfile: { words: words(["keyword", "FROM AS RUN CMD LABEL EXPOSE ENV ADD COPY ENTRYPOINT VOLUME USER WORKDIR ARG ONBUILD STOPSIGNAL HEALTHCHECK SHELL"]),
      spans: [], rules: [["comment", /^\s*#.*/y], kDouble, kSingle, ["variable", /\$(?:\w+|\{[^}]*\})/y], ["meta", /(?<=\s)--[\w-]+/y]] },
    cmake: { words: words(["keyword", "if elseif else endif foreach endforeach while endwhile function endfunction macro endmacro return"],
      ["literal", "ON OFF TRUE FALSE PUBLIC PRIVATE INTERFACE REQUIRED"]), spans: [], calls: true, rules: [kHash, kDouble, ["variable", /\$\{[^}]*\}|\$<[^>]*>/y]] },
  };
  const kOtherNames = {
    "c++": "cpp", cc: "cpp", cxx: "cpp", h: "cpp", hpp: "cpp", cuda: "cpp", cu: "cpp", metal: "cpp", glsl: "cpp",
    cs: "csharp", "c#": "csharp", golang: "go", rs: "rust", kt: "kotlin", js: "javascript", jsx: "javascript", mjs: "javascript",
    ts: "javascript", tsx: "javascript", typescript: "javascript", node: "javascript", dart: "java", scala: "kotlin", groovy: "java",
    py: "python", python3: "python", pyi: "python", ipython: "python", rb: "ruby", hs: "haskell", sh: "bash", shell: "bash", zsh: "bash",
    console: "bash", "shell-session": "bash", fish: "bash", mysql: "sql", postgresql: "sql", postgres: "sql", sqlite: "sql",
    plsql: "sql", jsonc: "json", json5: "json", jsonl: "json", yml: "yaml", ini: "toml", cfg: "toml", conf: "toml",
    properties: "toml", env: "bash", dotenv: "bash", scss: "css", less: "css", xml: "html", svg: "html", xhtml: "html", vue: "html",
    patch: "diff", tex: "latex", make: "makefile", docker: "dockerfile",
  };
  const kWord = /[A-Za-z_$][\w$]*/y;

  function lexer(name) {
    const key = name.toLowerCase();
    if (Object.hasOwn(kLexers, key)) return kLexers[key];
    return Object.hasOwn(kOtherNames, key) ? kLexers[kOtherNames[key]] : null;
  }

  // What `pattern`, a sticky one, matches at a place of the line; "" if nothing.
  function matchAt(pattern, line, at) {
    pattern.lastIndex = at;
    return pattern.exec(line)?.[0] ?? "";
  }

  function wordClass(lexer, word, line, end) {
    const kind = lexer.words.get(lexer.caseless ? word.toLowerCase() : word);
    return kind ?? (lexer.calls && line[end] === "(" ? "call" : "");
  }

  // The next piece at a place outside of any span: [class, text, the span it opens or null].
  function nextPiece(lexer, line, at) {
    for (const span of lexer.spans) {
      const text = matchAt(span[1], line, at);
      if (text) return [span[0], text, span];
    }
    for (const [kind, pattern] of lexer.rules) {
      const text = matchAt(pattern, line, at);
      if (text) return [kind, text, null];
    }
    const word = matchAt(lexer.word ?? kWord, line, at) || matchAt(kWord, line, at);
    return word ? [wordClass(lexer, word, line, at + word.length), word, null] : ["", line[at], null];
  }

  function line(lexer, line, open) {
    if (!lexer || line.length > kLongestLine) return { pieces: line ? [["", line]] : [], open };
    const pieces = [];
    const add = (kind, text) => {
      const last = pieces[pieces.length - 1];
      if (last && last[0] === kind) last[1] += text;
      else pieces.push([kind, text]);
    };
    for (let at = 0; at < line.length;) {
      if (open) {
        const text = matchAt(open[2], line, at) || line.slice(at);
        add(open[0], text);
        at += text.length;
        if (open[2].lastIndex === 0) break; // no end on this line
        open = null;
        continue;
      }
      const [kind, text, opened] = nextPiece(lexer, line, at);
      add(kind, text);
      at += text.length;
      open = opened;
    }
    return { pieces, open };
  }

  return { lexer, line };
})();
