"use strict";
// LaTeX formulas as MathML.
//
// TeX.render(tex, display)   a <math> node. Unknown commands stay readable as text, an unfinished formula shows what is
//                            there so far, and a formula nested beyond reason is shown as its source.
const TeX = (() => {
  const kNamespace = "http://www.w3.org/1998/Math/MathML";
  const kDeepest = 40;        // nested groups; no formula that people read comes near
  const kLongest = 20000;     // characters

  const table = text => new Map(text.trim().split(/\s+/).map(pair => pair.split("=")));
  const kLetters = table(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ
    lambda=λ mu=μ nu=ν xi=ξ pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω
    Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂ nabla=∇ ell=ℓ hbar=ℏ
    Re=ℜ Im=ℑ aleph=ℵ emptyset=∅ varnothing=∅ imath=ı jmath=ȷ top=⊤ bot=⊥ angle=∠ degree=° prime=′ square=□ blacksquare=■`);
  const kOperators = table(`times=× cdot=⋅ div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ otimes=⊗ odot=⊙ cup=∪ cap=∩ setminus=∖
    wedge=∧ vee=∨ land=∧ lor=∨ neg=¬ lnot=¬ leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ ll=≪ gg=≫ approx=≈ sim=∼ simeq=≃ cong=≅ equiv=≡
    propto=∝ prec=≺ succ=≻ subset=⊂ subseteq=⊆ supset=⊃ supseteq=⊇ in=∈ notin=∉ ni=∋ forall=∀ exists=∃ nexists=∄ to=→ gets=←
    rightarrow=→ leftarrow=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺ implies=⟹ longrightarrow=⟶
    mapsto=↦ uparrow=↑ downarrow=↓ mid=∣ parallel=∥ perp=⊥ vdash=⊢ models=⊨ therefore=∴ because=∵ ldots=… dots=… cdots=⋯ vdots=⋮
    ddots=⋱ colon=: langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ vert=| Vert=‖ lvert=| rvert=| lVert=‖ rVert=‖ backslash=\\
    lbrace={ rbrace=} triangle=△ dagger=† int=∫ iint=∬ iiint=∭ oint=∮`);
  const kStacked = table("sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁ bigwedge=⋀"); // limits above and below
  const kFunctions = new Set(("arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom ker lg ln log sec sin " +
    "sinh tan tanh Pr").split(" "));
  const kLimits = new Set("lim limsup liminf max min sup inf argmax argmin".split(" "));
  const kAccents = table("hat=^ widehat=^ bar=¯ overline=¯ vec=→ overrightarrow=→ tilde=~ widetilde=~ dot=˙ ddot=¨ check=ˇ overbrace=⏞");
  const kUnders = table("underline=_ underbrace=⏟");
  const kSpaces = table("quad=1em qquad=2em ,=0.17em :=0.22em ;=0.28em !=-0.17em ~=0.33em >=0.22em") ;
  const kIgnored = new Set(("displaystyle textstyle scriptstyle limits nolimits nonumber notag big Big bigg Bigg bigl bigr Bigl Bigr " +
    "biggl biggr Biggl Biggr middle hline").split(" "));
  const kFences = { matrix: "", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{", smallmatrix: "" };

  // Alphabets: the code point of A and of a (0: that letter stays as it is), and the letters that stand elsewhere.
  const kAlphabets = {
    mathbf: [0x1d400, 0x1d41a], boldsymbol: [0x1d468, 0x1d482], bm: [0x1d468, 0x1d482], mathfrak: [0x1d504, 0x1d51e, "C=ℭ H=ℌ I=ℑ R=ℜ Z=ℨ"],
    mathbb: [0x1d538, 0x1d552, "C=ℂ H=ℍ N=ℕ P=ℙ Q=ℚ R=ℝ Z=ℤ"], mathcal: [0x1d49c, 0, "B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ"],
    mathscr: [0x1d49c, 0, "B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ"] };
  const kTexts = new Set("text textbf textit textrm texttt mathrm mathsf mathtt mathit operatorname mbox".split(" "));

  function node(tag, children = [], attributes = {}) {
    const made = document.createElementNS(kNamespace, tag);
    made.append(...children);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }
  const row = children => children.length === 1 ? children[0] : node("mrow", children);

  function inAlphabet(name, letters) {
    const [upper, lower, elsewhere = ""] = kAlphabets[name];
    const moved = table(elsewhere || "=");
    return [...letters].map(letter => {
      if (moved.has(letter)) return moved.get(letter);
      if (/[A-Z]/.test(letter)) return String.fromCodePoint(upper + letter.charCodeAt(0) - 65);
      return /[a-z]/.test(letter) && lower ? String.fromCodePoint(lower + letter.charCodeAt(0) - 97) : letter;
    }).join("");
  }

  class Reader {
    constructor(tex) {
      this.tokens = tex.match(/\\[A-Za-z]+\*?|\\[^]|\d+(?:\.\d+)?|\s+|[^]/gu) ?? [];
      this.at = 0;
      this.depth = 0;
    }
    skipSpace() { while (/^\s/.test(this.tokens[this.at] ?? "")) this.at++; }
    peek() { this.skipSpace(); return this.tokens[this.at]; }
    next() { this.skipSpace(); return this.tokens[this.at++]; }

    // A group's own text, `{...}`, unread: names of environments, \text.
    rawGroup() {
      if (this.peek() !== "{") return this.next() ?? "";
      let text = "";
      let depth = 0;
      for (this.at++; this.at < this.tokens.length; this.at++) {
        const token = this.tokens[this.at];
        if (token === "}" && depth-- === 0) break;
        if (token === "{") depth++;
        text += token;
      }
      this.at++;
      return text.replace(/\\([^A-Za-z])/g, "$1");
    }

    // What stands up to one of the tokens in `ends`, which is left to be read.
    list(ends) {
      if (++this.depth > kDeepest) throw new RangeError("nested too deeply");
      const out = [];
      for (let token = this.peek(); token !== undefined && !ends.includes(token); token = this.peek()) {
        if (token === "}" || token === "&" || token === "\\\\") this.at++; // one too many
        else out.push(...this.scripted());
      }
      this.depth--;
      return out;
    }

    // One argument of a command: a group or a single symbol.
    argument() {
      if (this.peek() === "{") {
        this.at++;
        const inside = this.list(["}"]);
        this.at++;
        return row(inside);
      }
      return row(this.symbol());
    }

    // A symbol with what is written above and below it.
    scripted() {
      const token = this.peek();
      const base = token === "^" || token === "_" ? [node("mrow")] : this.symbol();
      let sub = null;
      let sup = null;
      for (;;) {
        const mark = this.peek();
        if (mark === "_" && !sub) { this.at++; sub = this.argument(); }
        else if (mark === "^" && !sup) { this.at++; sup = this.argument(); }
        else if (mark === "'" && !sup) {
          let primes = "";
          while (this.peek() === "'") { this.at++; primes += "′"; }
          sup = node("mo", [primes]);
        } else break;
      }
      if (!sub && !sup) return base;
      const stacked = base.length === 1 && base[0].getAttribute("movablelimits") === "true";
      const tags = stacked ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
      return [node(tags[sub && sup ? 2 : sup ? 1 : 0], [row(base), ...[sub, sup].filter(Boolean)])];
    }

    symbol() {
      const token = this.next();
      if (token === undefined) return [];
      if (token === "{") { this.at--; return [this.argument()]; }
      if (token[0] === "\\" && token.length > 1) return this.command(token.slice(1));
      if (/^\d/.test(token)) return [node("mn", [token])];
      if (/^\p{L}/u.test(token)) return [node("mi", [token])];
      if (token === "~") return [node("mspace", [], { width: "0.33em" })];
      if ("()[]|".includes(token)) return [node("mo", [token], { stretchy: "false" })];
      return [node("mo", [token === "-" ? "−" : token === "*" ? "∗" : token])];
    }

    command(name) {
      if (++this.depth > kDeepest) throw new RangeError("nested too deeply");
      const made = this.commandNodes(name);
      this.depth--;
      return made;
    }

    commandNodes(name) {
      if (kLetters.has(name)) return [node("mi", [kLetters.get(name)], /^[A-Z]/.test(name) ? { mathvariant: "normal" } : {})];
      if (kOperators.has(name)) return [node("mo", [kOperators.get(name)])];
      if (kStacked.has(name)) return [node("mo", [kStacked.get(name)], { movablelimits: "true" })];
      if (kFunctions.has(name)) return [node("mi", [name]), node("mspace", [], { width: "0.17em" })].slice(0, /^[_^({]$/.test(this.peek() ?? "") ? 1 : 2);
      if (kLimits.has(name)) return [node("mo", [name], { movablelimits: "true" })];
      if (kSpaces.has(name)) return [node("mspace", [], { width: kSpaces.get(name) })];
      if (name === " " || name === "\n") return [node("mspace", [], { width: "0.33em" })];
      if (kIgnored.has(name)) return [];
      if (kTexts.has(name.replace("*", ""))) return [node(name.startsWith("operatorname") ? "mi" : "mtext", [this.rawGroup()])];
      if (Object.hasOwn(kAlphabets, name)) return [node("mi", [inAlphabet(name, this.rawGroup())])];
      if (kAccents.has(name)) return [node("mover", [this.argument(), node("mo", [kAccents.get(name)])], { accent: "true" })];
      if (kUnders.has(name)) return [node("munder", [this.argument(), node("mo", [kUnders.get(name)])])];
      switch (name) {
        case "frac": case "dfrac": case "tfrac": case "cfrac": return [node("mfrac", [this.argument(), this.argument()])];
        case "binom": return this.fenced("()", [node("mfrac", [this.argument(), this.argument()], { linethickness: "0" })]);
        case "sqrt": return [this.root()];
        case "left": return this.leftRight();
        case "right": this.next(); return []; // one too many
        case "begin": return this.environment(this.rawGroup());
        case "end": case "tag": case "label": case "color": this.rawGroup(); return [];
        case "not": { const [struck] = this.symbol(); struck?.append("̸"); return struck ? [struck] : []; }
        case "boxed": case "phantom": return [this.argument()];
        case "overset": case "stackrel": { const over = this.argument(); return [node("mover", [this.argument(), over])]; }
        case "underset": { const under = this.argument(); return [node("munder", [this.argument(), under])]; }
        case "pmod": return [node("mtext", [" (mod "]), this.argument(), node("mtext", [")"])];
        case "bmod": case "mod": return [node("mo", ["mod"])];
        case "|": return [node("mo", ["‖"])];
      }
      return /^[A-Za-z]/.test(name) ? [node("mtext", ["\\" + name])] : [node("mo", [name])];
    }

    root() {
      if (this.peek() !== "[") return node("msqrt", [this.argument()]);
      this.at++;
      const index = row(this.list(["]"]));
      this.at++;
      return node("mroot", [this.argument(), index]);
    }

    fenced(fences, inside) {
      const fence = text => text && text !== "." ? [node("mo", [text], { stretchy: "true", fence: "true" })] : [];
      return [node("mrow", [...fence(fences[0]), ...inside, ...fence(fences[1])])];
    }
    delimiter() {
      const token = this.next() ?? ".";
      return token === "\\|" ? "‖" : token[0] === "\\" ? kOperators.get(token.slice(1)) ?? token.slice(1) : token;
    }
    leftRight() {
      const open = this.delimiter();
      const inside = this.list(["\\right"]);
      const closed = this.next() === "\\right";
      return this.fenced([open, closed ? this.delimiter() : "."], inside);
    }

    // Rows of cells up to \end: matrices, cases and aligned equations.
    environment(name) {
      if (name === "array") this.rawGroup(); // its columns' alignment
      const rows = [[]];
      for (;;) {
        rows.at(-1).push(node("mtd", this.list(["&", "\\\\", "\\end"])));
        const mark = this.next();
        if (mark === "\\\\") rows.push([]);
        else if (mark !== "&") break;
      }
      this.rawGroup(); // the name behind \end
      if (rows.at(-1).every(cell => !cell.hasChildNodes())) rows.pop();
      const aligned = /^(?:align|split|gather|eqn|equation)/.test(name);
      const made = node("mtable", rows.map(cells => node("mtr", cells)),
                        { class: aligned ? "aligned" : name === "cases" ? "cases" : "matrix" });
      return this.fenced(kFences[name] ?? "", [made]);
    }
  }

  function render(tex, display) {
    const attributes = { alttext: tex, ...(display ? { display: "block" } : {}) };
    try {
      if (tex.length > kLongest) throw new RangeError("too long");
      return node("math", [node("mrow", new Reader(tex).list([]))], attributes);
    } catch (fault) {
      if (!(fault instanceof RangeError)) throw fault;
      return make("code", "", tex);
    }
  }

  return { render };
})();
